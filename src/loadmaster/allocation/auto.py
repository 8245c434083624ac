"""What a user wants of the offset problem: one call that picks the solver and explains a 'no'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.clock import engine_seconds
from loadmaster.host import cores
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem
from loadmaster.search.solver import Budget, Meter, Observer, Solution, solve

MANY = 6_000
"""Above so many buffers the greedy portfolio goes alone: a tree search would not get far."""
_FIRST_NODES = 300_000
_GREEDY_EFFORT = 100_000_000
"""Steps: about a second of one core."""


def make_auto(threads: int | None = None) -> Auto:
    """A short exact search, then the greedy portfolio, then the exact search to the end.

    Tight problems fall to the first, loose ones with much freedom to the second, and what is left
    of the time goes into proof. The first two are limited by their work and not by the clock.
    """

    def schedule(problem: Problem) -> list[Stage]:
        assert isinstance(problem, Allocation)
        if len(problem.buffers) > MANY:
            return [Stage("large", {"threads": threads})]
        return [
            Stage("exact", {"threads": threads, "nodes": _FIRST_NODES}),
            Stage("large", {"threads": threads, "effort": _GREEDY_EFFORT}, when=_fits_not_yet),
            Stage("exact", {"threads": threads}, when=_fits_not_yet),
        ]

    summary = "exact search and greedy portfolio in turn: the one to use"
    return Auto("allocation", schedule, summary=summary)


def _fits_not_yet(meter: Meter) -> bool:
    """Within a capacity any placement is as good as another."""
    assert isinstance(meter.problem, Allocation)
    return meter.problem.capacity is None or meter.best is None


def allocate(
    buffers: Buffers,
    capacity: int | None = None,
    *,
    seconds: float | None = 10.0,
    seed: int = 0,
    observer: Observer | None = None,
) -> Solution:
    """Give buffers offsets.

    Args:
      buffers: n of them, with lifetimes and sizes (`read_buffers`, `Buffers.of`).
      capacity: bytes that the offsets must fit; None: the least height that is found.
      seconds: when to stop; None: when it is proven.
      seed: the same seed gives the same answer, unless the seconds end it.
      observer: is told of every improvement.

    Returns:
      `decision` `[n]` offsets (None if none fit), `value` the height, its bound and status.
    """
    problem = Allocation(buffers, capacity)
    return solve(make_auto(), problem, Budget(seconds=seconds), seed, observer)


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
