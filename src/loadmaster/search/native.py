"""Native searches under Python's eyes: they run in a thread, so that Ctrl-C, the clock and the
observer can stop them, and their improvements are scored by the problem as they come."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.clock import engine_seconds
from loadmaster.search.solver import Meter

Int64 = npt.NDArray[np.int64]
_POLL_SECONDS = 0.05
OPTIMAL, FEASIBLE, INFEASIBLE, UNKNOWN = range(4)


class Answer(NamedTuple):
    """What a native search returns."""

    status: int
    offsets: Int64
    """Empty if there is none."""
    height: int
    bound: int
    nodes: int


def run_native(
    meter: Meter,
    call: Callable[[_core.Stop, Callable[[Int64], None]], tuple[Any, ...]],
    nodes: int | None = None,
) -> Answer:
    """`call(stop, improved)` in a thread; every placement it reports goes through the meter.

    `nodes` limits the search in a way that does not depend on the clock.
    """
    seconds = engine_seconds(meter.seconds_left)
    stop = _core.Stop(-1.0 if seconds is None else seconds, -1 if nodes is None else nodes)
    found: queue.SimpleQueue[Int64] = queue.SimpleQueue()
    told = meter.best is not None
    with ThreadPoolExecutor(1, "native search") as pool:
        search = pool.submit(call, stop, found.put)
        try:
            while not search.done():
                wait([search], _POLL_SECONDS if found.empty() else 0)
                _score(meter, found)
                if not told and meter.best is not None:
                    told = True
                    meter.progress()  # the first answer is shown before the search goes on
                if meter.exhausted:
                    stop.ask()
        except BaseException:
            stop.ask()  # the pool waits for the search to end
            raise
    _score(meter, found)
    answer = Answer(*search.result())
    if len(answer.offsets) and meter.evaluations_left != 0:
        meter.evaluate(answer.offsets)
    return answer


def _score(meter: Meter, found: queue.SimpleQueue[Int64]) -> None:
    newest = None
    while not found.empty():
        newest = found.get()
    # Of several at once the last is the best. Where evaluations are counted out only the final
    # placement is scored: how many come in between depends on the clock.
    if newest is not None and meter.budget.evaluations is None:
        meter.evaluate(newest)
