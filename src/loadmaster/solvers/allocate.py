"""What a user wants of the offset problem: one call that picks the solver and explains a 'no'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.host import cores
from loadmaster.problems.allocation import Allocation
from loadmaster.problems.buffers import Buffers
from loadmaster.solvers.exact.allocation import Exact
from loadmaster.solvers.heuristic.allocation import Large
from loadmaster.solvers.solver import Budget, Observer, Solution, Solver, solve

MANY = 6_000
"""Above so many buffers the greedy portfolio goes first: a tree search would not get far."""


def choose_solver(problem: Allocation) -> Solver:
    """The solver for a problem of this size."""
    return Exact() if len(problem.buffers) <= MANY else Large()


def allocate(
    buffers: Buffers,
    capacity: int | None = None,
    *,
    seconds: float | None = 10.0,
    seed: int = 0,
    observer: Observer | None = None,
) -> Solution:
    """Offsets that fit a capacity, or (None) of the least height found, with bound and status."""
    problem = Allocation(buffers, capacity)
    return solve(choose_solver(problem), problem, Budget(seconds=seconds), seed, observer)


@dataclass(frozen=True)
class Blame:
    """Why buffers do not fit."""

    buffers: npt.NDArray[np.int64]
    """Infeasible together, and not without any one of them; empty if the time did not suffice."""
    instant: int
    """The time at which most bytes are alive."""
    alive: int
    """Bytes of all buffers alive then."""
    excess: int
    """How far `alive` is above the capacity; 0: the bytes fit, and it is the shapes."""


def explain_infeasible(problem: Allocation, seconds: float = 10.0, seed: int = 0) -> Blame:
    """An irreducible set of buffers to blame, and the worst instant."""
    assert problem.capacity is not None
    stop = _core.Stop(seconds, -1)
    options = {"threads": cores(), "seed": seed}
    blamed = problem.native.infeasible_subset(problem.capacity, options, stop)
    times, live = problem.buffers.live_profile()
    worst = int(np.argmax(live)) if len(live) else 0
    alive = int(live[worst]) if len(live) else 0
    return Blame(
        blamed, int(times[worst]) if len(times) else 0, alive, max(0, alive - problem.capacity)
    )
