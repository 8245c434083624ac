"""The numbers behind the pictures of Mapping runs; nothing is drawn here.

Run folders are read into cells: runs of one problem make a cell, runs of one solver a group.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadmaster.mapping.features import edges
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.runs.folder import RunFolder
from loadmaster.runs.history import History
from loadmaster.runs.log import BadRun
from loadmaster.search.measuring import picoseconds
from loadmaster.search.registry import load_problem

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Maps = npt.NDArray[np.int8]
Improvements = Sequence[tuple[int, int]]
"""(evaluations, value in picoseconds) of each improvement of a run, in order."""


@dataclass(frozen=True)
class Curves:
    """The best speed-up so far of several runs of one solver, on one grid of evaluations."""

    at: Int64
    """[G] numbers of evaluations at which something changes, from 0 to the end."""
    runs: Float64
    """[runs, G]; 0 before a run's first legal map, held after its last improvement."""

    @property
    def mean(self) -> Float64:
        mean: Float64 = self.runs.mean(axis=0)
        return mean

    @property
    def deviation(self) -> Float64:
        """The sample standard deviation; 0 for one run."""
        if len(self.runs) < 2:
            return np.zeros(len(self.at))
        deviation: Float64 = self.runs.std(axis=0, ddof=1)
        return deviation


def collect_learning_curves(runs: Sequence[Improvements], compiler_ps: int, end: int) -> Curves:
    """Curves of the runs of one solver up to `end` evaluations."""
    changes = {count for run in runs for count, _ in run if count <= end}
    at = np.array(sorted({0, end} | changes), dtype=np.int64)
    rows = np.zeros((len(runs), len(at)))
    for row, run in zip(rows, runs, strict=True):
        for count, value in run:
            row[at >= count] = compiler_ps / max(value, 1)
    return Curves(at, rows)


@dataclass(frozen=True)
class Transitions:
    """Where tensors went between two maps: rows the memory before, columns the one after."""

    bytes: Int64
    """[M, M]"""
    count: Int64
    """[M, M]"""


def count_transitions(problem: Mapping, before: Maps, after: Maps) -> dict[str, Transitions]:
    """For 'weights' and 'activations' apart; entries that decide nothing are left out."""
    nodes, memories = problem.nodes, len(problem.memories)
    is_weight = np.arange(2 * nodes) >= nodes
    found = {}
    for name, chosen in (("weights", is_weight), ("activations", ~is_weight)):
        entry = np.flatnonzero(chosen & problem.live)
        cell = before[entry].astype(np.int64) * memories + after[entry]
        size, count = np.zeros((2, memories * memories), dtype=np.int64)
        np.add.at(size, cell, problem.entries.bytes[entry])
        np.add.at(count, cell, 1)
        shape = (memories, memories)
        found[name] = Transitions(size.reshape(shape), count.reshape(shape))
    return found


def measure_distances(problem: Mapping, maps: Maps) -> Float64:
    """[B, B] the share of the decided bytes that two maps place differently."""
    share = np.where(problem.live, problem.entries.bytes, 0).astype(np.float64)
    share /= max(1.0, float(share.sum()))
    same = np.zeros((len(maps), len(maps)))
    for memory in range(len(problem.memories)):
        here = (maps == memory).astype(np.float64)
        same += (here * share) @ here.T
    apart: Float64 = np.clip(1.0 - same, 0.0, 1.0)
    np.fill_diagonal(apart, 0.0)
    return apart


def scale_to_plane(apart: Float64) -> tuple[Float64, float]:
    """[B, 2] points by classical multidimensional scaling, and the share of the (positive)
    variance that two dimensions show."""
    count = len(apart)
    centre = np.eye(count) - 1.0 / max(1, count)
    values, vectors = np.linalg.eigh(-0.5 * centre @ (apart**2) @ centre)
    order = np.argsort(values)[::-1][:2]
    points = np.zeros((count, 2))
    for axis, which in enumerate(order):
        vector = vectors[:, which]
        # An eigenvector's sign is arbitrary: its largest part points up, so pictures repeat.
        vector = vector * np.sign(vector[np.argmax(np.abs(vector))])
        points[:, axis] = vector * np.sqrt(max(0.0, float(values[which])))
    positive = float(np.clip(values, 0, None).sum())
    explained = float(np.clip(values[order], 0, None).sum())
    return points, explained / positive if positive > 0 else 1.0


@dataclass(frozen=True)
class Contiguity:
    """How far a map keeps neighbours together; None where there are no neighbours."""

    activations: float | None
    """The share of edges whose two activations are in one memory."""
    weights: float | None
    """The share of weights that are in the memory of the weights before them."""


def measure_contiguity(problem: Mapping, decision: Maps) -> Contiguity:
    """Of one map."""
    nodes, live = problem.nodes, problem.live
    source, target = edges(problem)
    decided = live[source] & live[target]
    together = decision[source[decided]] == decision[target[decided]]
    weights = decision[nodes:][live[nodes:]]
    follows = weights[1:] == weights[:-1]
    return Contiguity(
        float(together.mean()) if len(together) else None, float(follows.mean()) if len(follows) else None
    )


WHITE_BOX = ("all-slowest", "role-split", "compiler", "density", "exact")
"""Solvers that read the program: they have no learning curve."""


@dataclass(frozen=True)
class MapRun:
    """What pictures need of one run."""

    solver: str
    options: str
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
            if run.options not in known:
                known.append(run.options)
        found: dict[str, list[MapRun]] = {}
        for run in self.runs:
            number = settings[run.solver].index(run.options)
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
            json.dumps(solver.get("options"), sort_keys=True),
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
