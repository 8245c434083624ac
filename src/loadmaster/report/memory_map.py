"""The map of a memory: what lies there, when and at which address, and how many bytes that makes.

Where a plan decides no address, a residency is drawn where a simple packer would put it, and marked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.plan.occupancy import Held, Occupancy, join_touching
from loadmaster.plan.plan import NO_OFFSET
from loadmaster.plan.steps import AT_HOME, match_equal
from loadmaster.simulate import Timeline

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
BY_COPY = -2
"""As the last op: a copy or transfer ends it."""
_LATEST = 2**61
"""Nothing that is drawn begins later."""
_LARGEST = 10


@dataclass(frozen=True)
class Residencies:
    """One row per stretch of time that a tensor spends in a memory, by memory, then begin."""

    memory: Int64
    tensor: Int64
    begin: Int64
    """Picoseconds."""
    end: Int64
    address: Int64
    size: Int64
    """Bytes, rounded up to the memory's alignment."""
    decided: npt.NDArray[np.bool_]
    """Whether the plan says the address."""
    first: Int64
    """The op that begins it; BEFORE: it is there before the program starts."""
    last: Int64
    """The last op that uses it; BY_COPY: a copy or transfer does; the number of ops: the end."""

    def __len__(self) -> int:
        return len(self.memory)


def compute_duration(timeline: Timeline) -> int:
    """Of the picture: a program of views alone takes no time, and still holds something."""
    return max(1, timeline.total_ps)


def find_residencies(occupancy: Occupancy, total: int) -> Residencies:
    """All that is held, with addresses; what is there for ever is drawn to `total`."""
    held = occupancy.held
    held = held.take(np.lexsort((held.tensor, held.begin, held.memory)))
    end = np.minimum(held.end, total)
    size = occupancy.align(occupancy.program.storage_bytes[held.tensor], held.memory)
    place, address = occupancy.place[held.tensor], held.offset.copy()
    for memory in np.unique(held.memory).tolist():
        here = np.flatnonzero(held.memory == memory)
        address[here] = _addresses(place[here], held.begin[here], end[here], size[here], held.offset[here])
    decided = held.offset != NO_OFFSET
    last = _last_uses(occupancy, held, total)
    return Residencies(held.memory, held.tensor, held.begin, end, address, size, decided, held.first, last)


def _last_uses(occupancy: Occupancy, held: Held, total: int) -> Int64:
    """[rows] the plan's word, or the op whose end lets go of what is at home."""
    steps, end = occupancy.steps, occupancy.clock.step[1]
    op, writer = np.append(steps.op, BY_COPY), steps.writer[held.tensor]
    written = (writer >= 0) & (np.append(end, -1)[writer] == held.end)
    step = np.where(written, writer, -1)
    home = np.flatnonzero(held.row == AT_HOME)
    read = np.full(len(held), -1, dtype=np.int64)
    for row, access in match_equal(held.tensor[home], steps.read_tensor):
        ends = end[steps.read_step[access]] == held.end[home[row]]
        np.maximum.at(read, home[row[ends]], steps.read_step[access[ends]])
    use = op[np.where(read >= 0, read, step)]
    use = np.where(held.end > total, occupancy.program.n_ops, use)
    return np.where(held.row == AT_HOME, use, held.last)


def _addresses(place: Int64, begin: Int64, end: Int64, size: Int64, offset: Int64) -> Int64:
    """[rows] addresses in one memory: stretches of one place at one offset that meet are one buffer;
    decided offsets stay, and the others go largest first where there is room."""
    loose = offset == NO_OFFSET
    if not loose.any():
        return offset
    spot = place
    if not loose.all():
        known, which = np.unique(offset, return_inverse=True)
        spot = place * len(known) + which
    joined = join_touching(spot, begin, end)
    count = int(joined.max()) + 1
    first, last, bytes_ = np.full(count, end.max()), np.full(count, -1), np.full(count, 0)
    np.minimum.at(first, joined, begin)
    np.maximum.at(last, joined, end)
    np.maximum.at(bytes_, joined, size)
    pinned = np.empty(count, dtype=np.int64)
    pinned[joined] = offset
    return _pack(first, last, bytes_, pinned)[joined]


