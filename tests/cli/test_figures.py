"""`loadmaster figures` as users call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import toy
from loadmaster.machine import load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.runs.session import run_solver
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("cli-figures") / "runs"
    for machine in ("nnp-i", "nnp-i-half"):
        problem = Mapping(load_model("resnet50"), load_machine(machine))
        run_solver(make_labelled("mapping", "random"), problem, Budget(60), 0, folder=parent)
    return parent


def test_figures_of_each_cell(run: Any, run_json: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    rows = run_json("figures", folder, "--out", out, "--format", "both")["rows"]
    kinds = ("contiguity", "curves", "embedding", "strips", "transitions-random")
    expected = {
        f"resnet50-{machine}-{kind}.{ending}"
        for machine in ("nnp-i", "nnp-i-half")
        for kind in kinds
        for ending in ("svg", "png")
    }
    assert {path.name for path in out.iterdir()} == expected == {Path(r["file"]).name for r in rows}
    assert all(Path(row["file"]).stat().st_size == row["bytes"] > 0 for row in rows)
    assert "is there already" in run("figures", folder, "--out", out).error_line
    one = next(folder.glob("*nnp_i-random-0"))
    shown = run("figures", one, "--out", out, "--overwrite")
    assert shown.exit == 0 and shown.out.count("wrote") == 5


def test_what_can_not_be_drawn(run: Any, folder: Path, tmp_path: Path) -> None:
    assert "nothing to draw" in run("figures").error_line
    wrong = run("figures", folder, "--format", "pgn", "--out", tmp_path).error_line
    assert "did you mean 'png'?" in wrong
    assert "there is no run in" in run("figures", tmp_path, "--out", tmp_path / "x").error_line
    run_solver(toy.Climb(), toy.Toy(), Budget(20), 3, folder=tmp_path / "toys")
    assert run("figures", tmp_path / "toys", "--out", tmp_path / "x").exit == 2
