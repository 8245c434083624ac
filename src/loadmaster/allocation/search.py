"""Search over the order in which a greedy placement takes buffers: random, and annealing.

They evaluate one order at a time and can be stopped and resumed at any of them. Both are
baselines: the exact solver is the one to use.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.problem import Allocation
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

Order = npt.NDArray[np.int32]
_CHECKPOINT_EVERY = 200


def _allocation(meter: Meter) -> Allocation:
    problem = meter.problem
    assert isinstance(problem, Allocation)
    return problem


def _size_order(problem: Allocation) -> Order:
    return np.argsort(-problem.buffers.size, kind="stable").astype(np.int32)


def _try(meter: Meter, problem: Allocation, order: Order) -> int | None:
    """The value of an order, placed by lowest-offset first fit."""
    offsets = problem.native.place(order)
    return meter.evaluate(offsets) if len(offsets) else meter.evaluate(np.full(len(order), -1))


class RandomOrders(Solver):
    """The best of many random orders; the first is by size."""

    name = "random"
    problem_kind = "allocation"
    summary = "best of random orders, each placed by first fit"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = _allocation(meter)
        rng = np.random.default_rng(seed) if state is None else restore_generator(state["rng"])
        order = _size_order(problem)
        if state is None and not meter.exhausted:
            _try(meter, problem, order)
        while not meter.exhausted:
            _try(meter, problem, rng.permutation(order))
            if meter.evaluations % _CHECKPOINT_EVERY == 0:
                meter.checkpoint({"rng": generator_state(rng)})
                meter.progress()
        return meter.solution()


class Anneal(Solver):
    """Simulated annealing: move one buffer of the order, or swap two; a geometric temperature."""

    name = "anneal"
    problem_kind = "allocation"
    summary = "simulated annealing over the order, each placed by first fit"
    deterministic = True

    first_temperature = 0.02
    """As a share of the bound."""
    last_temperature = 1e-5
    length = 20_000
    """Evaluations from the first temperature to the last; then it stays."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = _allocation(meter)
        bound = max(1, meter.bound.value)
        if state is None:
            rng, order = np.random.default_rng(seed), _size_order(problem)
            value = None if meter.exhausted else _try(meter, problem, order)
        else:
            rng, order = restore_generator(state["rng"]), np.array(state["order"])
            value = int(state["value"][0]) if state["value"][0] >= 0 else None
        while not meter.exhausted and len(order) > 1:
            moved = self._moved(rng, order)
            new = _try(meter, problem, moved)
            if self._accepts(rng, value, new, bound, meter.evaluations):
                order, value = moved, new
            if meter.evaluations % _CHECKPOINT_EVERY == 0:
                kept = np.array([-1 if value is None else value], dtype=np.int64)
                meter.checkpoint({"rng": generator_state(rng), "order": order, "value": kept})
                meter.progress(temperature=self._temperature(meter.evaluations))
        return meter.solution()

    def _temperature(self, evaluations: int) -> float:
        done = min(1.0, evaluations / self.length)
        return float(self.first_temperature * (self.last_temperature / self.first_temperature) ** done)

    def _accepts(
        self, rng: np.random.Generator, old: int | None, new: int | None, bound: int, evaluations: int
    ) -> bool:
        chance = rng.random()  # drawn every time, so that a resumed run draws the same
        if new is None:
            return old is None
        if old is None or new <= old:
            return True
        return bool(chance < math.exp(-(new - old) / bound / self._temperature(evaluations)))

    def _moved(self, rng: np.random.Generator, order: Order) -> Order:
        a, b = rng.integers(0, len(order), 2)
        if rng.random() < 0.5:
            swapped = order.copy()
            swapped[[a, b]] = order[[b, a]]
            return swapped
        return np.insert(np.delete(order, a), b, order[a])
