"""Plans that follow one rule each: what offloading libraries do, and simple choices of what stays."""

from __future__ import annotations

from abc import abstractmethod
from itertools import product

import numpy as np

from loadmaster.arrays import distinct
from loadmaster.errors import LoadmasterError
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.offload.model import BEFORE_USE, BETWEEN, TO_END, Bool, Int32, Int64, OffloadModel
from loadmaster.offload.problem import SQUEEZES, Offload
from loadmaster.offload.residencies import (
    FETCHED,
    SMALL,
    Residencies,
    Scheduled,
    filled,
    gaps_of_plan,
    occupied,
    repaired,
    residencies_of,
    schedule,
    settled,
)
from loadmaster.program.program import Program
from loadmaster.search.problem import Decision
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State, solve

NO_LIMIT = 2**62
GOLDEN = (5**0.5 - 1) / 2
"""The first so many of its multiples, without their whole parts, lie evenly between 0 and 1."""


def layer_spans(program: Program, model: OffloadModel) -> Int32:
    """[L, 2] the first and the last step of each layer, as they follow each other.

    The layer of an op is its scope up to the first part that has a number ('layers/3/attention' is of
    'layers/3'), else the first part. Ops without a scope belong to the layer before them. If there is
    but one layer, each op that reads a weight begins its own.
    """
    known: dict[str, int] = {"": 0}
    number = [known.setdefault(_layer(scope), len(known)) for scope in program.op_scope.values]
    layer = np.array(number, dtype=np.int64)[program.op_scope.codes[model.step_op]]
    named = np.flatnonzero(layer)
    begins = np.append([0], named[1:][np.diff(layer[named]) != 0])
    if len(begins) == 1:
        begins = np.union1d([0], model.use_step[model.persistent[model.use_item]])
    return np.stack([begins, np.append(begins[1:] - 1, model.steps - 1)], axis=1).astype(np.int32)


def _layer(scope: str) -> str:
    parts = scope.replace(".", "/").split("/")
    for number, part in enumerate(parts):
        if any(letter.isdigit() for letter in part):
            return "/".join(parts[: number + 1])
    return parts[0]


def by_layers(problem: Offload, *, ahead: int, resident: str, squeeze: int = 0) -> Scheduled:
    """Weights of `ahead` layers are fetched before their turn (0: when it comes), and dropped after it.
    `resident`: as many layers as there is room for stay, the 'first' ones or some 'even'ly among all; 'none' does.
    What ops make stays while there is room. `squeeze`: 128ths of the room that are left unused."""
    capacity = problem.capacity_of(squeeze)
    model, spans = problem.model, layer_spans(problem.program, problem.model)
    visits = _visits(model, spans)
    first_layer = np.full(model.items, len(spans), dtype=np.int64)
    turn = np.arange(len(spans) + 1)
    if resident == "even":
        turn[np.argsort(turn[:-1] * GOLDEN % 1.0)] = np.arange(len(spans))
    np.minimum.at(first_layer, visits[:, 0], turn[visits[:, 1]])
    best = 0
    if resident != "none":
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


