"""Orders by simple rules, and searches for the least peak: random keys, annealing, a beam over sets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.errors import LoadmasterError
from loadmaster.order.problem import PeakOrder
from loadmaster.search import metaheuristics
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.metaheuristics import Rng, Walk
from loadmaster.search.problem import Decision, Problem
from loadmaster.search.solver import Meter, Solution, Solver, State

Order = npt.NDArray[np.int32]


def _order(meter: Meter) -> PeakOrder:
    problem = meter.problem
    assert isinstance(problem, PeakOrder)
    return problem


class ProgramOrder(Solver):
    """The order that the program came with."""

    name, problem_kind = "program-order", "order"
    summary = "the order that the program came with"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        if not meter.exhausted:
            meter.evaluate(_order(meter).program_order)
        return meter.solution()


class _Simple(Solver):
    """One native rule by name."""

    problem_kind = "order"
    deterministic = True
    rule: str

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        if not meter.exhausted:
            meter.evaluate(_order(meter).native.simple(self.rule))
        return meter.solution()


class PeakGreedy(_Simple):
    """Greedy by bytes alive."""

    name, rule = "peak-greedy", "greedy"
    summary = "always the ready op that leaves the fewest bytes alive"


class DepthFirst(_Simple):
    """Along one branch as far as it goes."""

    name, rule = "depth-first", "depth-first"
    summary = "always the op that became ready last"


class ReversePostOrder(_Simple):
    """As compilers walk graphs."""

    name, rule = "reverse-post-order", "reverse-post-order"
    summary = "from the results back to what they need"


class RandomBest(metaheuristics.RandomBest[PeakOrder]):
    """Random keys, and always the ready op with the largest; the first order is the program's."""

    name, problem_kind = "random-best", "order"
    summary = "best of random orders, by 1,000 random keys unless the budget says otherwise"
    batch = 50

    def __init__(self, orders: int = 1_000) -> None:
        self.orders = orders
        self.options = {"orders": orders}

    def evaluations_at_most(self, meter: Meter) -> float:
        return self.orders

    def search(self, meter: Meter, problem: PeakOrder, rng: Rng, state: State | None) -> None:
        if state is None:
            meter.evaluate(problem.program_order)
        super().search(meter, problem, rng, state)

    def draw(self, problem: PeakOrder, rng: Rng, count: int) -> Order:
        return problem.from_keys(rng.random((count, problem.nodes)))


class Anneal(metaheuristics.Annealing[PeakOrder]):
    """Moves one op at a time, as far as what it needs and what needs it allow; geometric cooling."""

    name, problem_kind = "anneal", "order"
    summary = "simulated annealing over legal orders, one op moved at a time"
    stored, checkpoint_every = ("order", "value"), 500
    temperature, last_share = 0.03, 1e-5 / 0.03

    def __init__(self, length: int = 20_000) -> None:
        self.length = length
        """Evaluations from the first temperature to the last; then it ends."""
        self.options = {"length": length}

    def evaluations_at_most(self, meter: Meter) -> float:
        return self.length

    def begin(self, meter: Meter, problem: PeakOrder) -> Walk | None:
        value = meter.evaluate(problem.program_order)
        return None if value is None or problem.nodes < 2 else Walk(problem.program_order, value)

    def neighbourhood(self, problem: PeakOrder) -> Callable[[Rng, Order], Order]:
        return _Neighbours(problem).moved

    def evaluate(self, meter: Meter, walk: Walk, trial: Decision) -> float | None:
        return meter.evaluate(trial)

    def scale(self, problem: PeakOrder) -> float:
        return -max(1, problem.reference)

    def share_cooled(self, meter: Meter, length: int) -> float:
        return (meter.evaluations + 1) / self.length

    def accepts(self, rng: Rng, gain: float, temperature: float) -> bool:
        drawn = rng.random()  # for gains too: what seeds give depends on it
        return gain >= 0 or drawn < math.exp(gain / temperature)


class _Neighbours:
    """Legal orders that differ in the place of one op."""

    def __init__(self, problem: PeakOrder) -> None:
        self.before = [np.array(row, dtype=np.int64) for row in problem.graph.before]
        after: list[list[int]] = [[] for _ in self.before]
        for node, row in enumerate(problem.graph.before):
            for other in row:
                after[other].append(node)
        self.after = [np.array(row, dtype=np.int64) for row in after]

    def moved(self, rng: Rng, order: Order) -> Order:
        n = len(order)
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        for _ in range(20):  # most ops of a chain cannot move
            at = int(rng.integers(n))
            node = order[at]
            low = int(place[self.before[node]].max(initial=-1)) + 1
            high = int(place[self.after[node]].min(initial=n)) - 1
            if high > low:
                to = int(rng.integers(low, high))
                to += to >= at  # anywhere but where it is
                moved = order.copy()
                if to > at:
                    moved[at:to] = order[at + 1 : to + 1]
                else:
                    moved[to + 1 : at + 1] = order[to:at]
                moved[to] = node
                return moved
        return order


class PeakBeam(Solver):
    """The best `width` sets of ops of each size."""

    name, problem_kind = "peak-beam", "order"
    summary = "beam over sets of ops that ran, the best of each size"
    deterministic = True

    def __init__(self, width: int = 100) -> None:
        if width < 1:
            raise LoadmasterError(
                f"width can't be {width}", object="width", number=width, remedy="use 1 or more"
            )
        self.width = width
        self.options = {"width": width}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = _order(meter)
        if meter.exhausted:
            return meter.solution()
        beam = _core.PeakBeam(problem.native, self.width)
        while not meter.exhausted:
            if beam.advance(max(1, 20_000 // (self.width + problem.nodes // 50))):
                meter.evaluate(beam.order())
                break
            meter.progress()
        return meter.solution()


# `auto`: the order with the least peak that can be had, with a proof where one can be had in time.

SEARCHABLE = 3_000
"""Up to so many ops the complete search has its turn."""


def make_auto() -> Auto:
    """The program's order first, so that nothing is ever worse; then cuts, then the complete search
    where the program is small, and more cuts with what is left of the budget."""
    summary = "minimum cuts, then complete search: never worse than the program's own order"
    return Auto("order", _schedule, summary=summary)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, PeakOrder)
    return [
        Stage("program-order", required=True),
        Stage("peak-cut", {"rounds": 24}),
        Stage("peak-dp", {"sets": 100_000}, lambda _: problem.nodes <= SEARCHABLE, seed_offset=1),
        Stage("peak-cut", {"rounds": 200}, seed_offset=2),
    ]
