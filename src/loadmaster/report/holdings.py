"""What lies in which memory, when and at which address: the boxes of the map of a memory.

What a plan holds and between which moments is the checker's to say (`plan.check.memory.holds`).
Where a plan decides no address, a box is drawn where a simple packer would put it, and marked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.plan.check.facts import Facts, Report
from loadmaster.plan.check.memory import Hold, holds
from loadmaster.plan.check.timeline import Times
from loadmaster.plan.plan import BEFORE, NO_OFFSET
from loadmaster.simulate import Timeline

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
A_COPY = -2
"""As the last op: a copy or transfer ends it."""


@dataclass(frozen=True)
class Boxes:
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
    """The last op that uses it; A_COPY: a copy or transfer does; the number of ops: the end."""
    spans: dict[int, npt.NDArray[np.int64]]
    """Memory -> [k, 3] begin, end, bytes of its places: tensors that share one count once."""

    def __len__(self) -> int:
        return len(self.memory)


def duration(timeline: Timeline) -> int:
    """Of the picture: a program of views alone takes no time, and still holds something."""
    return max(1, timeline.total_ps)


def timed(facts: Facts, timeline: Timeline) -> Times:
    """The times of steps, copies and transfers."""
    times = Times(facts, timeline, Report())
    for tensor, device, start, end in timeline.transfers.tolist():
        times.transfer_times[tensor, device] = (start, end)
    for missing in facts.transfers.keys() - times.transfer_times.keys():  # of a plan that is not sound
        times.transfer_times[missing] = (timeline.total_ps, timeline.total_ps)
    return times


def find_boxes(facts: Facts, timeline: Timeline) -> Boxes:
    """All that is held, in the order of memories and time."""
    table = _rows(facts, timed(facts, timeline), duration(timeline))
    memory, tensor, begin, end, offset, size, first, last, place = table.T
    address, decided = offset.copy(), offset != NO_OFFSET
    spans: dict[int, Int64] = {}
    largest = np.zeros(facts.n_tensors, dtype=np.int64)  # of each place, whoever of it is here
    roots = np.array(facts.roots, dtype=np.int64)
    place_of, size_of = (np.array(c, dtype=np.int64) for c in (facts.place, facts.size))
    np.maximum.at(largest, place_of[roots], size_of[roots])
    for number in np.unique(memory).tolist():
        here = np.flatnonzero(memory == number)
        span, of_row = _merged(place[here], begin[here], end[here], size[here], offset[here])
        address[here] = _packed(span)[of_row]
        alignment = facts.machine.memories[number].alignment
        spans[number] = _once(span, -(-largest // alignment) * alignment)
    return Boxes(memory, tensor, begin, end, address, size, decided, first, last, spans)


def _rows(facts: Facts, times: Times, total: int) -> Int64:
    """[k, 9] memory, tensor, begin, end, offset, size, first, last, place of everything held."""
    windows = _windows(facts, times, total)
    found: list[tuple[int, ...]] = []
    for hold in holds(facts, times):
        end = min(hold.end, total)
        known = windows.get((hold.tensor, hold.memory, hold.begin, end))
        if known:
            offset, first, last = known.pop()
        else:
            offset = NO_OFFSET
            first = BEFORE if hold.op is None else hold.op
            last = _last_user(facts, times, hold, total)
        size = facts.aligned(facts.size[hold.tensor], hold.memory)
        place = facts.place[hold.tensor]
        found.append((hold.memory, hold.tensor, hold.begin, end, offset, size, first, last, place))
    table = np.array(found, dtype=np.int64).reshape(len(found), 9)
    return table[np.lexsort((table[:, 1], table[:, 2], table[:, 0]))]


_Windows = dict[tuple[int, int, int, int], list[tuple[int, int, int]]]


def _windows(facts: Facts, times: Times, total: int) -> _Windows:
    """(tensor, memory, begin, end) -> the residencies (offset, first, last) that are there then."""
    found: _Windows = {}
    for row, (tensor, memory, offset, first, last) in enumerate(facts.residencies):
        begin, end = facts.window(row)
        if begin > end:
            continue
        when = (0, total) if first == BEFORE else (times.step(begin)[0], times.step(end)[1])
        found.setdefault((tensor, memory, *when), []).append((offset, first, last))
    return found


def _last_user(facts: Facts, times: Times, hold: Hold, total: int) -> int:
    """The op whose end lets go of a home copy."""
    if hold.end > total:
        return facts.n_ops
    writer = facts.writer[hold.tensor]
    for rank in (*reversed(facts.readers[hold.tensor]), *([writer] if writer >= 0 else [])):
        if times.step(rank)[1] == hold.end:
            return facts.steps[rank].number
    return A_COPY


def _merged(place: Int64, begin: Int64, end: Int64, size: Int64, offset: Int64) -> tuple[Int64, Int64]:
    """Stretches of one place at one offset that meet in time, as one: ([k, 5] place, begin, end,
    bytes, offset; the stretch of each row)."""
    order = np.lexsort((begin, offset, place))
    spans: list[list[int]] = []
    of_row = np.empty(len(place), dtype=np.int64)
    columns = [column[order].tolist() for column in (place, begin, end, size, offset)]
    for row, p, b, e, s, o in zip(order.tolist(), *columns, strict=True):
        top = spans[-1] if spans else None
        if top is not None and top[0] == p and top[4] == o and b <= top[2]:
            top[2], top[3] = max(top[2], e), max(top[3], s)
        else:
            spans.append([p, b, e, s, o])
        of_row[row] = len(spans) - 1
    return np.array(spans, dtype=np.int64).reshape(len(spans), 5), of_row


def _once(span: Int64, size: Int64) -> Int64:
    """[k, 3] begin, end, bytes of places, each counted once, wherever it lies."""
    place, begin, end, _, _ = span.T
    joined, _ = _merged(place, begin, end, size[place], np.zeros_like(place))
    return joined[:, 1:4]


def _packed(span: Int64) -> Int64:
    """[k] addresses: the decided ones, and the others largest first where there is room."""
    _, begin, end, size, offset = span.T
    loose = offset == NO_OFFSET
    if not loose.any():
        return np.asarray(offset, dtype=np.int64)
    whole = end - begin >= int((end - begin).max())
    order = np.lexsort((begin, -size, ~whole)).astype(np.int32)  # what stays longest, below
    found = _placed(begin, end, size, np.where(loose, -1, offset), order)
    if len(found):
        return found
    # Decided addresses that collide leave no room to reason about: the others go above all.
    above = int((offset + size)[~loose].max())
    alone = _placed(
        begin[loose],
        end[loose],
        size[loose],
        np.full(int(loose.sum()), -1),
        np.argsort(-size[loose], kind="stable").astype(np.int32),
    )
    address: Int64 = offset.copy()
    address[loose] = above + alone
    return address


LATEST = 2**61
"""Nothing that is drawn begins later."""


def _placed(begin: Int64, end: Int64, size: Int64, pinned: Int64, order: Int32) -> Int64:
    """[k] offsets by first fit in this order around the pinned; empty if those collide."""
    none = np.full(len(begin), -1, dtype=np.int64)

    def column(values: Int64) -> Int64:
        return np.ascontiguousarray(values, dtype=np.int64)

    begin = np.minimum(begin, LATEST)  # times that can't be told apart any more
    native = _core.Buffers(
        column(begin),
        column(np.clip(end, begin + 1, LATEST + 1)),
        column(size),
        np.ones_like(none),
        column(pinned),
        none,
        np.empty((0, 5), dtype=np.int64),
        np.empty((0, 2), dtype=np.int32),
    )
    return np.asarray(native.place(order), dtype=np.int64)
