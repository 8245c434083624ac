"""One solver in one game, and the row it gives."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from benchmarks.suites import Row
from benchmarks.suites.malloc_cells import EXACT, GAMES, ONE_PLAN, OPTIONS, GameCell
from benchmarks.suites.mapping_run import Improvements
from loadmaster.errors import MissingPackage
from loadmaster.malloc_game.heuristics import NoProduction
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.planner import CheckedSolution, find_known, solve_checked
from loadmaster.program.zoo.tpu import manifest
from loadmaster.search.problem import Bound
from loadmaster.search.solver import Budget

EXACT_SECONDS = 60.0


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
    try:
        found = solve_checked(problem, solver, limits, seed, options=options, observer=observer)
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
    return row_of(cell, name, seed, found, observer)


def row_of(cell: GameCell, name: str, seed: int, found: CheckedSolution, observer: Improvements) -> Row:
    """What a solver found, as a row."""
    problem, baseline, bound = loaded(cell.case)
    once, solution = name in ONE_PLAN, found.solution
    best_bound = max(bound, solution.bound, key=lambda each: each.value)
    status, value, extra = found.status, solution.value, _extra(cell, problem, baseline, best_bound)
    if value is not None and found.plan is not None:
        if not found.violations and value <= best_bound.value:
            status = "optimal"
        extra |= {
            "stall": int(found.timeline.op_stall.sum()),
            "copies": len(found.plan.copy_rows),
            "peak": int(found.timeline.memory_peak[problem.model.fast]),
        }
    if name == "production":
        record = manifest()["programs"][problem.program.name]["plans"][problem.machine.name]
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
        seconds=found.seconds,
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
    known, bound = find_known(problem)
    values = {each.name: each.value for each in known if each.value is not None}
    name = next(each for each in ("production", "msa", "all-slow") if each in values)
    return problem, (name, values[name]), bound
