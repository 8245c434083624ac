"""`PeakDp`: the least peak with a proof, by a complete search over sets of ops (after SERENITY).

The program is cut at ops that all others are before or after; the parts do not depend on each other.
For each part that is above the bound, a budget is bisected: the native search finds an order within
it or proves that there is none, in rounds that look at more and more sets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.problems.order.parts import parts
from loadmaster.problems.order.problem import PeakOrder
from loadmaster.solvers.exact.order_cut import Bounds
from loadmaster.solvers.solver import Meter, Solution, State

Order = npt.NDArray[np.int32]
SEARCH_BOUND = "complete search"
_SLICE = 2_000
"""Sets between two looks at the clock."""


class PeakDp:
    """`sets`: most sets of ops to look at for one budget."""

    name, problem_kind = "peak-dp", "order"
    summary = "complete search over sets of ops within bisected budgets; proves optimality"
    deterministic = True

    def __init__(self, sets: int = 4_000_000) -> None:
        self.sets = sets

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        for start in (problem.program_order, problem.native.simple("greedy")):
            if not meter.exhausted:
                meter.evaluate(start)
        if meter.best is not None and not meter.exhausted:
            Bounds(problem).prove(meter, most=200)
        limit, looked = 20_000, 0
        while not meter.exhausted and meter.best is not None and limit <= self.sets:
            looked += self._round(meter, problem, limit)
            limit *= 5
        return meter.solution(white_box=True, sets=looked)

    def _round(self, meter: Meter, problem: PeakOrder, limit: int) -> int:
        """Improve the parts of the best order, the highest ones first, and the bound."""
        looked, proven = 0, [meter.bound.value]
        stretches = parts(problem.graph)
        order = np.array(meter.best, dtype=np.int32)
        profile = problem.native.profile(order)
        height = [int(profile[begin:end].max()) for begin, end in stretches]
        # Every order has all the parts: the largest bound of a part is one of the whole.
        for number in sorted(range(len(height)), key=lambda i: -height[i]):
            floor = max(proven)
            if height[number] <= floor or meter.exhausted:
                break
            begin, end = stretches[number]
            done = np.zeros(problem.nodes, dtype=np.int8)
            done[order[:begin]] = 1
            part = problem.native.part(np.ascontiguousarray(order[begin:end]), done)
            within, least, sets = _least(meter, part, floor, height[number], limit)
            looked += sets
            proven.append(least)
            if within is not None:
                order[begin:end] = order[begin:end][within]
        if not meter.exhausted:
            meter.evaluate(order)
        meter.raise_bound(max(proven), SEARCH_BOUND)
        meter.progress(sets=looked)
        return looked


def _least(
    meter: Meter, part: _core.OrderGraph, floor: int, height: int, limit: int
) -> tuple[Order | None, int, int]:
    """(the best order found, what is proven, sets looked at) of one part between floor and height."""
    best, proven, low, looked = None, floor, floor, 0
    while low < height and not meter.exhausted:
        middle = (low + height) // 2
        search = _core.PeakSearch(part, middle)
        found = None
        while found is None and search.sets < limit and not meter.exhausted:
            found = search.advance(min(_SLICE, limit - search.sets))
        looked += search.sets
        if found:
            best = search.order()
            height = int(part.profile(best).max())
        else:
            low = middle + 1
            if found is False:
                proven = max(proven, low)
    return best, proven, looked
