"""Folders that were damaged, swapped or forged: one clear error, or a step back with a warning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
from loadmaster.errors import LoadmasterError
from loadmaster.runs import RunFolder, run_solver
from loadmaster.runs.replay import replay
from loadmaster.search.registry import load_problem
from loadmaster.search.solver import Budget, Solution


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("runs")
    solution = run_solver(toy.Climb(), toy.Toy(), Budget(205), 3, folder=parent, checkpoint_seconds=0.0)
    return solution.run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "moved elsewhere"))


def resumed(run: Path, evaluations: int = 400) -> Solution:
    return run_solver(toy.Climb(), toy.Toy(), Budget(evaluations), 3, resume=run, checkpoint_seconds=0.0)


def whole() -> Solution:
    return run_solver(toy.Climb(), toy.Toy(), Budget(400), 3)


def numbers(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


FILES = ["run.json", "program.npz", "machine.toml", "log.jsonl"]


CASES = [(name, how) for name in FILES for how in ("missing", "link", "folder", "damaged")]
CASES += [(name, how) for name in ("plans", "checkpoints") for how in ("missing", "link")]


@pytest.mark.parametrize(("name", "how"), [*CASES, ("toy.json", "missing"), ("toy.json", "link")])
def test_a_file_that_is_not_what_it_should_be(run: Path, name: str, how: str) -> None:
    path = run / name
    kept = path.rename(run.parent / "kept")
    if how == "link":
        path.symlink_to(kept)
    elif how == "folder":
        path.mkdir()
    elif how == "damaged":
        path.write_bytes(b'{"seq": 1}\n\n')
    with pytest.raises(LoadmasterError) as caught:
        replay(RunFolder.open(run))
    assert caught.value.exit_code == 2 and caught.value.object and caught.value.remedy
    if how != "damaged" and name != "toy.json":
        with pytest.raises(LoadmasterError):
            resumed(run)


@pytest.mark.parametrize("text", ["[]", "{}", "[" * 100_000, '{"loadmaster_run": 1}', "\0", "{"])
def test_a_run_json_of_another_kind(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    for open_it in (RunFolder.open, load_problem):
        with pytest.raises(LoadmasterError) as caught:
            open_it(run)
        assert caught.value.exit_code == 2


def test_another_runs_program_or_problem(run: Path) -> None:
    toy.Toy(toy.toy_program(seed=5)).save(run)
    from loadmaster.program import save

    save(toy.toy_program(seed=5), run / "program.npz")
    with pytest.raises(LoadmasterError, match="holds another program than"):
        load_problem(run)


def test_an_unknown_kind_of_problem(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    about["keys"]["problem"]["kind"] = "os:system"
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(LoadmasterError, match="unknown kind of problem 'os:system'"):
        load_problem(run)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _foreign(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["identity"] = "0" * 64
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def _linked(checkpoint: Path) -> None:
    kept = checkpoint.parent.parent / "kept"
    checkpoint.rename(kept)
    checkpoint.symlink_to(kept)


DAMAGE: dict[str, Any] = {
    "state": lambda place: _flip(place / "solver.npz"),
    "best": lambda place: _flip(place / "meter.npz"),
    "manifest": lambda place: _flip(place / "manifest.json"),
    "missing": lambda place: (place / "solver.npz").unlink(),
    "short": lambda place: (place / "solver.npz").write_bytes(b"PK"),
    "no manifest": lambda place: (place / "manifest.json").unlink(),
    "foreign": _foreign,
    "link": _linked,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_checkpoint_is_passed_over(run: Path, damage: str) -> None:
    last, before = numbers(run)[-1], numbers(run)[-2]
    DAMAGE[damage](run / "checkpoints" / str(last))
    solution = resumed(run)
    assert len(solution.warnings) == 1
    assert f"checkpoint {last} can't be used" in solution.warnings[0]
    lines = RunFolder.open(run).read_log().lines
    taken = next(line for line in lines if line["event"] == "resume")
    assert taken["from_checkpoint"] == f"checkpoints/{before}" and taken["from_evals"] == 190
    expected = whole()
    assert np.array_equal(solution.decision, expected.decision)  # type: ignore[arg-type]


def test_without_any_good_checkpoint_it_starts_over(run: Path) -> None:
    for number in numbers(run):
        _flip(run / "checkpoints" / str(number) / "solver.npz")
    solution = resumed(run)
    assert solution.value == whole().value and len(solution.warnings) >= 3


def test_a_truncated_log_goes_on(run: Path) -> None:
    log = run / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-200])
    solution = resumed(run)
    assert solution.value == whole().value and not replay(RunFolder.open(run)).broken


def test_a_lost_log_is_found_again_from_the_checkpoint(run: Path) -> None:
    lines = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
    (run / "log.jsonl").write_bytes(b"".join(lines[:3]))
    assert resumed(run).value == whole().value
    assert not replay(RunFolder.open(run)).broken


def test_a_best_plan_that_was_changed_is_not_taken_up(run: Path) -> None:
    for path in (run / "plans").iterdir():
        path.write_text(path.read_text().replace('"offset": 0', '"offset": 1', 1))
    with pytest.raises(LoadmasterError, match="was changed"):
        resumed(run)


def test_a_run_that_is_being_written_is_not_resumed(run: Path) -> None:
    writer = RunFolder.open(run, write=True)
    with pytest.raises(LoadmasterError, match="is being written by another process"):
        resumed(run)
    assert RunFolder.open(run).read_log().lines
    writer.close()
    resumed(run)
