"""One solver on one cell, counted: what is measured while a solver works, and the row it gives."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.suites import Row
from benchmarks.suites.mapping_cells import Cell
from benchmarks.suites.problems import make_as
from loadmaster.errors import MissingPackage
from loadmaster.mapping.auto import WHITE_BOX
from loadmaster.mapping.problem import Mapping
from loadmaster.planner import solve_checked
from loadmaster.search.champion import remeasure
from loadmaster.search.problem import Decision, Scores
from loadmaster.search.solver import Budget, Meter, Observer, Solution

EXACT_SECONDS = 300.0
GAIN = 0.95
Curve = list[tuple[int, int]]
"""(evaluations, best value so far) at every improvement."""


class CountedMapping(Mapping):
    """Counts what is submitted to it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.submitted = self.unfit = 0
        self.first_valid_at: int | None = None
        self.score_seconds = 0.0
        self._seen: set[bytes] = set()

    @property
    def unique(self) -> int:
        """Different maps among those submitted."""
        return len(self._seen)

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        started = time.perf_counter()
        scores = super().score(decisions, first)
        self.score_seconds += time.perf_counter() - started
        maps = np.where(self.live, decisions, self.slowest).astype(np.int8)
        self._seen.update(row.tobytes() for row in maps)
        fits = np.flatnonzero(scores.value >= 0)
        if self.first_valid_at is None and len(fits):
            self.first_valid_at = self.submitted + int(fits[0]) + 1
        self.submitted += len(maps)
        self.unfit += len(maps) - len(fits)
        return scores


class Improvements(Observer):
    """Keeps the curve."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: Curve = []

    def wants_checkpoint(self, meter: Meter) -> bool:
        return False  # to gather a state takes time that is not the solver's

    def improved(self, meter: Meter) -> None:
        assert meter.best_value is not None
        self.curve.append((meter.evaluations, meter.best_value))


def run_cell(
    cell: Cell,
    solver: str,
    seed: int,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    observer: Improvements | None = None,
) -> Row:
    """One solver in one cell with one seed; the checker passes the plan before it is a row.

    `budget` replaces the cell's evaluations, `seconds` the limit of the exact solver.
    """
    white, observer = solver in WHITE_BOX, observer or Improvements()
    cell = replace(cell, budget=budget or cell.budget)
    limits = Budget(None if white else cell.budget, (seconds or EXACT_SECONDS) if white else None)
    try:
        problem = cell.load_as(CountedMapping)
        found = solve_checked(
            problem, solver, limits, seed, options={} if white else cell.solver, observer=observer
        )
    except MissingPackage as error:
        return Row(
            cell.case,
            0.0,
            "ps",
            "skipped",
            machine=cell.machine,
            solver=solver,
            seed=seed,
            extra={"reason": error.message},
        )
    if found.solution.decision is not None and not problem.repeatable:
        champion = remeasure(problem, seed=seed)  # the best of many noisy values is optimistic
        bound = make_as(Mapping, problem.program, problem.machine).bound()
        best = replace(
            found.solution, decision=champion.winner.decision, value=champion.simulated_ps, bound=bound
        )
        found = replace(found, solution=best)
    solution, value = found.solution, found.solution.value
    return Row(
        cell.case,
        float(-1 if value is None else value),
        "ps",
        found.status,
        machine=cell.machine,
        solver=solver,
        seed=seed,
        evaluations=0 if white else solution.evaluations,
        seconds=found.seconds,
        baseline=float(problem.compiler_ps),
        bound=float(solution.bound.value),
        gap=None if value is None else value / solution.bound.value - 1,
        extra=_extra(cell, problem, solution, observer.curve, value, white),
    )


def _extra(
    cell: Cell, problem: CountedMapping, solution: Solution, curve: Curve, value: int | None, white: bool
) -> dict[str, Any]:
    slowest = problem.evaluate(problem.all_slowest())
    assert slowest is not None
    known = {
        "model": cell.model,
        "white_box": white,
        "all_slowest": slowest,
        "best_speedup": 0.0 if value is None else problem.compiler_ps / value,
        "bound_by": solution.bound.method,
        "budget": None if white else cell.budget,
    }
    if white:
        return known
    known |= {"options": cell.solver} if cell.solver else {}
    bound = solution.bound.value
    metrics = {name: content for name, content in solution.metrics.items() if _plain(content)}
    return (
        metrics
        | known
        | {
            "first_valid_at": problem.first_valid_at,
            "to_5pct": reached(curve, 1.05 * bound),
            "to_1pct": reached(curve, 1.01 * bound),
            "to_95pct_of_gain": to_gain(curve, slowest),
            "invalid_fraction": problem.unfit / max(1, problem.submitted),
            "unique_maps": problem.unique,
            "hardware_runs": problem.submitted - problem.unfit,
            "score_seconds": problem.score_seconds,
            "curve": curve,
        }
    )


def reached(curve: Curve, value: float) -> int | None:
    """Evaluations until a map was as good as that; None: never."""
    return next((evaluations for evaluations, best in curve if best <= value), None)


def to_gain(curve: Curve, slowest: int, share: float = GAIN) -> int | None:
    """Evaluations until that share of the final gain: the speed-up beyond all in the slowest memory."""
    if not curve:
        return None
    final = curve[-1][1]
    gain = share * (1 / final - 1 / slowest)
    return next(evaluations for evaluations, best in curve if 1 / best - 1 / slowest >= gain)


def _plain(content: Any) -> bool:
    """Whether JSON has it."""
    if isinstance(content, dict):
        return all(isinstance(key, str) and _plain(value) for key, value in content.items())
    return content is None or isinstance(content, bool | int | float | str)
