"""`solve`: one call from a problem to the best decision found, its bound and its gap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.runs.session import run_solver
from loadmaster.search.problem import Problem
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, Solver


def solve(
    problem: Problem,
    solver: str | Solver = "auto",
    *,
    seconds: float | None = 10.0,
    evaluations: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
) -> Solution:
    """The best decision within a budget of seconds and evaluations (None: no limit).

    `solver` is a name of `solver_names(problem.kind)`, made with `options`, or an object of your own.
    Every improvement is checked; `problem.plan(solution.decision)` is the plan. With `folder`, a run
    folder is kept in it (`solution.extra['run']`), which `loadmaster replay`, `report` and
    `compare` read.
    """
    chosen = make_solver(problem.kind, solver, options) if isinstance(solver, str) else solver
    where = None if folder is None else Path(folder)
    return run_solver(chosen, problem, Budget(evaluations, seconds), seed, folder=where)
