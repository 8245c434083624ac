"""One solver on one cell, counted: what is measured while a solver works, and the row it gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.suites import Row
from benchmarks.suites.mapping_cells import Cell
from benchmarks.suites.mapping_solvers import VARIANTS, is_white, make_cell_solver
from benchmarks.suites.mapping_wrong import Misdescribed
from benchmarks.suites.problems import make_as
from loadmaster.arrays import Float64, Int8
from loadmaster.errors import MissingPackage
from loadmaster.mapping.decoder import Decoder
from loadmaster.mapping.problem import Mapping
from loadmaster.planner import solve_checked
from loadmaster.search.champion import remeasure
from loadmaster.search.problem import Decision, Scores, recorded_row
from loadmaster.search.registry import UnknownSolver
from loadmaster.search.solver import Budget, Meter, Observer, Solution

EXACT_SECONDS = 300.0
AT = (1, 4, 50, 200, 1_000)
"""Evaluations after which the best value is kept."""
AT_SECONDS = (0.1, 0.3, 1.0, 3.0)
Curve = list[tuple[int, int]]
"""(evaluations, best value so far) at every improvement."""
Clock = list[tuple[float, int]]
"""(seconds, best value so far)."""


class CountedMapping(Misdescribed):
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


@contextmanager
def counting_decoded() -> Iterator[list[int]]:
    """Counts the maps that decoders make meanwhile: each of them is looked at for what fits, evaluated or not."""
    decoded, original = [0], Decoder.decode

    def decode(self: Decoder, scores: Float64, **options: Any) -> Int8:
        decoded[0] += len(scores)
        return original(self, scores, **options)

    with patch.object(Decoder, "decode", decode):
        yield decoded


class Improvements(Observer):
    """Keeps the curve."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: Curve = []
        self.clock: Clock = []

    def wants_checkpoint(self, meter: Meter) -> bool:
        return False  # to gather a state takes time that is not the solver's

    def improved(self, meter: Meter) -> None:
        assert meter.best_value is not None
        self.curve.append((meter.evaluations, meter.best_value))
        self.clock.append((meter.seconds, meter.best_value))


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
    white, observer = is_white(solver), observer or Improvements()
    cell = replace(cell, budget=budget or cell.budget)
    if white:
        limits = Budget(seconds=seconds or EXACT_SECONDS)
    else:
        limits = Budget(None if cell.seconds else cell.budget, cell.seconds)
    try:
        problem = cell.load_as(CountedMapping, seed)
        made = make_cell_solver(solver, None if white else cell.solver)
        with counting_decoded() as decoded:
            found = solve_checked(problem, made, limits, seed, observer=observer)
    except (MissingPackage, UnknownSolver) as error:
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
        extra=_extra(cell, solver, problem, solution, observer, white)
        | ({} if white else {"legality_checks": max(decoded[0], problem.submitted)}),
    )


def _extra(
    cell: Cell, solver: str, problem: CountedMapping, solution: Solution, observer: Improvements, white: bool
) -> dict[str, Any]:
    slowest = problem.evaluate(problem.all_slowest())
    assert slowest is not None
    value = solution.value
    known: dict[str, Any] = {
        "model": cell.model,
        "white_box": white,
        "all_slowest": slowest,
        "best_speedup": 0.0 if value is None else problem.compiler_ps / value,
        "bound_by": solution.bound.method,
        "bound_proven": bound_proven(problem),
        "budget": None if white else cell.budget,
    }
    if white:
        return known
    options = {**VARIANTS.get(solver, {}), **cell.solver}
    known |= {"options": options} if options else {}
    metrics = {name: content for name, content in solution.metrics.items() if _plain(content)}
    # A value with noise says little: the champion's true one stands at the end of the budget.
    at = best_at(observer.curve, cell.budget) if problem.repeatable else {str(cell.budget): value}
    return {
        **metrics,
        **known,
        "at": at,
        "at_seconds": best_at_seconds(observer.clock),
        "first_seconds": observer.clock[0][0] if observer.clock else None,
        "first_valid_at": problem.first_valid_at,
        "invalid_fraction": problem.unfit / max(1, problem.submitted),
        "unique_maps": problem.unique,
        "hardware_runs": problem.submitted - problem.unfit,
        "score_seconds": problem.score_seconds,
        "curve": observer.curve,
    }


def bound_proven(problem: Misdescribed) -> bool:
    """Whether the bound on record is the value of a map."""
    row = recorded_row(problem.program, (problem.truth or problem).machine)
    return row is not None and bool(row["proven"])


def best_at(curve: Curve, budget: int | None) -> dict[str, int | None]:
    """Evaluations as text -> the best value after so many, for those within the budget; None: nothing yet.
    A search that ended early keeps what it had."""
    numbers = [number for number in AT if budget is None or number <= budget]
    return {str(number): _last(curve, number) for number in numbers}


def best_at_seconds(clock: Clock) -> dict[str, int | None]:
    """Seconds as text -> the best value after so many."""
    return {f"{seconds:g}": _last(clock, seconds) for seconds in AT_SECONDS}


def _last(curve: Curve | Clock, until: float) -> int | None:
    return next((value for at, value in reversed(curve) if at <= until), None)


def _plain(content: Any) -> bool:
    """Whether JSON has it."""
    if isinstance(content, dict):
        return all(isinstance(key, str) and _plain(value) for key, value in content.items())
    return content is None or isinstance(content, bool | int | float | str)
