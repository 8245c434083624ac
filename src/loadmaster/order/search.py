"""Orders by simple rules, and searches for the least peak: random keys, annealing, a beam over sets."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.order.problem import PeakOrder
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

Order = npt.NDArray[np.int32]
_BATCH = 50
_CHECKPOINT_EVERY = 500


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
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        if not meter.exhausted:
            meter.evaluate(problem.program_order)
        return meter.solution()


class _Simple(Solver):
    """One native rule by name."""

    problem_kind = "order"
    deterministic = True
    rule: str

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        if not meter.exhausted:
            meter.evaluate(problem.native.simple(self.rule))
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


class RandomBest(Solver):
    """Random keys, and always the ready op with the largest; the first order is the program's."""

    name, problem_kind = "random-best", "order"
    summary = "best of random orders, by 1,000 random keys unless the budget says otherwise"
    deterministic = True

    def __init__(self, orders: int = 1_000) -> None:
        self.orders = orders

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = _order(meter)
        rng = np.random.default_rng(seed) if state is None else restore_generator(state["rng"])
        if state is None and not meter.exhausted:
            meter.evaluate(problem.program_order)
        while not meter.exhausted and meter.evaluations < self.orders:
            keys = rng.random((min(_BATCH, self.orders - meter.evaluations), problem.nodes))
            meter.evaluate_many(problem.from_keys(keys))
            meter.checkpoint({"rng": generator_state(rng)})
            meter.progress()
        return meter.solution()


class Anneal(Solver):
    """Moves one op at a time, as far as what it needs and what needs it allow; geometric cooling."""

    name, problem_kind = "anneal", "order"
    summary = "simulated annealing over legal orders, one op moved at a time"
    deterministic = True

    first_temperature = 0.03
    """As a share of the program order's peak."""
    last_temperature = 1e-5

    def __init__(self, length: int = 20_000) -> None:
        self.length = length
        """Evaluations from the first temperature to the last; then it ends."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = _order(meter)
        scale = max(1, problem.reference)
        if state is None:
            rng, order = np.random.default_rng(seed), problem.program_order.copy()
            value = None if meter.exhausted else meter.evaluate(order)
        else:
            rng, order = restore_generator(state["rng"]), np.array(state["order"])
            value = int(state["value"][0])
        neighbours = _Neighbours(problem)
        while not meter.exhausted and meter.evaluations < self.length and problem.nodes > 1:
            moved = neighbours.moved(rng, order)
            new, drawn = meter.evaluate(moved), rng.random()
            heat = self._temperature(meter.evaluations) * scale
            if (
                new is not None
                and value is not None
                and (new <= value or drawn < math.exp((value - new) / heat))
            ):
                order, value = moved, new
            if meter.evaluations % _CHECKPOINT_EVERY == 0:
                meter.checkpoint(
                    {"rng": generator_state(rng), "order": order, "value": np.array([value], dtype=np.int64)}
                )
                meter.progress(temperature=self._temperature(meter.evaluations))
        return meter.solution()

    def _temperature(self, evaluations: int) -> float:
        done = min(1.0, evaluations / self.length)
        return float(self.first_temperature * (self.last_temperature / self.first_temperature) ** done)


class _Neighbours:
    """Legal orders that differ in the place of one op."""

    def __init__(self, problem: PeakOrder) -> None:
        self.before = [np.array(row, dtype=np.int64) for row in problem.graph.before]
        after: list[list[int]] = [[] for _ in self.before]
        for node, row in enumerate(problem.graph.before):
            for other in row:
                after[other].append(node)
        self.after = [np.array(row, dtype=np.int64) for row in after]

    def moved(self, rng: np.random.Generator, order: Order) -> Order:
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
        self.width = width

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
