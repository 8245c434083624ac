"""`runs`, `compare`, `replay` and `solvers` as users call them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
from loadmaster.plan import save_plan
from loadmaster.runs import run_solver
from loadmaster.search.registry import kinds
from loadmaster.search.solver import Budget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("cli") / "runs"
    for solver, problem, count in (
        (toy.Climb(), toy.Toy(), 200),
        (toy.Plain(), toy.Toy(), 30),
        (toy.Plain(), toy.Toy(slack=7), 30),
    ):
        run_solver(solver, problem, Budget(count), 3, folder=parent)
    return parent


@pytest.fixture
def paths(folder: Path, tmp_path: Path) -> list[Path]:
    copied = Path(shutil.copytree(folder, tmp_path / "runs"))
    return [next(copied.glob("*-climb-3")), *sorted(copied.glob("*-plain-3*"))]


def test_runs(run: Any, run_json: Any, folder: Path) -> None:
    rows = run_json("runs", folder, "--sort", "gap")["rows"]
    assert len(rows) == 3 and [r["gap"] for r in rows] == sorted(r["gap"] for r in rows)
    assert rows[0]["solver"] == "climb" and rows[0]["state"] == "budget" and rows[0]["evaluations"] == 200
    shown = run("runs", folder)
    assert shown.exit == 0 and shown.out.count("\n") == 4 and "evaluations" in shown.out
    assert len(run_json("runs", next(folder.iterdir()))["rows"]) == 1


def test_runs_passes_over_what_is_broken(run: Any, run_json: Any, paths: list[Path]) -> None:
    (paths[0] / "log.jsonl").write_text("x\n\n")
    (paths[1] / "run.json").unlink()
    (paths[0].parent / "notes").mkdir()
    document = run_json("runs", paths[0].parent)
    assert len(document["rows"]) == 1 and len(document["warnings"]) == 2
    assert "line 1" in document["warnings"][0] and "no run.json" in document["warnings"][1]
    empty = paths[0].parent / "notes"
    assert "no runs in" in run("runs", empty).out
    assert "there is no folder 'nowhere'" in run("runs", "nowhere").error_line
    assert "did you mean 'gap'?" in run("runs", empty, "--sort", "gapp").error_line


def test_replay(run: Any, run_json: Any, paths: list[Path]) -> None:
    assert "claims hold" in run("replay", paths[0]).out
    document = run_json("validate", paths[0] / "best.json")
    assert len(document["rows"]) == 1 and document["rows"][0]["holds"]
    plan = next((paths[0] / "plans").iterdir())
    assert run("replay", plan).exit == 0 and run("replay", paths[0] / "log.jsonl").exit == 0
    plan.write_text(plan.read_text().replace('"offset": 0', '"offset": 9', 1))
    refused = run_json("replay", paths[0])
    assert refused["exit"] == 1 and "do not hold" in refused["error"]["message"]
    assert run("replay", plan).exit == 1
    assert "neither a run nor a file inside one" in run("replay", "nowhere").error_line
    (paths[1] / "program.npz").write_bytes(b"")
    assert run("replay", paths[1]).exit == 2


def test_replay_says_claimed_and_now(run: Any, paths: list[Path]) -> None:
    log = paths[1] / "log.jsonl"
    log.write_text(
        log.read_text().replace('"event": "improve", "value": 1', '"event": "improve", "value": 2', 1)
    )
    result = run("replay", paths[1])
    assert result.exit == 1 and "claimed 2" in result.out and ", now 1" in result.out


def test_compare(run: Any, run_json: Any, paths: list[Path], tmp_path: Path) -> None:
    rows = run_json("compare", paths[0], paths[1])["rows"]
    sides = [row for row in rows if row["what"] == "side"]
    assert sides[0]["value"] < sides[1]["value"] and sides[0]["evaluations_to_others_best"] <= 200
    assert sides[1]["evaluations_to_others_best"] is None
    offsets = next(row for row in rows if row.get("name") == "offsets changed")
    assert offsets["count"] > 0 and offsets["bytes"] > 0
    assert len([row for row in rows if row["what"] == "tensor"]) == min(10, offsets["count"])
    shown = run("compare", paths[0], paths[1])
    assert "offsets changed" in shown.out and "gap" in shown.out
    assert "the plans are equal" in run("compare", paths[0], paths[0] / "best.json").out


def test_compare_at_equal_keys_only(run: Any, run_json: Any, paths: list[Path], tmp_path: Path) -> None:
    refused = run("compare", paths[0], paths[2])
    assert refused.exit == 2 and "they differ in problem (slack)" in refused.error_line
    forced = run_json("compare", paths[0], paths[2], "--force")
    assert forced["exit"] == 0 and "problem (slack)" in forced["warnings"][0]
    other = toy.Toy(toy.toy_program(seed=8))
    plan = other.plan(other.place(np.arange(len(other.roots))))
    save_plan(plan, other.program, other.machine, tmp_path / "other.json")
    assert "they differ in program" in run("compare", paths[0], tmp_path / "other.json").error_line
    alone = run_json("compare", tmp_path / "other.json", tmp_path / "other.json")
    assert alone["rows"][0]["value"] is None and "no values" in alone["warnings"][0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"loadmaster_plan": 1, "copies": [3]}', "\0"])
def test_compare_with_something_else(run: Any, paths: list[Path], tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert "neither a run nor a plan" in run("compare", paths[0], tmp_path / "x.json").error_line
    assert run("compare", paths[0], tmp_path / "gone").exit == 2


def test_solvers(run: Any, run_json: Any) -> None:
    rows = run_json("solvers")["rows"]
    assert {"exact", "heuristic"} <= {row["name"] for row in rows}
    assert all(row["summary"] and row["problem"] in kinds() for row in rows)
    assert {row["problem"] for row in rows} == {
        "allocation",
        "mapping",
        "malloc-game",
        "graph",
        "order",
        "offload",
    }
    one = run("solvers", "heuristic")
    assert one.exit == 0 and "same seed, same answer" in one.out and "first-fit" in one.out
    assert "--solver heuristic --set rule=first-fit" in run("solvers", "first-fit").error_line
    assert "did you mean 'exact'?" in run("solvers", "exactt").error_line
