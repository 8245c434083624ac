"""Orders with proofs: from minimum cuts (`PeakCut`), and by a complete search over sets of ops (`PeakDp`).

Cuts: while op x runs, at least `OrderCuts.below(x)` bytes are alive, whatever the order: the largest of
these over all ops is a bound. Of two ops one runs first, and knowing which makes their cuts higher:
pairs prove more where single ops prove too little. The state that attains the cut of x divides the
program into what comes before x and what comes after; each side is put into order by itself, at the
op where it is highest, until nothing is higher than what cannot be avoided.

Sets (after SERENITY): the program is cut at ops that all others are before or after; the parts do not
depend on each other. For each part that is above the bound, a budget is bisected: the native search
finds an order within it or proves that there is none, in rounds that look at more and more sets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.clock import engine_seconds
from loadmaster.order.graph import parts
from loadmaster.order.problem import PeakOrder
from loadmaster.search.solver import Meter, Solution, Solver, State

Order = npt.NDArray[np.int32]
CUT_BOUND = "least bytes alive while one op runs, by minimum cut"
PAIR_BOUND = "least bytes alive while two ops run one after the other, by minimum cuts"
NO_END = 2**60
PROOFS = 40
"""Cuts at a time that serve the bound alone."""
PAIRS, SHARE = 2_000, 0.25
"""Pairs at a time, and of the time that is left at most this much."""
_SMALL = 400
"""In parts up to so many ops the greedy rule is tried too."""


class PeakCut(Solver):
    """Rounds of cuts: from four simple orders first, then from the best one with a random choice
    of the op. Ends when the peak meets the bound."""

    name, problem_kind = "peak-cut", "order"
    summary = "minimum cuts around the op where memory is highest, recursively; proves bounds"
    deterministic = True

    def __init__(self, rounds: int = 40) -> None:
        self.rounds = rounds
        self.options = {"rounds": rounds}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        rng, bounds = np.random.default_rng(seed), Bounds(problem)
        simple = ("greedy", "reverse-post-order", "depth-first")
        starts = [problem.program_order, *(problem.native.simple(rule) for rule in simple)]
        for start in starts:
            if meter.exhausted:
                return meter.solution()
            meter.evaluate(start)
        for number in range(self.rounds):
            if meter.exhausted or meter.best is None:
                break
            # Proofs cost more than orders in a large program, and a good order needs fewer of them.
            if number >= len(starts) and number % 4 == 0 and bounds.prove(meter, most=PROOFS):
                break
            random_share = 0.0 if number < len(starts) else (0.3, 0.7)[number % 2]
            again = number < len(starts) or number % 3 == 2
            start = starts[number % len(starts)] if again else meter.best
            meter.evaluate(_refined(meter, problem, start, rng, random_share))
            meter.progress()
        if not meter.exhausted:
            bounds.prove(meter)
            bounds.prove_pairs(meter)
        return meter.solution()


class Bounds:
    """The cut of each op and of pairs, computed once."""

    def __init__(self, problem: PeakOrder) -> None:
        self._problem = problem
        self._known: dict[int, int] = {}
        self._pairs: set[tuple[int, int]] = set()
        self._cuts: _core.OrderCuts | None = None

    def prove(self, meter: Meter, most: int | None = None) -> bool:
        """Raise the meter's bound; whether nothing is left to do. An op whose bytes in the best order are not above the bound can't
        raise it, so the highest come first."""
        if meter.best is None:
            return False
        self._cuts = self._cuts or _core.OrderCuts(self._problem.native)
        best = np.ascontiguousarray(meter.best, dtype=np.int32)
        profile = self._problem.native.profile(best)
        for at in np.argsort(-profile, kind="stable").tolist():
            node = int(best[at])
            if profile[at] <= meter.bound.value or meter.exhausted or most == 0:
                break
            if node in self._known:
                continue
            self._known[node] = self._cuts.below(node, NO_END, False, _seconds(meter))[0]
            most = None if most is None else most - 1
            meter.raise_bound(self._known[node], CUT_BOUND)
        return meter.exhausted

    def prove_pairs(self, meter: Meter, most: int = PAIRS) -> None:
        """Raise the meter's bound by pairs of ops. The best order is one way to run a pair, so one of
        the two must be above the bound there."""
        if meter.best is None:
            return
        self._cuts = self._cuts or _core.OrderCuts(self._problem.native)
        left = meter.seconds_left
        stop = 0.0 if left is None else (1 - SHARE) * left
        best = np.ascontiguousarray(meter.best, dtype=np.int32)
        profile = self._problem.native.profile(best)
        falling = np.argsort(-profile, kind="stable").tolist()
        for high, low in ((a, b) for a in falling for b in falling if a != b):
            if profile[high] <= meter.bound.value or meter.exhausted or not most:
                return
            if meter.seconds_left is not None and meter.seconds_left < stop:
                return
            pair = (int(best[min(high, low)]), int(best[max(high, low)]))
            if pair not in self._pairs:
                self._pairs.add(pair)
                most -= 1
                meter.raise_bound(self._pair(meter, *pair), PAIR_BOUND)

    def _pair(self, meter: Meter, first: int, second: int) -> int:
        """What every order has alive while one of the two runs. No more than the best order has, and
        computed no further once it cannot raise the bound."""
        assert self._cuts is not None and meter.best_value is not None
        least = meter.best_value
        for one, two in ((first, second), (second, first)):
            alive = 0
            for op, other, before in ((one, two, False), (two, one, True)):
                if alive < least:
                    alive = max(alive, self._cuts.beside(op, other, before, least, _seconds(meter)))
            least = min(least, alive)
            if least <= meter.bound.value:
                break
        return least


def _refined(
    meter: Meter, problem: PeakOrder, start: Order, rng: np.random.Generator, random_share: float
) -> Order:
    """A legal order; `random_share`: how often the op to cut at is any one above the floor."""
    done = np.zeros(problem.nodes, dtype=np.int8)
    order: list[Order] = []
    todo, floor = [np.asarray(start, dtype=np.int32)], meter.bound.value
    while todo:
        members = todo.pop()
        split = None
        if len(members) > 1 and not _out_of_time(meter):
            split, floor = _split(meter, problem, members, done, floor, rng, random_share)
            if len(members) == problem.nodes:
                meter.raise_bound(floor, CUT_BOUND)  # a cut of the whole program bounds every order
        if isinstance(split, tuple):
            before, at, after = split
            todo += [part for part in (after, at, before) if len(part)]
            continue
        chosen = members if split is None else split
        order.append(chosen)
        done[chosen] = 1
    return np.concatenate(order)


def _seconds(meter: Meter) -> float:
    left = engine_seconds(meter.seconds_left)
    return -1.0 if left is None else left


def _out_of_time(meter: Meter) -> bool:
    return meter.observer.stop or meter.seconds_left == 0


def _split(
    meter: Meter,
    problem: PeakOrder,
    members: Order,
    done: npt.NDArray[np.int8],
    floor: int,
    rng: np.random.Generator,
    random_share: float,
) -> tuple[tuple[Order, Order, Order] | Order, int]:
    """(before, op, after), or the members in an order that need not be cut; and the new floor, below
    which no part need go, because another cannot."""
    part = problem.native.part(np.ascontiguousarray(members), done)
    order = np.arange(len(members), dtype=np.int32)
    profile = part.profile(order)
    if len(members) <= _SMALL and profile.max() > floor:
        other = part.simple("greedy")
        if (lower := part.profile(other)).max() < profile.max():
            order, profile = other, lower
    if profile.max() <= floor:
        return members[order], floor
    at = int(profile.argmax())
    if rng.random() < random_share:
        at = int(rng.choice(np.flatnonzero(profile > floor)))
    node = int(order[at])
    largest = bool(rng.random() < random_share / 2)
    least, complete, sooner = _core.OrderCuts(part).below(node, NO_END, largest, _seconds(meter))
    floor = max(floor, least)
    if profile.max() <= floor or not complete:
        return members[order], floor
    side = np.ones(len(members), dtype=np.int8)
    side[sooner], side[node] = 0, 2
    ordered, sides = members[order], side[order]
    return (ordered[sides == 0], ordered[sides == 2], ordered[sides == 1]), floor


SEARCH_BOUND = "complete search"
_SLICE = 2_000
"""Sets between two looks at the clock."""


class PeakDp(Solver):
    """`sets`: most sets of ops to look at for one budget."""

    name, problem_kind = "peak-dp", "order"
    summary = "complete search over sets of ops within bisected budgets; proves optimality"
    deterministic = True

    def __init__(self, sets: int = 4_000_000) -> None:
        self.sets = sets
        self.options = {"sets": sets}

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
        return meter.solution(sets=looked)

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
