"""Rules `residency` and `overlap`: where bytes lie, for how long, and that nobody else lies there."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.plan.check.facts import Column, Facts, Mask, Report, Violation, distinct
from loadmaster.plan.plan import BEFORE, NO_OFFSET

_LEAF = 16
"""Moments of a stretch of time within which boxes are compared one by one."""
_FAR = 2**61
"""Offsets beyond are all the same: nothing is that large."""


def do_any_meet(begin: Column, end: Column, low: Column, high: Column) -> bool:
    """Whether two of n boxes share both a moment of [begin, end) and an address of [low, high).

    Time is halved again and again. In each half the boxes lie by address. One that fills the half's whole
    time may share addresses with no other there, which the highest end below it tells; those that do not
    are looked at in the halves of the half.
    """
    if len(low) < 2:
        return False
    by_low = np.argsort(low, kind="stable")
    begin, end = _numbered(begin[by_low], end[by_low], 8 * len(low))
    span = 1 << int(end.max()).bit_length()
    low, high = _numbered(low[by_low], high[by_low], (2**62 - 1) // span)
    floor = int(high.max()) + 1  # of a half above that of the half before it
    half = np.zeros(len(low), dtype=np.int64)
    boxes = np.stack([begin, end, low, high])
    while span > _LEAF and len(half):
        span //= 2
        middle = (2 * half + 1) * span
        early, late = np.flatnonzero(boxes[0] < middle), np.flatnonzero(boxes[1] > middle)
        half = np.concatenate([2 * half[early], 2 * half[late] + 1])
        order = np.argsort(half, kind="stable")  # two ascending runs
        half = half[order]
        order = np.concatenate([early, late])[order]
        begin, end, low, high = boxes = boxes[:, order]
        full = (begin <= half * span) & (end >= (half + 1) * span)
        if not full.any():
            continue
        base = half * floor
        bottom, top = base + low, base + high
        below_full = np.maximum.accumulate(np.where(full, top, 0))
        below_other = np.maximum.accumulate(np.where(full, 0, top))
        if (below_full[:-1] > bottom[1:]).any() or (full[1:] & (below_other[:-1] > bottom[1:])).any():
            return True
        half = half[~full]
        begin, end, low, high = boxes = boxes[:, ~full]
    near = np.arange(len(half) - 1)
    step = 1
    while len(near):  # with the next above, the next but one, … as long as they share addresses
        near = near[(half[near] == half[near + step]) & (low[near + step] < high[near])]
        if ((begin[near] < end[near + step]) & (begin[near + step] < end[near])).any():
            return True
        step += 1
        near = near[near + step < len(half)]
    return False


def _numbered(start: Column, end: Column, most: int) -> tuple[Column, Column]:
    """The same ends in numbers from 0 to `most` that compare alike."""
    least = int(start.min())
    if int(end.max()) - least <= most:
        return start - least, end - least
    ordered = np.sort(np.concatenate([start, end]))
    return np.searchsorted(ordered, start), np.searchsorted(ordered, end)


# Is a placement of buffers sound? Apart from every allocator.

Piece = tuple[int, int, int, int, int]
"""(buffer, lower, upper, low, high): the buffer's bytes [low, high) are in use during [lower, upper)."""


