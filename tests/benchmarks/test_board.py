"""The board's results: rows as they are played, and the page that is made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import board_runs, board_table
from benchmarks.suites.board import CELLS, GAP, WAYS, fold_of, policy_of
from benchmarks.suites.malloc_cells import HELD_OUT, PROGRAMS
from loadmaster.learn.policies import read_policy
from loadmaster.malloc_game.muzero import cases


def test_weights_of_a_row_have_not_seen_its_program() -> None:
    assert cases.HELD_OUT == HELD_OUT and set(cases.PROGRAMS) | set(HELD_OUT) == set(PROGRAMS)
    assert len(CELLS) == 64 and len(GAP) == 51
    for program in PROGRAMS:
        about = read_policy(policy_of(program), "muzero")[1]
        assert program in about["held_out"] and program not in about["trained_on"]["programs"]
        fold = fold_of(program)
        assert set(cases.left_out(None if fold == "final" else fold)) == set(about["held_out"])


def test_rows_are_played_once_and_become_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["board_runs.py", "--programs", "alexnet-train", "--machines", "tpu-v4i-16m", "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--budget", "30", "--out", str(out)])
    assert board_runs.main() == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    once = [way for way in WAYS if way.startswith("msa-refined")]  # they have no seed
    assert len(lines) == 2 * len(WAYS) - len(once)
    assert board_runs.main() == 0 and len(out.read_text().splitlines()) == len(lines)
    rows = [row for line in lines for row in line["rows"]]
    refined = next(row["value"] for row in rows if row["solver"] == "msa-refined")
    assert all(row["bound"] <= row["value"] <= refined and row["evaluations"] <= 30 for row in rows)
    for row in rows:
        row["extra"]["budget"] = WAYS[row["solver"]]
        row["seconds"], row["extra"]["clock"] = 2.0, [[1.0, row["value"]]]  # whatever else the computer does
    text = board_table.page({"rows": rows}, [])
    assert "`alexnet-train`" in text and "| `muzero` |" in text


def test_the_page_is_made_of_what_is_recorded() -> None:
    document = json.loads(board_table.RESULTS.read_text(encoding="utf-8"))
    old = json.loads(board_table.OLD_RESULTS.read_text(encoding="utf-8"))["rows"]
    assert board_table.page(document, old) in board_table.PAGE.read_text(encoding="utf-8")