def _weights(model: OffloadModel, spans: Int32, visits: Int64, streamed: Int64, ahead: int) -> Residencies:
    """The stays of streamed weights; layers that follow each other share one."""
    rows = visits[np.isin(visits[:, 0], streamed)]
    if not len(rows):
        none = np.zeros(0, dtype=np.int32)
        return Residencies(none, none, none, none.astype(np.int8), none.astype(bool), none)
    opens = np.ones(len(rows), dtype=bool)
    opens[1:] = (rows[1:, 0] != rows[:-1, 0]) | (rows[1:, 1] != rows[:-1, 1] + 1)
    begin = np.flatnonzero(opens)
    end = np.append(begin[1:], len(rows)) - 1
    layer = rows[begin, 1]
    return Residencies(
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
    residencies = _weights(model, spans, visits, streamed, ahead)
    early = Residencies(
        residencies.item,
        np.maximum(residencies.earliest + 1, 0),
        residencies.last,
        residencies.begins,
        residencies.leaves,
        residencies.earliest,
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
    residencies = _weights(model, spans, visits, streamed, ahead)
    bare = residencies_of(model, settled(model, keep))
    extra = occupied(model, residencies) - occupied(model, _only(bare, streamed))
    # Activations make room for the layer that runs; a layer that is too large goes op by op.
    kept = repaired(model, keep, capacity, extra)
    rest = residencies_of(model, kept)
    room = occupied(model, rest) + extra
    if (room > capacity).any():
        return schedule(model, rest, capacity, 0)
    away = np.isin(rest.item, streamed)
    columns = [
        np.concatenate([getattr(rest, name)[~away], getattr(residencies, name)])
        for name in ("item", "first", "last", "begins", "leaves", "earliest")
    ]
    order = np.lexsort((columns[1], columns[0]))
    return schedule(model, Residencies(*(column[order] for column in columns)), capacity, NO_LIMIT)


def _only(residencies: Residencies, items: Int64) -> Residencies:
    rows = np.isin(residencies.item, items)
    return Residencies(
        residencies.item[rows],
        residencies.first[rows],
        residencies.last[rows],
        residencies.begins[rows],
        residencies.leaves[rows],
        residencies.earliest[rows],
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
        problem, began = meter.problem, meter.seconds
        assert isinstance(problem, Offload)
        for decision in self.make(problem):
            if not meter.exhausted:
                submit(meter, decision)
        problem.rule_seconds = max(problem.rule_seconds, meter.seconds - began)
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


AHEAD_EVENLY = 4
"""Times as many layers ahead where those that stay lie among those that are fetched: copies use the time of both."""


class _Layers(OneRule):
    ahead: int

    def __init__(self, resident: str = "first") -> None:
        if resident not in ("first", "even", "none"):
            raise LoadmasterError(
                f"resident can't be '{resident}'",
                object="resident",
                number=str(resident),
                remedy="use first, even or none",
            )
        self.resident = resident
        self.options = {"resident": resident}

    def make(self, problem: Offload) -> list[Decision]:
        ahead = self.ahead * (AHEAD_EVENLY if self.resident == "even" else 1)
        for squeeze in SQUEEZES:
            made = by_layers(problem, ahead=ahead, resident=self.resident, squeeze=squeeze)
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
    missing = distinct(model.gap_item[~keep])
    keep[np.isin(model.gap_item, missing)] = False
    return keep


BUFFERS = (1.0, 2.0, 4.0, 8.0)
"""Room for copies on their way, in largest streamed tensors."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the bytes that ops make and use again much later: how much leaves."""


class Spread(OneRule):
    name = "spread"
    summary = "what is streamed is spread evenly over the run (white box)"

    def make(self, problem: Offload) -> list[Decision]:
        made = {}
        for share, buffer, lead in product(SHARES, BUFFERS, (3, 6)):
            keep = spread_gaps(problem, share, buffer)
            made[keep.tobytes(), lead] = problem.vector(keep, lead)
        return list(made.values())


def spread_gaps(problem: Offload, share: float, buffer: float) -> Bool:
    """[G] kept gaps: activations first, then weights in the room that is left."""
    model, clock = problem.model, problem.clock
    weight = model.persistent[model.gap_item]
    keep = np.ones(model.gaps, dtype=bool)
    tiny = model.size[model.gap_item] <= model.capacity // SMALL
    keep[weight & ~tiny] = False
    long = np.flatnonzero(~weight & _is_long(problem))
    size = model.size[model.gap_item]
    if share > 0 and len(long):
        order = long[np.argsort(model.gap_from[long], kind="stable")]
        keep[order[_diffused(size[order], clock[model.gap_from[order]], share)]] = False
    room = max(problem.least, model.capacity - int(buffer * _typical(model)))
    keep = repaired(model, keep, room)
    before = np.flatnonzero((model.gap_kind == BEFORE_USE) & ~tiny)
    before = before[np.argsort(model.gap_to[before], kind="stable")]
    free = room - int(occupied(model, residencies_of(model, settled(model, keep))).max(initial=0))
    total = int(size[before].sum())
    if total:
        streamed = _diffused(size[before], clock[model.gap_to[before]], 1 - min(1.0, max(0, free) / total))
        chosen = np.zeros(len(before), dtype=bool)
        chosen[streamed] = True
        keep[before[~chosen]] = True
    return repaired(model, keep, room)


def _is_long(problem: Offload) -> Bool:
    """[G] gaps in which a copy out and one in have time, outputs included."""
    model, clock = problem.model, problem.clock
    wait = clock[model.gap_to] - clock[np.minimum(model.gap_from + 1, model.steps)]
    item = model.gap_item
    long: Bool = (wait > model.copy_in[item] + model.copy_out[item]) | (model.gap_kind == TO_END)
    return long


def _typical(model: OffloadModel) -> int:
    """Bytes of a large tensor that is streamed: larger than nine tenths of the weights' bytes."""
    size = np.sort(model.size[model.persistent | ~model.given])
    if not len(size):
        return 0
    below = np.cumsum(size) / size.sum()
    return int(size[min(len(size) - 1, int(np.searchsorted(below, 0.9)))])


def _diffused(size: Int64, time: Int64, share: float) -> Int64:
    """Rows that make up a share of the bytes, so that what was chosen keeps step with the clock."""
    goal, total = share * float(size.sum()), 0.0
    if goal <= 0:
        return np.zeros(0, dtype=np.int64)
    # By time where there is any between the first and the last; the last has all of the share.
    span = float(time[-1] - time[0]) if len(time) > 1 else 0.0
    bytes_before = np.cumsum(size) / float(size.sum())
    progress = (time - time[0]) / span if span > 0 else bytes_before
    progress = 0.5 * progress + 0.5 * bytes_before
    chosen = []
    for row, amount in enumerate(size.tolist()):
        if total + amount / 2 <= goal * float(progress[row]):
            chosen.append(row)
            total += amount
    return np.array(chosen, dtype=np.int64)


PACES = (0.8, 1.0, 1.3)
"""Of the link's own."""
AMOUNTS = (0.3, 0.6, 1.0, 1.3)
"""Of the bytes that do not fit."""


class Stream(OneRule):
    name = "stream"
    summary = "the first results leave as fast as the link takes them (white box)"

    def make(self, problem: Offload) -> list[Decision]:
        made = {}
        for amount, pace in product(AMOUNTS, PACES):
            keep = stream_gaps(problem, pace, amount)
            made[keep.tobytes()] = problem.vector(keep)
        return list(made.values())


def stream_gaps(problem: Offload, pace: float, amount: float) -> Bool:
    """[G] kept gaps: all but those in which something made leaves and has time to come back."""
    model, clock, item = problem.model, problem.clock, problem.model.gap_item
    keep = np.ones(model.gaps, dtype=bool)
    ready = clock[np.minimum(model.gap_from + 1, model.steps)]
    wait = clock[model.gap_to] - ready
    long = (
        (model.gap_kind == BETWEEN) & ~model.given[item] & (wait > model.copy_in[item] + model.copy_out[item])
    )
    rows = np.flatnonzero(long)
    left = amount * (model.needed - model.capacity)
    patience, free = int(model.copy_out.max(initial=0)), 0
    gone = np.zeros(model.items, dtype=bool)
    for gap in rows[np.argsort(model.gap_from[rows], kind="stable")].tolist():
        which, start = int(item[gap]), max(free, int(ready[gap]))
        if left <= 0:
            break
        if gone[which] or start - int(ready[gap]) > patience:
            continue
        keep[gap], gone[which] = False, True
        free, left = start + int(model.copy_out[which] / pace), left - int(model.size[which])
    return keep


class FromMsa(Solver):
    """Memory space assignment decides on the same program and machine; what it holds in fast memory from one
    use to the next stays. Weights that fit in the room that is left lie there between runs."""

    name, problem_kind = "msa", "offload"
    summary = "memory space assignment in the style of XLA, and weights in what room is left (white box)"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Offload)
        game = MallocGame(problem.program, problem.machine.with_reach("all"))
        found = solve(make_solver("malloc-game", "msa"), game, Budget(), seed)
        if found.decision is not None:
            try_filled(meter, problem, gaps_of_plan(problem.model, game.plan(found.decision)))
        return meter.solution()


def try_filled(meter: Meter, problem: Offload, keep: Decision) -> None:
    """As it is, and with more weights in the room that is left. What took all the time there was to find is
    tried nevertheless: it must not be lost."""
    model = problem.model
    tries = [keep]
    for share in (0.95, 0.8):
        order = np.argsort(-model.size[model.gap_item], kind="stable")
        tries.append(filled(model, keep, max(problem.least, int(model.capacity * share)), order))
    for number, each in enumerate(tries):
        late = (number == 0 or meter.best is None) and meter.evaluations_left != 0
        if late or not meter.exhausted:
            submit(meter, problem.vector(each))