def _pack(begin: Int64, end: Int64, size: Int64, offset: Int64) -> Int64:
    """[buffers] their addresses; those with an offset keep it."""
    loose = offset == NO_OFFSET
    whole = end - begin >= int((end - begin).max())
    always = (begin == begin.min()) & (end == end.max())
    if loose.all() and (size > 0).all() and always.any() and not always.all():
        return _pack_above(begin, end, size, always)
    order = np.lexsort((begin, -size, ~whole)).astype(np.int32)  # what stays longest, below
    found = _first_fit(begin, end, size, np.where(loose, -1, offset), order)
    if len(found):
        return found
    # Decided addresses that collide leave no room to reason about: the others go above all.
    above = int((offset + size)[~loose].max())
    order = np.argsort(-size[loose], kind="stable").astype(np.int32)
    address: Int64 = offset.copy()
    unpinned = np.full(int(loose.sum()), -1)
    address[loose] = above + _first_fit(begin[loose], end[loose], size[loose], unpinned, order)
    return address


def _pack_above(begin: Int64, end: Int64, size: Int64, always: npt.NDArray[np.bool_]) -> Int64:
    """The same where some are there all the time: one upon the other, largest first, and all others above."""
    below, others = np.flatnonzero(always), np.flatnonzero(~always)
    below = below[np.argsort(-size[below], kind="stable")]
    address = np.empty(len(begin), dtype=np.int64)
    address[below] = np.cumsum(size[below]) - size[below]
    order = np.lexsort((begin[others], -size[others])).astype(np.int32)
    loose = np.full(len(others), -1)
    placed = _first_fit(begin[others], end[others], size[others], loose, order)
    address[others] = int(size[below].sum()) + placed
    return address


def _first_fit(begin: Int64, end: Int64, size: Int64, pinned: Int64, order: Int32) -> Int64:
    """[buffers] offsets by first fit in this order around the pinned; empty if those collide."""
    none = np.full(len(begin), -1, dtype=np.int64)

    def column(values: Int64) -> Int64:
        return np.ascontiguousarray(values, dtype=np.int64)

    begin = np.minimum(begin, _LATEST)  # times that can't be told apart any more
    native = _core.Buffers(
        column(begin),
        column(np.clip(end, begin + 1, _LATEST + 1)),
        column(size),
        np.ones_like(none),
        column(pinned),
        none,
        np.empty((0, 5), dtype=np.int64),
        np.empty((0, 2), dtype=np.int32),
    )
    return np.asarray(native.place(order), dtype=np.int64)


@dataclass(frozen=True)
class Profile:
    """A memory's bytes: `bytes[i]` from `when[i]` on. The peak is that of the timeline."""

    memory: int
    when: Int64
    bytes: Int64
    peak: int
    peak_at: int
    """The first moment at which it is reached, picoseconds."""
    largest: list[int]
    """The largest tensors there then, largest first."""
    alive: int
    """How many tensors are there then."""


def find_profiles(occupancy: Occupancy, residencies: Residencies, total: int) -> list[Profile]:
    """Of every memory that holds anything."""
    memories = np.unique(residencies.memory).tolist()
    return [_profile(occupancy, residencies, memory, total) for memory in memories]


def _profile(occupancy: Occupancy, residencies: Residencies, memory: int, total: int) -> Profile:
    when, held = occupancy.profile(memory, total)
    top = int(held.argmax())
    at = int(when[top])
    there = (residencies.memory == memory) & (residencies.begin <= at) & (residencies.end > at)
    rows = np.flatnonzero(there)
    ranked = rows[np.lexsort((residencies.tensor[rows], -residencies.size[rows]))]
    tensors = list(dict.fromkeys(residencies.tensor[ranked].tolist()))
    return Profile(memory, when, held, int(held[top]), at, tensors[:_LARGEST], len(tensors))
