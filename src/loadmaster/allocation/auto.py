"""What a user wants of the offset problem: one call that picks the solver and explains a 'no'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.exact import Exact
from loadmaster.allocation.heuristics import Large
from loadmaster.allocation.problem import Allocation
from loadmaster.clock import engine_seconds
from loadmaster.host import cores
from loadmaster.search.solver import Budget, Meter, Observer, Solution, Solver, State, Status, solve

MANY = 6_000
"""Above so many buffers the greedy portfolio goes alone: a tree search would not get far."""
_FIRST_NODES = 300_000
_GREEDY_EFFORT = 100_000_000
"""Steps: about a second of one core."""


class Auto:
    """The default: a short exact search, then the greedy portfolio, then the exact search to the end.

    Tight problems fall to the first, loose ones with much freedom to the second, and what is left
    of the time goes into proof. The first two are limited by their work and not by the clock.
    """

    name = "auto"
    problem_kind = "allocation"
    summary = "exact search and greedy portfolio in turn: the one to use"
    deterministic = True

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Allocation)
        if len(problem.buffers) > MANY:
            return Large(self.threads).run(meter, seed, None)
        parts: tuple[Solver, ...] = (
            Exact(threads=self.threads, nodes=_FIRST_NODES),
            Large(self.threads, effort=_GREEDY_EFFORT),
            Exact(threads=self.threads),
        )
        solution = meter.solution()
        for part in parts:
            fits = problem.capacity is not None and meter.best is not None
            if meter.exhausted or fits or solution.status == Status.INFEASIBLE:
                break
            solution = part.run(meter, seed, None)
        return solution


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
    return solve(Auto(), problem, Budget(seconds=seconds), seed, observer)


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
    limit = engine_seconds(seconds)
    stop = _core.Stop(-1.0 if limit is None else limit, -1)
    options = {"threads": cores(), "seed": seed}
    blamed = problem.native.infeasible_subset(problem.capacity, options, stop)
    times, live = problem.buffers.live_profile()
    worst = int(np.argmax(live)) if len(live) else 0
    alive = int(live[worst]) if len(live) else 0
    return Blame(blamed, int(times[worst]) if len(times) else 0, alive, max(0, alive - problem.capacity))