def check_offsets(
    ids: Sequence[str],
    pieces: Sequence[Column],
    sizes: Column,
    offsets: Column,
    *,
    alignment: Column,
    pinned: Column,
    apart: Sequence[tuple[int, int]] = (),
    capacity: int | None = None,
) -> list[Violation]:
    """Every defect of a placement, or the empty list. `pieces`: the five columns of `Piece`."""
    found = []
    ends = np.clip(offsets, -_FAR, _FAR) + sizes
    wrong = (offsets < 0) | (offsets % alignment != 0) | ((pinned >= 0) & (offsets != pinned))
    if capacity is not None:
        wrong |= ends > capacity
    for b in np.flatnonzero(wrong).tolist():
        offset = int(offsets[b])
        end = offset + int(sizes[b])
        if offset < 0:
            found.append(_violation("residency", f"buffer '{ids[b]}' has no offset ({offset})", b, offset))
        if offset % alignment[b]:
            found.append(
                _violation(
                    "residency",
                    f"buffer '{ids[b]}' is at {offset:,}, off its alignment {alignment[b]:,}",
                    b,
                    offset,
                )
            )
        if pinned[b] >= 0 and offset != pinned[b]:
            found.append(
                _violation(
                    "residency",
                    f"buffer '{ids[b]}' is pinned to {pinned[b]:,} and lies at {offset:,}",
                    b,
                    offset,
                )
            )
        if capacity is not None and end > capacity:
            found.append(
                _violation(
                    "capacity",
                    f"buffer '{ids[b]}' ends at {end:,} and the capacity is {capacity:,}",
                    b,
                    end - capacity,
                )
            )
    for a, b in apart:
        if max(offsets[a], offsets[b]) < min(ends[a], ends[b]):
            found.append(
                _violation(
                    "overlap",
                    f"buffers '{ids[a]}' and '{ids[b]}' share bytes and must be kept apart",
                    a,
                    int(offsets[a]),
                )
            )
    buffer, lower, upper, low, high = (column[pieces[4] > pieces[3]] for column in pieces)
    start = np.clip(offsets, -_FAR, _FAR)[buffer]
    if not do_any_meet(lower, upper, start + low, start + high):
        return found
    rows = list(zip(*(column.tolist() for column in pieces), strict=True))
    return found + _overlaps(ids, rows, offsets.tolist())


def _overlaps(ids: Sequence[str], pieces: Sequence[Piece], offsets: Sequence[int]) -> list[Violation]:
    # Sweep over time; what is alive is kept by address, so only neighbours can collide.
    events = sorted(
        event
        for i, (_, lower, upper, low, high) in enumerate(pieces)
        if high > low
        for event in ((lower, 1, i), (upper, 0, i))
    )
    found = []
    alive: list[tuple[int, int, int]] = []
    for time, begins, i in events:
        buffer, _, _, low, high = pieces[i]
        entry = (offsets[buffer] + low, offsets[buffer] + high, i)
        at = bisect_left(alive, entry)
        if not begins:
            if at < len(alive) and alive[at] == entry:
                del alive[at]
            continue
        for neighbour in alive[max(0, at - 1) : at + 1]:
            if neighbour[0] < entry[1] and entry[0] < neighbour[1]:
                other = pieces[neighbour[2]][0]
                found.append(
                    _violation(
                        "overlap",
                        f"buffers '{ids[other]}' and '{ids[buffer]}' share address "
                        f"{max(entry[0], neighbour[0]):,} at time {time}",
                        buffer,
                        time,
                    )
                )
                break
        else:
            insort(alive, entry)
    return found


def _violation(rule: str, message: str, buffer: int, number: int) -> Violation:
    return Violation(rule, message, buffer, None, number)


def check_residency(facts: Facts, report: Report) -> None:
    """Each residency by itself."""
    tensor, memory, offset = facts.res_tensor, facts.res_memory, facts.res_offset
    first, last = facts.res_first, facts.res_last
    reachable: Mask = np.asarray((facts.turn < len(facts.capacity)).any(axis=0))
    at_home = np.isin(memory, facts.home)
    begin, end = (facts.position[column] if facts.n_ops else column for column in (first, last))
    before, placed = first == BEFORE, offset != NO_OFFSET
    wrong = ~facts.is_root[tensor] | ~reachable[memory]
    wrong |= ~facts.program.tensor_fast[tensor] & ~at_home
    wrong |= np.where(before, ~facts.is_persistent[tensor] | (end != facts.n_ops - 1), begin > end)
    ends = offset + facts.align(facts.size[tensor], memory)
    wrong |= placed & ((offset % facts.alignment[memory] != 0) | (ends > facts.capacity[memory]))
    for row in np.flatnonzero(wrong).tolist():
        _describe_residency(facts, row, bool(reachable[memory[row]]), report)


