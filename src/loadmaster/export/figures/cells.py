"""Run folders read for pictures: runs of one problem make a cell, runs of one solver a group."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from loadmaster.export.figures.data import Improvements, Maps
from loadmaster.problems.mapping import Mapping
from loadmaster.problems.measured import MeasuredMapping
from loadmaster.problems.measuring import picoseconds
from loadmaster.problems.registry import load_problem
from loadmaster.runs.folder import RunFolder
from loadmaster.runs.history import History
from loadmaster.runs.log import BadRun

WHITE_BOX = ("all-slowest", "role-split", "compiler", "density", "exact")
"""Solvers that read the program: they have no learning curve."""


@dataclass(frozen=True)
class MapRun:
    """What pictures need of one run."""

    solver: str
    switches: str
    """As JSON: runs of one solver with other settings are another group."""
    seed: int
    evaluations: int
    improvements: Improvements
    maps: list[tuple[int, Maps]]
    """(value, map) of each improvement that was checked and stored, the best last."""


@dataclass
class Cell:
    """All runs of one problem."""

    problem: Mapping
    bound_ps: int
    """The best that any of the runs, or the problem itself, knows; 0: nothing is proven."""
    runs: list[MapRun] = field(default_factory=list)
    measured_ps: int | None = None
    """What the latest of the runs measured for the compiler's map, where times are measured."""

    @property
    def name(self) -> str:
        return f"{self.problem.program.name} on {self.problem.machine.name}"

    @property
    def compiler_ps(self) -> int | None:
        """The time of the compiler's map; None where it was measured and no log has it. Pictures
        are drawn from what a run has: nothing is measured for them."""
        if isinstance(self.problem, MeasuredMapping):
            return self.measured_ps
        return self.problem.compiler_ps

    @property
    def reference(self) -> tuple[str, int]:
        """What speed-ups are over: the compiler's map, or, should its time not be known, the slowest
        that was found."""
        known = self.compiler_ps
        if known is not None:
            return "compiler", known
        return "the slowest map found", max((v for run in self.runs for _, v in run.improvements), default=1)

    def groups(self) -> dict[str, list[MapRun]]:
        """Runs by solver, in the order they came; settings are named where one name has several."""
        settings: dict[str, list[str]] = {}
        for run in self.runs:
            known = settings.setdefault(run.solver, [])
            if run.switches not in known:
                known.append(run.switches)
        found: dict[str, list[MapRun]] = {}
        for run in self.runs:
            number = settings[run.solver].index(run.switches)
            found.setdefault(run.solver + (f" #{number + 1}" if number else ""), []).append(run)
        return found

    def best_maps(self) -> dict[str, tuple[int, Maps]]:
        """The best map of each group that has one."""
        best = {
            name: min((run.maps[-1] for run in runs if run.maps), key=lambda pair: pair[0])
            for name, runs in self.groups().items()
            if any(run.maps for run in runs)
        }
        return best


def find_runs(paths: list[Path]) -> list[Path]:
    """The run folders among these, and in those that hold run folders."""
    found: list[Path] = []
    for path in paths:
        inside = [path] if (path / "run.json").exists() else sorted(path.glob("*/run.json"))
        if not inside:
            raise BadRun(
                f"there is no run in '{path}'",
                object=str(path),
                remedy="give a run's folder, or a folder of runs",
            )
        found += [file if file == path else file.parent for file in inside]
    return list(dict.fromkeys(found))


def read_cells(paths: list[Path]) -> list[Cell]:
    """The cells of these runs, in the order of their first runs."""
    cells: dict[str, Cell] = {}
    for path in find_runs(paths):
        run = RunFolder.open(path)
        key = json.dumps(run.about["keys"], sort_keys=True)
        if key not in cells:
            problem = load_problem(path)
            if not isinstance(problem, Mapping):
                raise BadRun(
                    f"run '{path}' is about {problem.kind}",
                    object=str(path),
                    remedy="give runs about mapping, or games",
                )
            cells[key] = Cell(problem, problem.bound().value)
        _add(cells[key], run)
    return list(cells.values())


def _add(cell: Cell, run: RunFolder) -> None:
    history = History(run.read_log().lines)
    if history.bound is not None:
        cell.bound_ps = max(cell.bound_ps, history.bound.value)
    cell.measured_ps = _baseline_ps(history) or cell.measured_ps
    problem, maps = cell.problem, []
    for line in history.improvements:
        decision = problem.decision(run.load_plan(line["plan"], problem))
        maps.append((int(line["value"]), decision))
    solver = run.about["solver"]
    cell.runs.append(
        MapRun(
            str(solver.get("name")),
            json.dumps(solver.get("switches"), sort_keys=True),
            run.about["seed"],
            history.evaluations,
            history.curve,
            maps,
        )
    )


def _baseline_ps(history: History) -> int | None:
    """What a run measured for the compiler's map: the last time that it was the baseline, on the
    first board; else when known methods were compared, before the search."""
    found = [line for line in history.of("measure") if line["what"] == "baseline"]
    found = [line for line in found if line["seconds"] and min(line["seconds"]) > 0]
    if found:
        first = next(line for line in found if line["evaluation"] == found[-1]["evaluation"])
        return picoseconds(statistics.median(first["seconds"]))
    known = [line["value"] for line in history.of("baseline") if line["name"] == "compiler"]
    return known[-1] if known and known[-1] > 0 else None
