"""Logs as TensorBoard's event files: read back by TensorBoard itself, they say what the logs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard")

import toy
from loadmaster.export.viewers import export_log, list_scalars
from loadmaster.runs import run_solver
from loadmaster.runs.log import Log, read_log
from loadmaster.search.solver import Budget

Point = tuple[int, float]


def shown(folder: Path) -> dict[str, list[Point]]:
    """(step, number) by name, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    board.Reload()
    return {
        tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]
    }


def wanted(path: Path) -> dict[str, list[Point]]:
    """The same, of a log."""
    found: dict[str, list[Point]] = {}
    for line in read_log(path).lines:
        for name, value in list_scalars(line):
            found.setdefault(name, []).append((line["evals"], value))
    return found


def same(a: dict[str, list[Point]], b: dict[str, list[Point]]) -> None:
    assert set(a) == set(b)
    for name, points in a.items():
        assert [step for step, _ in points] == [step for step, _ in b[name]], name
        assert [x for _, x in points] == pytest.approx([x for _, x in b[name]], rel=1e-6), name


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A log as training writes it."""
    log = Log(tmp_path / "policy.log.jsonl", create=True)
    for step in range(5):
        metrics = {"policy_loss": 3.0 / (1 + step), "steps": 16 * step, "odd": None, "odder": True}
        log.append(
            "progress",
            2.5 * step,
            64 * step,
            best=None,
            bound=None,
            gap=0.5 - 0.1 * step,
            evals_per_s=25.6,
            metrics=metrics,
        )
    log.close()
    return tmp_path / "policy.log.jsonl"


def test_events_are_what_the_log_says(training: Path, tmp_path: Path) -> None:
    lines = read_log(training).lines
    count = export_log(lines, tmp_path / "board", "2026-01-02T03:04:05+00:00")
    found = shown(tmp_path / "board")
    same(found, wanted(training))
    assert set(found) == {"run/gap", "run/evals_per_s", "metrics/policy_loss", "metrics/steps"}
    assert count == sum(map(len, found.values())) == 20
    assert found["metrics/steps"][-1] == (256, 64.0)


def test_runs_become_boards(run: Any, run_json: Any, training: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for seed in (3, 4):
        run_solver(toy.Climb(), toy.Toy(), Budget(200), seed, folder=folder)
    training.rename(folder / training.name)
    (folder / "broken").mkdir()
    (folder / "broken" / "log.jsonl").write_text("x\n\n")
    board = tmp_path / "board"
    document = run_json("runs", folder, "--tensorboard", board)
    assert len(document["rows"]) == 2 and len(document["warnings"]) == 1
    names = [row["run"] for row in document["rows"]]
    assert sorted(path.name for path in board.iterdir()) == sorted([*names, "policy"])
    for name in names:
        found = shown(board / name)
        same(found, wanted(folder / name / "log.jsonl"))
        assert "run/best" in found and "run/bound" in found
        best = json.loads((folder / name / "log.jsonl").read_text().splitlines()[-1])["best"]
        assert found["run/best"][-1][1] == pytest.approx(best)
    same(shown(board / "policy"), wanted(folder / "policy.log.jsonl"))
    assert "is there already" in run("runs", folder, "--tensorboard", board).err
    again = run("runs", folder, "--tensorboard", board, "--overwrite")
    assert again.exit == 0 and again.out.count("wrote") == 3
    same(shown(board / "policy"), wanted(folder / "policy.log.jsonl"))
