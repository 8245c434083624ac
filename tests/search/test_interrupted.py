"""Every registered solver, interrupted after any evaluation and resumed, makes the unbroken run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loadmaster.errors import MissingPackage
from loadmaster.runs import run_solver
from loadmaster.runs.observer import RunObserver
from loadmaster.search.solver import Budget, Meter, Solution
from solver_cases import CASES, Case
from unbroken import difference

Hook = Callable[[Meter], None]


class Counted:
    """`Meter.evaluations` that calls hooks when the count of a run gets so far."""

    def __init__(self) -> None:
        self.hooks: dict[int, Hook] = {}

    def __get__(self, meter: Meter, owner: type) -> int:
        return meter.__dict__["evaluations"]

    def __set__(self, meter: Meter, count: int) -> None:
        before = meter.__dict__.get("evaluations", count)
        meter.__dict__["evaluations"] = count
        if isinstance(meter.observer, RunObserver):
            for number in [n for n in self.hooks if before < n <= count]:
                self.hooks.pop(number)(meter)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()
    monkeypatch.setattr(Meter, "evaluations", found, raising=False)
    monkeypatch.setattr("loadmaster.runs.observer._SLOW_CHECK", float("inf"))
    return found


def solved(
    case: Case, folder: Path | None = None, resume: Path | None = None, evaluations: int | None = None
) -> Solution:
    """A session with a checkpoint wherever the solver offers one."""
    budget = Budget(evaluations or case.evaluations)
    return run_solver(
        case.solver(), case.problem(), budget, 3, folder=folder, resume=resume, checkpoint_seconds=0.0
    )


def ask(meter: Meter) -> None:
    meter.observer.stop = True


def insist(meter: Meter) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("case", CASES, ids=str)
def test_interrupted_is_unbroken(
    case: Case, tmp_path: Path, counted: Counted, request: pytest.FixtureRequest
) -> None:
    if not case.solver().deterministic:
        pytest.skip("it says that it is not deterministic")
    if case.learned:
        request.getfixturevalue("quickly_compiled")

    def kill(meter: Meter) -> None:
        """What is on the disk now is what is left of a process that is killed now."""
        observer = meter.observer
        assert isinstance(observer, RunObserver) and observer.run is not None
        copies.append(Path(shutil.copytree(observer.run.path, tmp_path / f"killed-{len(copies)}")))

    copies: list[Path] = []
    try:
        # Those that are compiled go on to the end of their budget, and each run of them takes long.
        count = case.evaluations if case.learned else solved(case, tmp_path / "first").evaluations
    except MissingPackage as missing:
        pytest.skip(missing.message)
    places = {count // 3} if case.learned else {1, 2, count // 3, 2 * count // 3, count}
    counted.hooks = dict.fromkeys(sorted(places & set(range(1, count + 1))), kill)
    whole = solved(case, tmp_path / "whole")
    unbroken = whole.run
    assert (whole.evaluations == count or case.learned) and not counted.hooks
    for first in () if case.learned else (tmp_path / "first").iterdir():
        assert difference(first, unbroken) is None, "another run of the same seed"
    for copy in copies:
        again = solved(case, resume=copy)
        assert difference(copy, unbroken) is None, copy.name
        _same(again, whole)
    ways = [("asked", ask, count // 2), ("insisted", insist, 2 * count // 3)]
    for name, hook, place in ways[: 1 if case.learned else 2] if count else ():
        counted.hooks = {max(1, place): hook}
        try:
            broken = solved(case, tmp_path / name)
            assert broken.stop == "interrupted"
        except KeyboardInterrupt:
            assert hook is insist
        run = next((tmp_path / name).iterdir())
        again = solved(case, resume=run)
        assert difference(run, unbroken) is None, name
        _same(again, whole)
    _left_alone(case, unbroken, whole)
    if count > 2:
        _extended(case, tmp_path / "part", whole, count // 2)


def _extended(case: Case, folder: Path, whole: Solution, evaluations: int) -> None:
    """A larger budget later is as good as one from the start, or else the solver says so."""
    part = solved(case, folder, evaluations=evaluations)
    rest = solved(case, resume=part.run)
    if getattr(case.solver(), "scheduled", False):
        assert "plans by its budget" in rest.warnings[0]
        return
    assert difference(rest.run, whole.run) is None, "extended"
    _same(rest, whole)


def _same(again: Solution, whole: Solution) -> None:
    found = (again.status, again.value, again.bound, again.evaluations, again.stop)
    assert found == (whole.status, whole.value, whole.bound, whole.evaluations, whole.stop)


def _left_alone(case: Case, run: Path, whole: Solution) -> None:
    """A run that has ended is not touched by another session with the same budget."""
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}
    _same(solved(case, resume=run), whole)
    assert files == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()
    }
