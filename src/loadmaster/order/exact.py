"""Orders with proofs: from minimum cuts (`PeakCut`), and by a complete search over sets of ops (`PeakDp`).

Cuts: while op x runs, at least `OrderCuts.below(x)` bytes are alive, whatever the order: the largest of
these over all ops is a bound. Of a few ops one runs first, then another: knowing which makes their cuts
higher, and `Milestones` finds the order of them that proves least. The state that attains the cut of x
divides the program into what comes before x and what comes after; each side is put into order by itself,
at the op where it is highest, until nothing is higher than what cannot be avoided.

Sets (after SERENITY): the program is cut at ops that all others are before or after; the parts do not
depend on each other. For each part that is above the bound, a budget is bisected: the native search
finds an order within it or proves that there is none, in rounds that look at more and more sets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.clock import engine_seconds
from loadmaster.order.graph import Groups, parts
from loadmaster.order.problem import PeakOrder
from loadmaster.search.solver import Meter, Solution, Solver, State

Order = npt.NDArray[np.int32]
Rng = np.random.Generator
CUT_BOUND = "least bytes alive while one op runs, by minimum cut"
MILESTONE_BOUND = "least bytes alive while a few ops run in any order, by minimum cuts"
NO_END = 2**60
NONE: Order = np.zeros(0, dtype=np.int32)
PROOFS = 40
"""Cuts at a time that serve the bound alone."""
MOST_MILESTONES, MOST_CUTS = 24, 4_000
CANDIDATES = 4
"""Ops of a part that are cut before one of them is chosen."""
REFINE_EVERY = 6
FLOW_BYTES = 256 * 2**20
"""Memory for flows that cuts may go on from."""
_SMALL = 400
"""In parts up to so many ops the greedy rule is tried too."""


class PeakCut(Solver):
    """Rounds of cuts: from four simple orders first, with milestones after the first of them; then from the
    best one with a random choice of the op. Ends when the peak meets the bound."""

    name, problem_kind = "peak-cut", "order"
    summary = "minimum cuts around the op where memory is highest, recursively; proves bounds"
    deterministic = True

    def __init__(self, rounds: int = 40) -> None:
        self.rounds = rounds
        self.options = {"rounds": rounds}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        groups = Groups(problem.native)
        rng, bounds = np.random.default_rng(seed), Bounds(groups)
        first, *others = (
            problem.native.simple(rule) for rule in ("reverse-post-order", "greedy", "depth-first")
        )
        starts = [first, problem.program_order, *others]
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
            if number == 1:
                add_milestones(meter, groups, groups.of_ops(first), rng)
                continue
            random_share = 0.0 if number < len(starts) else (0.3, 0.7)[number % 2]
            again = number < len(starts) or number % 3 == 2
            start = starts[number % len(starts)] if again else meter.best
            meter.evaluate(groups.ops(_refined(meter, groups, [groups.of_ops(start)], rng, random_share)))
            meter.progress()
        if not meter.exhausted:
            bounds.prove(meter)
        return meter.solution()


class Bounds:
    """The cut of each group, computed once."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._known: dict[int, int] = {}
        self._cuts: _core.OrderCuts | None = None

    def prove(self, meter: Meter, most: int | None = None) -> bool:
        """Raise the meter's bound; whether nothing is left to do. A group whose bytes in the best order are not
        above the bound can't raise it, so the highest come first."""
        if meter.best is None:
            return False
        self._cuts = self._cuts or _core.OrderCuts(self._groups.native)
        best = self._groups.of_ops(meter.best)
        profile = self._groups.native.profile(best)
        for at in np.argsort(-profile, kind="stable").tolist():
            node = int(best[at])
            if profile[at] <= meter.bound.value or meter.exhausted or most == 0:
                break
            if node in self._known:
                continue
            self._known[node] = self._cuts.below(node, NONE, NONE, NO_END, False, _seconds(meter))[0]
            most = None if most is None else most - 1
            meter.raise_bound(self._known[node], CUT_BOUND)
        return meter.exhausted


