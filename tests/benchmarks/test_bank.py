"""The benchmark of the bank: its questions are alike, its rows, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bank
from loadmaster.runs.bank import Bank, Search

SMALL = bank.Cell(
    bank.Question("resnet50", "nnp-i", "mapping"),
    bank.Question("resnet50", "nnp-i", "mapping", ("llc=20MiB",)),
    "search",
    12,
)


def test_questions_differ_in_capacity_or_batch_alone() -> None:
    for cell in bank.cells():
        assert cell.kept != cell.asked and cell.kept.kind == cell.asked.kind
        assert cell.kept.machine == cell.asked.machine
    assert len(list(bank.cells())) >= 6


def test_a_like_question_is_measured_with_and_without(tmp_path: Path) -> None:
    (row,) = bank.measure_like(SMALL, 2, (1,))
    assert row["kept_evaluations"] == 24 and row["start"] is not None
    assert row["banked"] <= row["start"] and row["without_reached"] <= 12
    found = Bank(tmp_path / "bank")
    bank.seek(SMALL.kept.problem(), "search", 12, 0, found)
    recalled = found.recall(SMALL.asked.problem(), Search("any"))
    assert recalled is not None and not recalled.same


def test_the_same_question_is_measured_twice() -> None:
    row = bank.measure_same("resnet50", "nnp-i:llc=20MiB", "malloc-game", 20)
    assert row["same_plan"] and row["first_evaluations"] > 0 and row["second_evaluations"] == 0


def test_the_page_shows_losses_like_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank, "RESULTS", tmp_path)
    common = {
        "what": "like",
        "kind": "graph",
        "kept": "a",
        "asked": "b",
        "machine": "m",
        "solver": "auto",
        "evaluations": 10,
        "kept_evaluations": 100,
        "start": 110,
        "without": 100,
        "without_reached": 8,
        "bound": 50,
    }
    rows = [
        {**common, "seed": 0, "banked": 90, "banked_reached": 1},
        {**common, "seed": 1, "banked": 100, "banked_reached": 10},
        {**common, "seed": 2, "banked": 105, "banked_reached": None},
    ]
    (tmp_path / "bank.json").write_text(json.dumps({"command": "c", "rows": rows}))
    bank.write_page()
    lines = (tmp_path / "bank.md").read_text().splitlines()
    assert lines[-3:] == [
        "| a | b | graph | auto | 0 | 10 | 8 | 1 | +10.000% | -10.0000% |",
        "| a | b | graph | auto | 1 | 10 | 8 | 10 | +10.000% | +0.0000% |",
        "| a | b | graph | auto | 2 | 10 | 8 | **never** | +10.000% | **+5.0000%** |",
    ]
    assert any(
        "earlier in 1, later in 1 (by 2 evaluations at most" in line and "worse in 1." in line
        for line in lines
    )
