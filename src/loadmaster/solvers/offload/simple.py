"""Plans that follow one rule each: what offloading libraries do, and simple choices of what stays."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.problems.offload.gaps import filled
from loadmaster.problems.offload.measured import SQUEEZES
from loadmaster.problems.offload.model import Bool, Int64
from loadmaster.problems.offload.problem import Offload
from loadmaster.problems.offload.schedule import Scheduled
from loadmaster.problems.problem import Decision
from loadmaster.solvers.offload.layers import by_layers
from loadmaster.solvers.solver import Meter, Solution, State


class OneRule(ABC):
    """Makes some decisions and submits them."""

    name: str
    problem_kind = "offload"
    deterministic = True

    @abstractmethod
    def make(self, problem: Offload) -> list[Decision]:
        """What to try."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Offload)
        for decision in self.make(problem):
            if not meter.exhausted:
                submit(meter, decision)
        return meter.solution(white_box=True)


def submit(meter: Meter, decision: Decision) -> int | None:
    """Evaluate a decision; where it has no offsets, with some room left unused."""
    before = meter.unpackable
    value = meter.evaluate(decision)
    for squeeze in SQUEEZES[1:]:
        if meter.unpackable == before or meter.exhausted or np.asarray(decision).ndim != 1:
            break
        before, again = meter.unpackable, np.array(decision)
        again[-1] = squeeze
        value = meter.evaluate(again)
    return value


class AllResident(OneRule):
    name = "all-resident"
    summary = "everything stays in fast memory, if there is room (white box)"

    def make(self, problem: Offload) -> list[Decision]:
        model = problem.model
        if model.needed > model.capacity:
            return []
        return [problem.vector(np.ones(model.gaps, dtype=bool), lead=7)]


class Belady(OneRule):
    name = "belady"
    summary = "what is used again last leaves first (white box)"

    def make(self, problem: Offload) -> list[Decision]:
        return [problem.vector(np.ones(problem.gaps, dtype=bool))]


class _Layers(OneRule):
    ahead: int

    def __init__(self, resident: str = "first") -> None:
        if resident not in ("first", "none"):
            raise LoadmasterError(
                f"resident can't be '{resident}'",
                object="resident",
                number=str(resident),
                remedy="use first or none",
            )
        self.resident = resident
        self.switches = {"resident": resident}

    def make(self, problem: Offload) -> list[Decision]:
        for squeeze in SQUEEZES:
            made = by_layers(problem, ahead=self.ahead, resident=self.resident == "first", squeeze=squeeze)
            plan = placed(problem, made, 0.2 if squeeze else 1.0)
            if plan is not None:
                return [plan]
        return []


class Layerwise(_Layers):
    name = "layerwise"
    summary = "each layer's weights are copied, then it runs; leading layers stay (white box)"
    ahead = 0


class Prefetch(_Layers):
    name = "prefetch"
    summary = "the next layer's weights are copied while this one runs (white box)"
    ahead = 1


def placed(problem: Offload, made: Scheduled, seconds: float = 1.0) -> Decision | None:
    """The rows of a schedule's plan with offsets; None if none were found in time."""
    plan = problem.with_offsets(made, seconds)
    return None if plan is None else problem.decision(plan)


class Static(OneRule):
    """Tensors by copies saved per byte and second that they would lie in fast memory: each stays for
    its whole life if that fits beside those before it, else it leaves after every use."""

    name = "static"
    summary = "each tensor stays for its whole life or leaves after every use (white box)"

    def make(self, problem: Offload) -> list[Decision]:
        return [problem.vector(static_gaps(problem, share)) for share in (1.0, 0.9, 0.75)]


def static_gaps(problem: Offload, share: float) -> Bool:
    """[G] with so much of the capacity for what stays."""
    model, clock = problem.model, problem.clock
    wait = clock[model.gap_to] - clock[np.maximum(model.gap_from, 0)]
    idle = np.bincount(model.gap_item, wait, model.items) + 1.0
    saved = np.bincount(model.gap_item, minlength=model.items).astype(np.float64)
    rank = np.empty(model.items, dtype=np.int64)
    rank[np.lexsort((np.arange(model.items), -saved / idle))] = np.arange(model.items)
    order: Int64 = np.lexsort((np.arange(model.gaps), rank[model.gap_item]))
    room = max(problem.least, int(model.capacity * share))
    nothing = np.zeros(model.gaps, dtype=bool)
    keep = filled(model, nothing, room, order)
    # All of its gaps or none of them.
    missing = np.unique(model.gap_item[~keep])
    keep[np.isin(model.gap_item, missing)] = False
    return keep