def _describe_residency(facts: Facts, row: int, is_reachable: bool, report: Report) -> None:
    """What is wrong with one of them."""
    tensor, memory, offset, first, last = facts.residency(row)
    last_op = facts.n_ops - 1
    what = f"residency {row} of {facts.tensor_text(tensor)} in {facts.memory_text(memory)}"
    about = facts.machine.memories[memory]

    def bad(message: str, op: int | None, number: int, tensor: int = tensor) -> None:
        report.add("residency", message, tensor=tensor, op=op, number=number)

    op = last if first == BEFORE else first
    if facts.root[tensor] != tensor:
        owner = facts.tensor_text(facts.root[tensor])
        bad(f"{what}: the tensor is a view of {owner}: place that one", op, row)
    if not is_reachable:
        bad(f"{what}: no device reaches this memory ({memory})", op, memory)
    elif not facts.program.tensor_fast[tensor] and memory not in facts.machine.home:
        bad(f"{what}: it may only live in the last memory of a device", op, memory)
    if first != BEFORE:
        begin, end = facts.position[first], facts.position[last]
        if begin > end:
            bad(
                f"{what} ends with {facts.op_text(last)} at position {end} and begins with "
                f"{facts.op_text(first)} at position {begin}: swap them",
                first,
                begin,
            )
    elif not facts.is_persistent[tensor]:
        bad(
            f"{what} is there before the program ({BEFORE}) and only weights and state can be: "
            "begin with an op",
            last,
            BEFORE,
        )
    elif last != last_op and facts.position[last] != last_op:
        bad(
            f"{what} is there before the program and must stay to the end: it ends with "
            f"{facts.op_text(last)}, use op {last_op}",
            last,
            last,
        )
    if offset == NO_OFFSET:
        return
    if offset % about.alignment:
        lower = offset - offset % about.alignment
        bad(
            f"{what} has offset {offset:,}, no multiple of {about.alignment:,}: use {lower:,} or "
            f"{lower + about.alignment:,}",
            op,
            offset,
        )
    end = offset + -(-int(facts.size[tensor]) // about.alignment) * about.alignment
    if end > about.capacity:
        bad(
            f"{facts.memory_text(memory)} needs {end:,} bytes for {facts.tensor_text(tensor)} at "
            f"offset {offset:,} from {facts.op_text(op)} on and has {about.capacity:,}: use a "
            "lower offset or another memory",
            op,
            end - about.capacity,
        )


class Block(NamedTuple):
    """Bytes [low, high) of one memory, held from `begin` to `end`, both included."""

    begin: int
    end: int
    low: int
    high: int
    row: int


def check_overlap(facts: Facts, report: Report) -> None:
    """Two residencies of one memory never share both time and addresses.

    Tensors of one place (tied) may, at equal offsets. One tensor in two spots of one memory at
    one time is refused as well: nobody could say which of them is read.
    """
    for first, second, begin in find_overlaps(facts, facts.windows, report):
        one, other = facts.residency(first), facts.residency(second)
        op = facts.op_at(begin)
        report.add(
            "overlap",
            f"{facts.memory_text(one.memory)} holds {facts.tensor_text(one.tensor)} "
            f"({facts.size[one.tensor]:,} bytes at {one.offset:,}, residency {first}) and "
            f"{facts.tensor_text(other.tensor)} ({facts.size[other.tensor]:,} bytes at "
            f"{other.offset:,}, residency {second}) at {facts.op_text(op)}: move one",
            tensor=other.tensor,
            op=op,
            number=second,
        )
    several = np.flatnonzero(facts.residencies_of.counts > 1)
    first_row = facts.residencies_of.entry[facts.residencies_of.start[several]]
    for tensor in several[np.argsort(first_row)].tolist():
        _one_spot(facts, tensor, facts.residencies_of[tensor], report)


def _one_spot(facts: Facts, tensor: int, rows: list[int], report: Report) -> None:
    """A tensor has one offset in a memory at a time."""
    newest: dict[int, int] = {}
    windows = {row: facts.window(row) for row in rows}
    for row in sorted(rows, key=windows.__getitem__):
        if windows[row][0] > windows[row][1]:
            continue
        memory, offset = int(facts.res_memory[row]), int(facts.res_offset[row])
        old = newest.get(memory)
        if old is not None and windows[row][0] <= windows[old][1] and facts.res_offset[old] != offset:
            there = int(facts.res_offset[old])
            if abs(there - offset) >= facts.size[tensor] or NO_OFFSET in (there, offset):
                op = facts.op_at(windows[row][0])
                report.add(
                    "overlap",
                    f"{facts.tensor_text(tensor)} is in {facts.memory_text(memory)} "
                    f"at {there:,} (residency {old}) and at {offset:,} "
                    f"(residency {row}) at {facts.op_text(op)}: let one end before",
                    tensor=tensor,
                    op=op,
                    number=row,
                )
        if old is None or windows[row][1] >= windows[old][1]:
            newest[memory] = row


def find_overlaps(facts: Facts, windows: tuple[Column, Column], report: Report) -> list[tuple[int, int, int]]:
    """(row, later row, when they meet) for residencies that share time and addresses."""
    begin, end = windows
    size = facts.size[facts.res_tensor]
    solid = (begin <= end) & (facts.res_offset != NO_OFFSET) & (size > 0)
    found: list[tuple[int, int, int]] = []
    for memory in np.unique(facts.res_memory[solid]).tolist():
        rows = np.flatnonzero(solid & (facts.res_memory == memory))
        low = facts.res_offset[rows]
        columns = begin[rows], end[rows], low, low + size[rows]
        boxes = columns[0], columns[1] + 1, *columns[2:]
        if len(distinct(facts.place[facts.res_tensor[rows]])) < len(rows):
            boxes = _one_per_place(facts.place[facts.res_tensor[rows]], *columns)
        if do_any_meet(*boxes):
            blocks = [Block(*row) for row in zip(*(c.tolist() for c in (*columns, rows)), strict=True)]
            found += _sweep(facts, sorted(blocks), report)
    return found


def _one_per_place(
    place: Column, begin: Column, end: Column, low: Column, high: Column
) -> tuple[Column, Column, Column, Column]:
    """Boxes with ends of time that are not included; tied ones at one offset that meet in time, which they
    may, as one box around them."""
    order = np.lexsort((begin, low, place))
    place, begin, end, low, high = place[order], begin[order], end[order], low[order], high[order]
    same = (place[1:] == place[:-1]) & (low[1:] == low[:-1])
    if not same.any():
        return begin, end + 1, low, high
    spot = np.cumsum(np.append(0, ~same))
    moments, ranks = np.unique(end, return_inverse=True)
    latest = moments[np.maximum.accumulate(spot * len(moments) + ranks) % len(moments)]
    starts = np.flatnonzero(np.append(True, ~same | (begin[1:] > latest[:-1])))
    return begin[starts], np.maximum.reduceat(end, starts) + 1, low[starts], np.maximum.reduceat(high, starts)


def _sweep(facts: Facts, blocks: list[Block], report: Report) -> list[tuple[int, int, int]]:
    """Walk through time with the blocks that are held, sorted by address.

    Those in `held` have disjoint addresses or, tied, equal offsets, so only the neighbours of a
    new block can meet it. A block that meets another one is kept apart, in `stray`, and
    compared with each later block: there are few of them, or the report is full.
    """
    place = [facts.place[facts.res_tensor[block.row]] for block in blocks]
    held: list[tuple[int, int]] = []  # (low, index into blocks)
    stray: list[int] = []
    ends: list[tuple[int, int]] = []  # heap of (end, index)
    found: list[tuple[int, int, int]] = []
    for index, new in enumerate(blocks):
        while ends and ends[0][0] < new.begin:
            _, gone = heapq.heappop(ends)
            spot = bisect_left(held, (blocks[gone].low, gone))
            if spot < len(held) and held[spot][1] == gone:
                del held[spot]
            else:
                stray.remove(gone)
        first = bisect_left(held, (new.low, -1))
        if first > 0:  # the next offset below, where several tied blocks may lie
            first = bisect_left(held, (held[first - 1][0], -1))
        near = [other for _, other in held[first : bisect_left(held, (new.high, -1))]]
        meets = [
            other
            for other in near + stray
            if blocks[other].low < new.high
            and new.low < blocks[other].high
            and not (place[other] == place[index] and blocks[other].low == new.low)
        ]
        found += [(blocks[other].row, new.row, new.begin) for other in meets]
        if len(found) > 1_000 or report.is_full("overlap"):
            return found
        heapq.heappush(ends, (new.end, index))
        if meets:
            stray.append(index)
        else:
            insort(held, (new.low, index))
    return found
