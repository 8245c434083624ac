"""Plans that follow one rule each: what offloading libraries do, and simple choices of what stays."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.offload.gaps import filled
from loadmaster.offload.measured import SQUEEZES
from loadmaster.offload.model import BEFORE_USE, Bool, Int32, Int64, OffloadModel
from loadmaster.offload.problem import Offload
from loadmaster.offload.residencies import (
    FETCHED,
    Scheduled,
    Stays,
    occupied,
    repaired,
    schedule,
    settled,
    stays_of,
)
from loadmaster.program.program import Program
from loadmaster.search.problem import Decision
from loadmaster.search.solver import Meter, Solution, Solver, State

# ----------------------------------------------------------------------------
# Weights layer by layer, as offloading libraries move them.

NO_LIMIT = 2**62


def layer_spans(program: Program, model: OffloadModel) -> Int32:
    """[L, 2] the first and the last step of each layer, as they follow each other.

    The layer of an op is its scope up to the first part that has a number ('layers/3/attention' is of
    'layers/3'), else the first part. Ops without a scope belong to the layer before them. If there is
    but one layer, each op that reads a weight begins its own.
    """
    names = [_layer(program.op_scope[op]) for op in model.step_op.tolist()]
    begins = [0]
    current = names[0] if names else ""
    for step, name in enumerate(names[1:], start=1):
        if name and current and name != current:
            begins.append(step)
        current = name or current
    if len(begins) == 1:
        reads = np.unique(model.use_step[model.persistent[model.use_item]])
        begins = sorted({0, *reads.tolist()})
    ends = [*(begin - 1 for begin in begins[1:]), model.steps - 1]
    return np.array([begins, ends], dtype=np.int32).T


def _layer(scope: str) -> str:
    parts = scope.replace(".", "/").split("/")
    for number, part in enumerate(parts):
        if any(letter.isdigit() for letter in part):
            return "/".join(parts[: number + 1])
    return parts[0]


def by_layers(problem: Offload, *, ahead: int, resident: bool, squeeze: int = 0) -> Scheduled:
    """Weights of `ahead` layers are fetched before their turn (0: when it comes), and dropped after it.
    `resident`: as many leading layers as there is room for stay. What ops make stays while there is room.
    `squeeze`: 128ths of the room that are left unused."""
    capacity = problem.capacity_of(squeeze)
    model, spans = problem.model, layer_spans(problem.program, problem.model)
    visits = _visits(model, spans)
    first_layer = np.full(model.items, len(spans), dtype=np.int64)
    np.minimum.at(first_layer, visits[:, 0], visits[:, 1])
    best = 0
    if resident:
        low, high = 0, len(spans)
        while low < high:  # more resident layers take more room
            middle = (low + high + 1) // 2
            if _fits(problem, spans, visits, first_layer, middle, ahead, capacity):
                low = middle
            else:
                high = middle - 1
        best = low
    return _scheduled(problem, spans, visits, first_layer, best, ahead, capacity)


def _visits(model: OffloadModel, spans: Int32) -> Int64:
    """[V, 2] (item, layer) of each layer that uses a weight."""
    layer = np.searchsorted(spans[:, 0], model.use_step, side="right") - 1
    weights = model.persistent[model.use_item]
    rows = np.stack([model.use_item[weights], layer[weights]], axis=1).astype(np.int64)
    return np.unique(rows, axis=0)


def _weights(model: OffloadModel, spans: Int32, visits: Int64, streamed: Int64, ahead: int) -> Stays:
    """The stays of streamed weights; layers that follow each other share one."""
    rows = visits[np.isin(visits[:, 0], streamed)]
    if not len(rows):
        none = np.zeros(0, dtype=np.int32)
        return Stays(none, none, none, none.astype(np.int8), none.astype(bool), none)
    opens = np.ones(len(rows), dtype=bool)
    opens[1:] = (rows[1:, 0] != rows[:-1, 0]) | (rows[1:, 1] != rows[:-1, 1] + 1)
    begin = np.flatnonzero(opens)
    end = np.append(begin[1:], len(rows)) - 1
    layer = rows[begin, 1]
    return Stays(
        item=rows[begin, 0].astype(np.int32),
        first=spans[layer, 0],
        last=spans[rows[end, 1], 1],
        begins=np.full(len(begin), FETCHED, dtype=np.int8),
        leaves=np.zeros(len(begin), dtype=bool),
        earliest=spans[np.maximum(0, layer - ahead), 0] - 1,
    )


def _fits(
    problem: Offload, spans: Int32, visits: Int64, first_layer: Int64, count: int, ahead: int, capacity: int
) -> bool:
    """Whether all of this is there at once with `count` leading layers resident."""
    model = problem.model
    resident = model.persistent & (first_layer < count)
    streamed = np.flatnonzero(model.persistent & ~resident)
    stays = _weights(model, spans, visits, streamed, ahead)
    early = Stays(
        stays.item, np.maximum(stays.earliest + 1, 0), stays.last, stays.begins, stays.leaves, stays.earliest
    )
    room = occupied(model, early) + _others(model) + int(model.size[resident].sum())
    return bool((room <= capacity).all())


def _others(model: OffloadModel) -> Int64:
    """[S] room of all that is no weight, kept from first to last use."""
    rows = np.flatnonzero(~model.persistent)
    end = np.where(model.output, model.steps - 1, model.last_use)
    change = np.zeros(model.steps + 1, dtype=np.int64)
    np.add.at(change, model.first_use[rows], model.size[rows])
    np.add.at(change, end[rows] + 1, -model.size[rows])
    return np.cumsum(change)[:-1]


def _scheduled(
    problem: Offload, spans: Int32, visits: Int64, first_layer: Int64, count: int, ahead: int, capacity: int
) -> Scheduled:
    model = problem.model
    keep = np.ones(model.gaps, dtype=bool)
    weight = model.persistent[model.gap_item]
    keep[weight] = False
    before = model.gap_kind == BEFORE_USE
    keep[before] = first_layer[model.gap_item[before]] < count
    streamed = np.flatnonzero(model.persistent & (first_layer >= count))
    stays = _weights(model, spans, visits, streamed, ahead)
    bare = stays_of(model, settled(model, keep))
    extra = occupied(model, stays) - occupied(model, _only(bare, streamed))
    # Activations make room for the layer that runs; a layer that is too large goes op by op.
    kept = repaired(model, keep, capacity, extra)
    rest = stays_of(model, kept)
    room = occupied(model, rest) + extra
    if (room > capacity).any():
        return schedule(model, rest, capacity, 0)
    away = np.isin(rest.item, streamed)
    columns = [
        np.concatenate([getattr(rest, name)[~away], getattr(stays, name)])
        for name in ("item", "first", "last", "begins", "leaves", "earliest")
    ]
    order = np.lexsort((columns[1], columns[0]))
    return schedule(model, Stays(*(column[order] for column in columns)), capacity, NO_LIMIT)


def _only(stays: Stays, items: Int64) -> Stays:
    rows = np.isin(stays.item, items)
    return Stays(
        stays.item[rows],
        stays.first[rows],
        stays.last[rows],
        stays.begins[rows],
        stays.leaves[rows],
        stays.earliest[rows],
    )


class OneRule(Solver):
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
        return meter.solution()


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
        self.options = {"resident": resident}

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
