"""From stays to a plan: when each copy is issued, and what must wait for it.

Copies out are issued when the tensor is made and hold its room until they are expected to be done, or
until the room is needed. Copies in follow in the order of need: each as late as the link allows if no
step is to wait, `lead` earlier, and later where there is no room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.allocation.pack import search_nodes
from loadmaster.host import cores
from loadmaster.offload.model import BEFORE_USE, BETWEEN, Bool, Int32, Int64, OffloadModel
from loadmaster.plan.plan import BEFORE, NO_OFFSET, WHOLE, Plan

RESIDENT, MADE, FETCHED = 0, 1, 2
"""How a residency begins: before the program, with the step that makes it, or with a copy."""

SMALL = 8192
"""What is smaller than this part of the capacity makes no room, and costs a copy all the same. (The native repair has
the same number.)"""


@dataclass(frozen=True, eq=False)
class Residencies:
    """R stays by item, each from a step to a step, both included."""

    item: Int32
    first: Int32
    last: Int32
    begins: npt.NDArray[np.int8]
    """RESIDENT, MADE or FETCHED"""
    leaves: Bool
    """It is copied out: the host does not have it and it is needed after it."""
    earliest: Int32
    """The step before whose end its copy must not be issued (-1: none)"""


def settled(model: OffloadModel, keep: Bool) -> Bool:
    """[G] the same gaps, without what has no meaning: gaps within a life in fast memory are kept, and
    an output that was copied out is at home at the end."""
    kept = keep.copy()
    resident = np.zeros(model.items, dtype=bool)
    before = model.gap_kind == BEFORE_USE
    resident[model.gap_item[before & keep]] = True
    kept |= resident[model.gap_item]
    left = np.zeros(model.items, dtype=bool)
    left[model.gap_item[(model.gap_kind == BETWEEN) & ~kept]] = True
    ends = model.end_gap[left & (model.end_gap >= 0)]
    kept[ends] = False
    return kept


def residencies_of(model: OffloadModel, kept: Bool) -> Residencies:
    """The stays of settled gaps."""
    item, step = model.use_item, model.use_step
    opens = np.ones(len(item), dtype=bool)
    opens[1:] = item[1:] != item[:-1]
    split = np.zeros(len(item), dtype=bool)
    has = model.use_gap >= 0
    split[has] = ~kept[model.use_gap[has]]
    begin = np.flatnonzero(opens | split)
    end = np.append(begin[1:], len(item))[: len(begin)] - 1  # none where nothing is used
    of, first, last = item[begin], step[begin].copy(), step[end].copy()
    is_first = opens[begin]
    begins = np.where(is_first & ~model.given[of], MADE, FETCHED).astype(np.int8)
    held = is_held(model, kept)[of]
    begins[held], first[held], last[held] = RESIDENT, 0, model.steps - 1
    is_last = np.append(of[1:] != of[:-1], True) if len(of) else np.zeros(0, dtype=bool)
    to_end = model.output[of] & is_last & (begins != RESIDENT)
    # An output that left before is on the host: its last residency ends with its last use.
    residencies = to_end & is_first & _kept_or_none(model.end_gap[of], kept)
    last[residencies] = model.steps - 1
    leaves = (begins == MADE) & (~is_last | (to_end & ~residencies))
    return Residencies(of, first, last, begins, leaves, np.full(len(of), -1, dtype=np.int32))


def is_held(model: OffloadModel, kept: Bool) -> Bool:
    """[B] whether an item lies in fast memory between runs."""
    return model.persistent & _kept_or_none(model.first_gap, kept)


def _kept_or_none(gap: Int32, kept: Bool) -> Bool:
    """Whether gaps are kept; where there is none (-1), there is nothing to leave for."""
    found = gap < 0
    found[~found] = kept[gap[~found]]
    return found


def occupied(model: OffloadModel, residencies: Residencies) -> Int64:
    """[S] bytes of fast memory that stays and kernels take."""
    change = np.zeros(model.steps + 1, dtype=np.int64)
    size = model.size[residencies.item]
    np.add.at(change, residencies.first, size)
    np.add.at(change, residencies.last + 1, -size)
    return np.cumsum(change)[:-1] + model.taken


def repaired(model: OffloadModel, keep: Bool, capacity: int, extra: Int64 | None = None) -> Bool:
    """[G] settled gaps that fit: from the first step on at which too much is kept, what is used again
    last leaves first; what is tiny beside the capacity (`SMALL`), only if nothing else can. `extra` is [S], room
    that others take."""
    room = model.taken if extra is None else model.taken + extra
    kept: Bool = model.tables.repaired(np.asarray(keep, dtype=np.int8), capacity, room) != 0
    return kept


def offsets_of(
    model: OffloadModel, residencies: Residencies, capacity: int, seconds: float = 0.0
) -> Int64 | None:
    """[R] an offset for each residency, or None if none were found; see `pack`."""
    found = pack(model, residencies, capacity, seconds)
    return None if found is None else found[0]


def pack(
    model: OffloadModel, residencies: Residencies, capacity: int, seconds: float = 0.0
) -> tuple[Int64, Int64] | None:
    """([R] an offset for each residency, [n, 3] step, begin and end of what each step's kernels take), or None if
    none were found.

    Some orders of first fit, and where none of them fits the exact search of about so many seconds' work.
    """
    size = model.size[residencies.item]
    offset = np.zeros(len(size), dtype=np.int64)
    resident = np.flatnonzero(residencies.begins == RESIDENT)
    ends = np.cumsum(size[resident])
    offset[resident] = ends - size[resident]
    base = int(ends[-1]) if len(ends) else 0
    moving, working = np.flatnonzero(residencies.begins != RESIDENT), np.flatnonzero(model.taken)
    if base > capacity:
        return None
    scratch = np.stack([working, working, working], axis=1).astype(np.int64)
    if len(moving) + len(working):
        sizes = np.concatenate([size[moving], model.taken[working]])
        found = _packed(
            np.concatenate([residencies.first[moving], working]).astype(np.int64),
            np.concatenate([residencies.last[moving], working]).astype(np.int64) + 1,
            sizes,
            capacity - base,
            seconds,
        )
        if found is None:
            return None
        offset[moving] = base + found[: len(moving)]
        scratch[:, 1] = base + found[len(moving) :]
        scratch[:, 2] = scratch[:, 1] + model.taken[working]
    return offset, scratch


def _packed(lower: Int64, upper: Int64, size: Int64, capacity: int, seconds: float) -> Int64 | None:
    count = len(size)
    nowhere = np.full(count, -1, dtype=np.int64)
    buffers = _core.Buffers(
        lower,
        upper,
        size,
        np.ones(count, dtype=np.int64),
        nowhere,
        nowhere,
        np.empty((0, 5), dtype=np.int64),
        np.empty((0, 2), dtype=np.int32),
    )
    length = upper - lower
    for keys in ((lower, -size), (-length, -size), (lower, -(size * length)), (-size, lower), (size, lower)):
        offset: Int64 = buffers.place(np.lexsort(keys).astype(np.int32))
        if int((offset + size).max()) <= capacity:
            return offset
    if capacity <= 0 or seconds <= 0:
        return None
    stop = _core.Stop(-1.0, search_nodes(seconds, count))
    _, exact, *_ = buffers.fit(capacity, {"threads": cores(), "seed": 0}, stop)
    return exact if len(exact) else None


@dataclass(frozen=True, eq=False)
class Scheduled:
    """Stays with the times of their copies, in steps."""

    residencies: Residencies
    """`first` and `last` include the time that copies take"""
    issued: Int32
    """[R] the step after which its copy in is issued, or -1; of stays that are fetched"""
    needed: Int32
    """[R] the step that needs its copy in"""
    out_needed: Int32
    """[R] the step that needs its copy out, S: the end; of stays that leave"""
    offset: Int64 | None = None
    """[R] where they lie, if that is known already"""


def schedule(model: OffloadModel, residencies: Residencies, capacity: int, lead: int) -> Scheduled:
    """When stays (by item, then by step) begin and end with the copies that they need."""
    return _timed(residencies, model.tables.scheduled(_table(residencies), capacity, lead, model.taken))


def schedule_placed(model: OffloadModel, residencies: Residencies, lead: int) -> Scheduled | None:
    """The same at addresses: stays are packed as long as they are used, then get the time of their copies
    where nobody else lies. None: not even that packs."""
    found = pack(model, residencies, model.capacity)
    if found is None:
        return None
    offset, scratch = found
    times, offset = model.tables.scheduled_placed(_table(residencies), model.capacity, lead, scratch, offset)
    return replace(_timed(residencies, times), offset=offset)


def _table(residencies: Residencies) -> Int32:
    return np.stack(
        [
            residencies.item,
            residencies.first,
            residencies.last,
            residencies.begins,
            residencies.leaves,
            residencies.earliest,
        ],
        axis=1,
    ).astype(np.int32)


def _timed(residencies: Residencies, times: Int32) -> Scheduled:
    first, last, issued, out_needed = times.T.copy()
    whole = Residencies(
        residencies.item, first, last, residencies.begins, residencies.leaves, residencies.earliest
    )
    return Scheduled(whole, issued, residencies.first, out_needed)


def plan_of(model: OffloadModel, n_ops: int, made: Scheduled, offset: Int64 | None = None) -> Plan:
    """The rows of a plan; `offset` is [R], of each residency."""
    residencies, op = made.residencies, np.append(model.step_op, n_ops).astype(np.int64)
    after = np.concatenate([[0], model.step_op + 1])  # [step]: the op right after the step before
    count = len(residencies.item)
    table = np.empty((count, 5), dtype=np.int64)
    table[:, 0], table[:, 1] = model.root[residencies.item], model.fast
    table[:, 2] = NO_OFFSET if offset is None else offset
    resident, fetched = residencies.begins == RESIDENT, residencies.begins == FETCHED
    table[:, 3] = np.where(
        resident, BEFORE, np.where(fetched, after[residencies.first], op[residencies.first])
    )
    table[:, 4] = np.where(resident, n_ops - 1, op[residencies.last])
    coming, leaving = np.flatnonzero(fetched), np.flatnonzero(residencies.leaves)
    into = _copies(model, residencies, coming, (model.home, model.fast))
    issue = made.issued[coming]
    into[:, 3] = np.where(issue < 0, BEFORE, op[issue])
    into[:, 4] = op[made.needed[coming]]
    out = _copies(model, residencies, leaving, (model.fast, model.home))
    out[:, 3], out[:, 4] = op[model.made[residencies.item[leaving]]], op[made.out_needed[leaving]]
    copies = np.concatenate([into, out])
    copies = copies[np.lexsort((copies[:, 0], copies[:, 4], copies[:, 3]))]
    return Plan(residencies=table if count else None, copies=copies if len(copies) else None)


def _copies(model: OffloadModel, residencies: Residencies, rows: Int64, way: tuple[int, int]) -> Int64:
    table = np.full((len(rows), 7), WHOLE, dtype=np.int64)
    table[:, 0] = model.root[residencies.item[rows]]
    table[:, 1], table[:, 2] = way
    return table


def gaps_of_plan(model: OffloadModel, plan: Plan) -> Bool:
    """[G] the gaps over which a plan, of a MallocGame for instance, holds tensors in fast memory."""
    keep = np.zeros(model.gaps, dtype=bool)
    spans: dict[int, list[tuple[int, int]]] = {}
    for row in plan.residency_rows:
        if row.memory == model.fast:
            spans.setdefault(row.tensor, []).append((row.first, row.last))
    op = np.append(model.step_op, model.step_op[-1:]).tolist()  # the last: of the end
    for gap in range(model.gaps):
        item = int(model.gap_item[gap])
        begin, end = int(model.gap_from[gap]), int(model.gap_to[gap])
        since, until = BEFORE if begin < 0 else op[begin], op[end]
        rows = spans.get(int(model.root[item]), ())
        keep[gap] = any(first <= since and until <= last for first, last in rows)
    return keep


def gaps_of_mapping(model: OffloadModel, memory: npt.NDArray[np.integer]) -> Bool:
    """[G] all gaps of the tensors that a map (memory of each root, or -1) has in fast memory."""
    keep: Bool = (np.asarray(memory)[model.root] == model.fast)[model.gap_item]
    return keep


def filled(model: OffloadModel, keep: Bool, capacity: int, order: Int64) -> Bool:
    """[G] the same gaps and, in this order, all others that fit beside what is kept already."""
    kept = settled(model, keep)
    room = occupied(model, residencies_of(model, kept))
    for gap in order.tolist():
        item = int(model.gap_item[gap])
        before = model.first_gap[item]
        if kept[gap] or (before >= 0 and kept[before]):
            continue
        more = _room_of(model, kept, gap)
        if (room + more <= capacity).all():
            room += more
            kept[gap] = True
    return settled(model, kept)


def _room_of(model: OffloadModel, kept: Bool, gap: int) -> Int64:
    """[S] the bytes that keeping one more gap takes."""
    item = int(model.gap_item[gap])
    more = np.zeros(model.steps, dtype=np.int64)
    if model.gap_kind[gap] != BEFORE_USE:
        more[model.gap_from[gap] + 1 : model.gap_to[gap]] = model.size[item]
        return more
    more[:] = model.size[item]
    uses = range(int(model.use_start[item]), int(model.use_start[item + 1]))
    for use in uses:
        more[model.use_step[use]] = 0
        between = int(model.use_gap[use])
        if use > uses.start and (between < 0 or kept[between]):
            more[model.use_step[use - 1] : model.use_step[use]] = 0
    return more
