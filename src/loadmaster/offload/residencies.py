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

# ----------------------------------------------------------------------------
# From kept gaps to stays: which items are in fast memory from which step to which, and what to give up
# where that is too much.

RESIDENT, MADE, FETCHED = 0, 1, 2
"""How a stay begins: before the program, with the step that makes it, or with a copy."""

SMALL = 8192
"""What is smaller than this part of the capacity makes no room, and costs a copy all the same. (The native repair has
the same number.)"""


@dataclass(frozen=True, eq=False)
class Stays:
    """R stays by item, each from a step to a step, both included."""

    item: Int32
    first: Int32
    last: Int32
    begins: npt.NDArray[np.int8]
    """RESIDENT, MADE or FETCHED"""
    leaves: Bool
    """It is copied out: the host does not have it and it is needed after this stay."""
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


def stays_of(model: OffloadModel, kept: Bool) -> Stays:
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
    # An output that left before is on the host: its last stay ends with its last use.
    stays = to_end & is_first & _kept_or_none(model.end_gap[of], kept)
    last[stays] = model.steps - 1
    leaves = (begins == MADE) & (~is_last | (to_end & ~stays))
    return Stays(of, first, last, begins, leaves, np.full(len(of), -1, dtype=np.int32))


def is_held(model: OffloadModel, kept: Bool) -> Bool:
    """[B] whether an item lies in fast memory between runs."""
    return model.persistent & _kept_or_none(model.first_gap, kept)


def _kept_or_none(gap: Int32, kept: Bool) -> Bool:
    """Whether gaps are kept; where there is none (-1), there is nothing to leave for."""
    found = gap < 0
    found[~found] = kept[gap[~found]]
    return found


def occupied(model: OffloadModel, stays: Stays) -> Int64:
    """[S] bytes of fast memory that stays and kernels take."""
    change = np.zeros(model.steps + 1, dtype=np.int64)
    size = model.size[stays.item]
    np.add.at(change, stays.first, size)
    np.add.at(change, stays.last + 1, -size)
    return np.cumsum(change)[:-1] + model.taken


def repaired(model: OffloadModel, keep: Bool, capacity: int, extra: Int64 | None = None) -> Bool:
    """[G] settled gaps that fit: from the first step on at which too much is kept, what is used again
    last leaves first; what is tiny beside the capacity (`SMALL`), only if nothing else can. `extra` is [S], room
    that others take."""
    room = model.taken if extra is None else model.taken + extra
    kept: Bool = model.tables.repaired(np.asarray(keep, dtype=np.int8), capacity, room) != 0
    return kept


# ----------------------------------------------------------------------------
# Offsets in fast memory for stays: what lies there between runs from 0, the others above it.


def offsets_of(model: OffloadModel, stays: Stays, capacity: int, seconds: float = 0.0) -> Int64 | None:
    """[R] an offset for each stay, or None if none were found; see `pack`."""
    found = pack(model, stays, capacity, seconds)
    return None if found is None else found[0]


def pack(
    model: OffloadModel, stays: Stays, capacity: int, seconds: float = 0.0
) -> tuple[Int64, Int64] | None:
    """([R] an offset for each stay, [n, 3] step, begin and end of what each step's kernels take), or None if
    none were found.

    Some orders of first fit, and where none of them fits the exact search of about so many seconds' work.
    """
    size = model.size[stays.item]
    offset = np.zeros(len(size), dtype=np.int64)
    resident = np.flatnonzero(stays.begins == RESIDENT)
    ends = np.cumsum(size[resident])
    offset[resident] = ends - size[resident]
    base = int(ends[-1]) if len(ends) else 0
    moving, working = np.flatnonzero(stays.begins != RESIDENT), np.flatnonzero(model.taken)
    if base > capacity:
        return None
    scratch = np.stack([working, working, working], axis=1).astype(np.int64)
    if len(moving) + len(working):
        sizes = np.concatenate([size[moving], model.taken[working]])
        found = _packed(
            np.concatenate([stays.first[moving], working]).astype(np.int64),
            np.concatenate([stays.last[moving], working]).astype(np.int64) + 1,
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

    stays: Stays
    """`first` and `last` include the time that copies take"""
    issued: Int32
    """[R] the step after which its copy in is issued, or -1; of stays that are fetched"""
    needed: Int32
    """[R] the step that needs its copy in"""
    out_needed: Int32
    """[R] the step that needs its copy out, S: the end; of stays that leave"""
    offset: Int64 | None = None
    """[R] where they lie, if that is known already"""


def schedule(model: OffloadModel, stays: Stays, capacity: int, lead: int) -> Scheduled:
    """When stays (by item, then by step) begin and end with the copies that they need."""
    return _timed(stays, model.tables.scheduled(_table(stays), capacity, lead, model.taken))


def schedule_placed(model: OffloadModel, stays: Stays, lead: int) -> Scheduled | None:
    """The same at addresses: stays are packed as long as they are used, then get the time of their copies
    where nobody else lies. None: not even that packs."""
    found = pack(model, stays, model.capacity)
    if found is None:
        return None
    offset, scratch = found
    times, offset = model.tables.scheduled_placed(_table(stays), model.capacity, lead, scratch, offset)
    return replace(_timed(stays, times), offset=offset)


def _table(stays: Stays) -> Int32:
    return np.stack(
        [stays.item, stays.first, stays.last, stays.begins, stays.leaves, stays.earliest], axis=1
    ).astype(np.int32)


def _timed(stays: Stays, times: Int32) -> Scheduled:
    first, last, issued, out_needed = times.T.copy()
    whole = Stays(stays.item, first, last, stays.begins, stays.leaves, stays.earliest)
    return Scheduled(whole, issued, stays.first, out_needed)


def plan_of(model: OffloadModel, n_ops: int, made: Scheduled, offset: Int64 | None = None) -> Plan:
    """The rows of a plan; `offset` is [R], of each stay."""
    stays, op = made.stays, np.append(model.step_op, n_ops).astype(np.int64)
    after = np.concatenate([[0], model.step_op + 1])  # [step]: the op right after the step before
    count = len(stays.item)
    table = np.empty((count, 5), dtype=np.int64)
    table[:, 0], table[:, 1] = model.root[stays.item], model.fast
    table[:, 2] = NO_OFFSET if offset is None else offset
    resident, fetched = stays.begins == RESIDENT, stays.begins == FETCHED
    table[:, 3] = np.where(resident, BEFORE, np.where(fetched, after[stays.first], op[stays.first]))
    table[:, 4] = np.where(resident, n_ops - 1, op[stays.last])
    coming, leaving = np.flatnonzero(fetched), np.flatnonzero(stays.leaves)
    into = _copies(model, stays, coming, (model.home, model.fast))
    issue = made.issued[coming]
    into[:, 3] = np.where(issue < 0, BEFORE, op[issue])
    into[:, 4] = op[made.needed[coming]]
    out = _copies(model, stays, leaving, (model.fast, model.home))
    out[:, 3], out[:, 4] = op[model.made[stays.item[leaving]]], op[made.out_needed[leaving]]
    copies = np.concatenate([into, out])
    copies = copies[np.lexsort((copies[:, 0], copies[:, 4], copies[:, 3]))]
    return Plan(residencies=table if count else None, copies=copies if len(copies) else None)


def _copies(model: OffloadModel, stays: Stays, rows: Int64, way: tuple[int, int]) -> Int64:
    table = np.full((len(rows), 7), WHOLE, dtype=np.int64)
    table[:, 0] = model.root[stays.item[rows]]
    table[:, 1], table[:, 2] = way
    return table
