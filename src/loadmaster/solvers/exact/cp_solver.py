"""CP-SAT within a budget: what the solvers that are built on it share."""

from __future__ import annotations

from typing import Any

from loadmaster.clock import engine_seconds
from loadmaster.host import cores
from loadmaster.solvers.solver import Meter

WORK = 60.0
"""Where evaluations are counted and seconds are not: the same seed must give the same answer."""


def make_cp_solver(
    cp_model: Any, meter: Meter, seed: int, work: float | None = None, share: float = 1.0
) -> Any:
    """A `CpSolver` that may use `share` of what is left.

    Args:
      work: CP-SAT's own measure of effort, `max_deterministic_time`, about a second of one core.
        It then works alone, and the answer is the same on every computer. None: all cores, until
        the budget ends; `WORK` where that counts evaluations alone.
    """
    if work is None and meter.budget.evaluations is not None and meter.budget.seconds is None:
        work = WORK
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False  # Ctrl-C is for the run to hear
    if work is None:
        solver.parameters.num_workers = cores()
    else:
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = share * work
    limit = engine_seconds(meter.seconds_left)
    if limit is not None:
        solver.parameters.max_time_in_seconds = max(0.01, share * limit)
    return solver