class Milestones:
    """A few groups of ops (here: ops), and the least peak that some order of them leaves possible.

    Every order runs the milestones in some order. While one of them runs, those before it have run and
    those after it have not: its cut with all of them bound to their sides is alive at least. So an order of
    the milestones proves the largest of its cuts, and the least over their orders is a bound of every
    order of the program. It is found best first over sets of milestones that have run.

    The smallest states that attain the cuts of one order contain one another, for from one to the next more
    has run and less is left: they cut the program into parts.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._network: _core.OrderCuts | None = None
        self._after: dict[int, npt.NDArray[np.int8]] = {}
        self._flows = _Flows()
        self._proven: list[dict[tuple[int, frozenset[int]], int]] = [{}]
        """Of the first 0, 1, ... milestones: (one, those before it) -> bytes."""
        self.ops: list[int] = []
        self.cuts = 0
        """How many were made."""

    def add(self, op: int) -> None:
        """One more milestone."""
        self.ops.append(op)
        self._after[op] = self._groups.native.needing(op)
        self._proven.append({})

    def search(self, meter: Meter) -> list[int] | None:
        """The order of the milestones that proves least, with the meter's bound raised to it; None: all
        prove the best order that is known, or it is out of time."""
        needs = {x: frozenset(y for y in self.ops if self._after[y][x]) for x in self.ops}
        whole, turn = frozenset(self.ops), count()
        # (bytes, fewer missing first, number, milestones that ran, the next one or -1)
        heap: list[tuple[int, int, int, tuple[int, ...], int]] = [(0, 0, next(turn), (), -1)]
        looked: set[frozenset[int]] = set()
        while heap:
            least, _, _, ran, op = heapq.heappop(heap)
            meter.raise_bound(least, MILESTONE_BOUND)
            if meter.exhausted or self.cuts > MOST_CUTS:
                return None
            if op >= 0:
                found = self._cut(meter, op, frozenset(ran))
                if found > least:
                    heapq.heappush(heap, (found, -len(ran), next(turn), ran, op))
                    continue
                ran = (*ran, op)
            before = frozenset(ran)
            if before == whole:
                return list(ran)
            if before in looked:
                continue
            looked.add(before)
            for next_op in self.ops:
                if next_op not in before and needs[next_op] <= before:
                    known = max(least, self._known(next_op, before))
                    heapq.heappush(heap, (known, -len(ran) - 1, next(turn), ran, next_op))
        return None

    def _known(self, op: int, before: frozenset[int]) -> int:
        """What is proven of it already, with fewer milestones."""
        for number, sooner in self._fewer(op, before):
            found = self._proven[number].get((op, sooner))
            if found is not None:
                return found
        return 0

    def _fewer(self, op: int, before: frozenset[int]) -> Iterator[tuple[int, frozenset[int]]]:
        """(n, those before it) of the first n milestones, for as many n as have the op, the largest first."""
        for number in range(len(self.ops), 0, -1):
            yield number, before
            if op == self.ops[number - 1]:
                return
            before -= {self.ops[number - 1]}

    def _cut(self, meter: Meter, op: int, before: frozenset[int]) -> int:
        proven = self._proven[-1]
        if (op, before) not in proven:
            assert meter.best_value is not None
            found, _, _ = self._below(meter, op, before, meter.best_value)
            proven[op, before] = min(found, meter.best_value)
        return proven[op, before]

    def _below(self, meter: Meter, op: int, before: frozenset[int], enough: int) -> tuple[int, bool, Order]:
        """The cut, from the flow of the same op with as many milestones as there is one of."""
        self._network = self._network or _core.OrderCuts(self._groups.native)
        self.cuts += 1
        later = frozenset(self.ops) - before - {op}
        one, other = (np.array(sorted(ops), dtype=np.int32) for ops in (before, later))
        keys = [(number, op, sooner) for number, sooner in self._fewer(op, before)]
        start = next((flow for key in keys if (flow := self._flows.get(key)) is not None), None)
        found = self._network.below(op, one, other, enough, False, _seconds(meter), start)
        self._flows.keep(keys[0], self._network.flow())
        return found

    def states(self, meter: Meter, order: list[int]) -> list[Order] | None:
        """What has run when each milestone starts; None: out of time."""
        found = []
        for number, op in enumerate(order):
            _, complete, sooner = self._below(meter, op, frozenset(order[:number]), NO_END)
            if not complete:
                return None
            found.append(sooner)
        return found


class _Flows:
    """Flows of cuts, the last ones of `FLOW_BYTES` in all."""

    def __init__(self) -> None:
        self._flows: dict[tuple[int, int, frozenset[int]], _core.OrderFlow] = {}
        self._bytes = 0

    def get(self, key: tuple[int, int, frozenset[int]]) -> _core.OrderFlow | None:
        return self._flows.get(key)

    def keep(self, key: tuple[int, int, frozenset[int]], flow: _core.OrderFlow) -> None:
        old = self._flows.pop(key, None)
        self._bytes += flow.memory - (0 if old is None else old.memory)
        self._flows[key] = flow
        while self._bytes > FLOW_BYTES and len(self._flows) > 1:
            self._bytes -= self._flows.pop(next(iter(self._flows))).memory


def _divided(order: list[int], states: list[Order], start: Order) -> list[Order]:
    """The program in parts, one after another, with every milestone by itself; inside a part, ops are as
    in `start`."""
    place = np.empty(len(start), dtype=np.int64)
    place[start] = np.arange(len(start))
    left = np.ones(len(start), dtype=bool)
    found: list[Order] = []
    for op, sooner in zip(order, states, strict=True):
        found += [sooner[left[sooner]], np.array([op], dtype=np.int32)]
        left[sooner] = left[op] = False
    found.append(np.flatnonzero(left).astype(np.int32))
    return [part[np.argsort(place[part])] for part in found if len(part)]


def add_milestones(meter: Meter, groups: Groups, other: Order, rng: Rng) -> None:
    """Milestones one by one: an op that is higher than the bound between those that there are, in the best
    order or in another. Now and then, and when there is none, an order is made of the parts."""
    milestones = Milestones(groups)
    while not meter.exhausted and len(milestones.ops) < MOST_MILESTONES:
        order = milestones.search(meter)
        states = None if order is None else milestones.states(meter, order)
        if order is None or states is None:
            return
        assert meter.best is not None
        best = groups.of_ops(meter.best)
        op = None
        for start in (best, other):
            if op is None:
                op = _conflict(meter, groups, _divided(order, states, start), milestones.ops)
        if _out_of_time(meter):
            return
        if op is None or len(milestones.ops) % REFINE_EVERY == REFINE_EVERY - 1:
            raised: list[int] = []
            refined = _refined(meter, groups, _divided(order, states, best), rng, 0.0, raised)
            meter.evaluate(groups.ops(refined))
            if op is None:
                op = next((each for each in raised if each not in milestones.ops), None)
            if op is None:
                op = _highest(meter, groups, refined, milestones.ops)
        meter.progress(milestones=len(milestones.ops))
        if op is None:
            return
        milestones.add(op)


def _conflict(meter: Meter, groups: Groups, divided: list[Order], known: list[int]) -> int | None:
    """The op with the highest cut in its part, if that is above the bound."""
    done = np.zeros(groups.nodes, dtype=np.int8)
    best, op = meter.bound.value, None
    for members in divided:
        if len(members) > 1:
            part = groups.native.part(np.ascontiguousarray(members), done)
            profile = part.profile(np.arange(len(members), dtype=np.int32))
            cuts = _core.OrderCuts(part)
            for at in _candidates(groups, members, profile, meter.bound.value):
                if int(members[at]) in known or _out_of_time(meter):
                    continue
                found, complete, _ = cuts.below(at, NONE, NONE, NO_END, False, _seconds(meter))
                if complete and found > best:
                    best, op = found, int(members[at])
        done[members] = 1
    return op


def _highest(meter: Meter, groups: Groups, order: Order, known: list[int]) -> int | None:
    """Where an order is highest, if that is above the bound: no cut of one op alone shows why."""
    profile = groups.native.profile(order)
    for at in np.argsort(-profile, kind="stable")[: len(known) + 1].tolist():
        if profile[at] > meter.bound.value and int(order[at]) not in known:
            return int(order[at])
    return None


def _candidates(groups: Groups, members: Order, profile: npt.NDArray[np.int64], floor: int) -> list[int]:
    """Places above the floor: those of the largest ops, and the highest one."""
    high = np.flatnonzero(profile > floor)
    if not len(high):
        return []
    largest = high[np.lexsort((-profile[high], -groups.held[members[high]]))][:CANDIDATES]
    return list(dict.fromkeys([*largest.tolist(), int(profile.argmax())]))


def _refined(
    meter: Meter,
    groups: Groups,
    divided: list[Order],
    rng: Rng,
    random_share: float,
    raised: list[int] | None = None,
) -> Order:
    """A legal order of parts that follow each other. `random_share`: how often the op to cut at is any
    one above the floor. `raised` gets the ops that are higher than the floor was, each the highest of
    several candidates."""
    done = np.zeros(groups.nodes, dtype=np.int8)
    order: list[Order] = []
    todo, floor = divided[::-1], meter.bound.value
    while todo:
        members = todo.pop()
        split = None
        if len(members) > 1 and not _out_of_time(meter):
            split, floor = _split(meter, groups, members, done, floor, rng, random_share, raised)
            if len(members) == groups.nodes:
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
    groups: Groups,
    members: Order,
    done: npt.NDArray[np.int8],
    floor: int,
    rng: Rng,
    random_share: float,
    raised: list[int] | None,
) -> tuple[tuple[Order, Order, Order] | Order, int]:
    """(before, op, after), or the members in an order that need not be cut; and the new floor, below
    which no part need go, because another cannot."""
    part = groups.native.part(np.ascontiguousarray(members), done)
    order = np.arange(len(members), dtype=np.int32)
    profile = part.profile(order)
    if len(members) <= _SMALL and profile.max() > floor:
        other = part.simple("greedy")
        if (lower := part.profile(other)).max() < profile.max():
            order, profile = other, lower
    if profile.max() <= floor:
        return members[order], floor
    places = [int(profile.argmax())]
    if raised is not None:
        places = _candidates(groups, members[order], profile, floor)
    elif rng.random() < random_share:
        places = [int(rng.choice(np.flatnonzero(profile > floor)))]
    largest = raised is None and bool(rng.random() < random_share / 2)
    cuts, least, complete, node, sooner = _core.OrderCuts(part), -1, True, -1, NONE
    for at in places:
        found = cuts.below(int(order[at]), NONE, NONE, NO_END, largest, _seconds(meter))
        complete = complete and found[1]
        if found[0] > least:
            least, node, sooner = found[0], int(order[at]), found[2]
    if raised is not None and least > floor:
        raised.append(int(members[node]))
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
            Bounds(Groups(problem.native)).prove(meter, most=200)
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
