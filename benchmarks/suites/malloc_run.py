"""One solver in one game, and the row it gives."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from benchmarks.suites import Row
from benchmarks.suites.malloc_cells import EXACT, GAMES, ONE_PLAN, OPTIONS, GameCell
from benchmarks.suites.mapping_run import Improvements
from loadmaster.errors import MissingPackage
from loadmaster.malloc_game.heuristics import NoProduction
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.production import load_production_record
from loadmaster.search.problem import Bound
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, solve
from loadmaster.simulate import simulate

EXACT_SECONDS = 60.0
BOUND_SECONDS = 10.0


def run_game(
    cell: GameCell, name: str, seed: int, *, budget: int | None = None, seconds: float | None = None
) -> Row:
    """One solver with one seed; the checker passes the plan before it is a row. `seconds` limits
    the exact solvers."""
    cell = replace(cell, budget=budget or cell.budget)
    problem = loaded(cell.case)[0]
    solver, options = OPTIONS.get(name, (name, {}))
    once, observer = name in ONE_PLAN, Improvements()
    limits = Budget(
        None if name in EXACT or once else cell.budget, (seconds or EXACT_SECONDS) if name in EXACT else None
    )
    started = time.perf_counter()
    try:
        solution = solve(make_labelled("malloc-game", solver, options), problem, limits, seed, observer)
    except (MissingPackage, NoProduction) as error:
        return Row(
            cell.case,
            0.0,
            "ps",
            "skipped",
            machine=cell.machine,
            solver=name,
            seed=seed,
            extra={"reason": error.message},
        )
    return row_of(cell, name, seed, solution, time.perf_counter() - started, observer)


def row_of(
    cell: GameCell, name: str, seed: int, solution: Solution, took: float, observer: Improvements
) -> Row:
    """What a solver found, as a row."""
    problem, baseline, bound = loaded(cell.case)
    once = name in ONE_PLAN
    best_bound = max(bound, solution.bound, key=lambda each: each.value)
    status, value, extra = (str(solution.status), solution.value, _extra(cell, problem, baseline, best_bound))
    if value is not None and solution.decision is not None:
        plan = problem.plan(solution.decision)
        if problem.violations(plan):
            status = "refused by the checker"
        elif value <= best_bound.value:
            status = "optimal"
        timeline = simulate(problem.program, problem.machine, plan)
        extra |= {
            "stall": int(timeline.op_stall.sum()),
            "copies": len(plan.copy_rows),
            "peak": int(timeline.memory_peak[problem.model.fast]),
        }
    if name == "production":
        record = load_production_record(problem.program, problem.machine) or {}
        extra |= {"as_issued": record.get("as_issued_ps"), "partial": record.get("partial")}
    if not once and name not in EXACT:
        extra |= {"budget": cell.budget, "curve": observer.curve}
    return Row(
        cell.case,
        float(-1 if value is None else value),
        "ps",
        status,
        machine=cell.machine,
        solver=name,
        seed=seed,
        evaluations=solution.evaluations,
        seconds=took,
        baseline=float(baseline[1]),
        bound=float(best_bound.value),
        gap=None if value is None else value / best_bound.value - 1,
        extra=extra,
    )


def _extra(cell: GameCell, problem: MallocGame, baseline: tuple[str, int], bound: Bound) -> dict[str, Any]:
    return {
        "model": cell.model,
        "moves": problem.moves,
        "steps": problem.model.steps,
        "all_slow": problem.all_slow_ps,
        "baseline_by": baseline[0],
        "bound_by": bound.method,
    }


@lru_cache(maxsize=64)
def loaded(case: str) -> tuple[MallocGame, tuple[str, int], Bound]:
    """A cell's problem, the baseline's name and time, and the best quick bound."""
    problem = GAMES[case].load()
    bound = problem.bound()
    if not bound.method.endswith("on record") and find_spec("ortools") is not None:
        from loadmaster.malloc_game.bounds import game_bound

        with contextlib.suppress(MissingPackage):
            bound = max(bound, game_bound(problem, BOUND_SECONDS), key=lambda each: each.value)
    for name in ("production", "msa"):
        try:
            value = solve(make_labelled("malloc-game", name), problem, Budget()).value
        except NoProduction:
            continue
        if value is not None:
            return problem, (name, value), bound
    return problem, ("all-slow", problem.all_slow_ps), bound
