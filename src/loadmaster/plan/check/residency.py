"""Rules `residency` and `overlap`: where bytes lie, for how long, and that nobody else lies there."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import NamedTuple

from loadmaster.plan.check.facts import Facts
from loadmaster.plan.check.report import Report
from loadmaster.plan.plan import BEFORE, NO_OFFSET


def check_residency(facts: Facts, report: Report) -> None:
    """Each residency by itself."""
    reachable = {memory for memories in facts.machine.reach for memory in memories}
    may_be_fast = facts.program.tensor_fast.tolist()
    last_op = facts.n_ops - 1
    for row, (tensor, memory, offset, first, last) in enumerate(facts.residencies):
        what = f"residency {row} of {facts.tensor_text(tensor)} in {facts.memory_text(memory)}"
        size, about = facts.size[tensor], facts.machine.memories[memory]

        def bad(message: str, op: int | None, number: int, tensor: int = tensor) -> None:
            report.add("residency", message, tensor=tensor, op=op, number=number)

        op = last if first == BEFORE else first
        if facts.root[tensor] != tensor:
            owner = facts.tensor_text(facts.root[tensor])
            bad(f"{what}: the tensor is a view of {owner}: place that one", op, row)
        if memory not in reachable:
            bad(f"{what}: no device reaches this memory ({memory})", op, memory)
        elif not may_be_fast[tensor] and memory not in facts.machine.home:
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
            continue
        if offset % about.alignment:
            lower = offset - offset % about.alignment
            bad(
                f"{what} has offset {offset:,}, no multiple of {about.alignment:,}: use {lower:,} or "
                f"{lower + about.alignment:,}",
                op,
                offset,
            )
        end = offset + facts.aligned(size, memory)
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
    windows = [facts.window(row) for row in range(len(facts.residencies))]
    for first, second, begin in overlapping(facts, windows, report):
        memory = facts.residencies[first].memory
        one, other = facts.residencies[first], facts.residencies[second]
        op = facts.op_at(begin)
        report.add(
            "overlap",
            f"{facts.memory_text(memory)} holds {facts.tensor_text(one.tensor)} "
            f"({facts.size[one.tensor]:,} bytes at {one.offset:,}, residency {first}) and "
            f"{facts.tensor_text(other.tensor)} ({facts.size[other.tensor]:,} bytes at "
            f"{other.offset:,}, residency {second}) at {facts.op_text(op)}: move one",
            tensor=other.tensor,
            op=op,
            number=second,
        )
    for tensor, rows in facts.residencies_of.items():
        _one_spot(facts, tensor, rows, windows, report)


def _one_spot(
    facts: Facts, tensor: int, rows: list[int], windows: list[tuple[int, int]], report: Report
) -> None:
    """A tensor has one offset in a memory at a time."""
    newest: dict[int, int] = {}
    for row in sorted(rows, key=windows.__getitem__):
        if windows[row][0] > windows[row][1]:
            continue
        memory, offset = facts.residencies[row].memory, facts.residencies[row].offset
        old = newest.get(memory)
        shared = old is not None and windows[row][0] <= windows[old][1]
        if old is not None and shared and facts.residencies[old].offset != offset:
            apart = abs(facts.residencies[old].offset - offset) >= facts.size[tensor]
            if apart or NO_OFFSET in (facts.residencies[old].offset, offset):
                op = facts.op_at(windows[row][0])
                report.add(
                    "overlap",
                    f"{facts.tensor_text(tensor)} is in {facts.memory_text(memory)} "
                    f"at {facts.residencies[old].offset:,} (residency {old}) and at {offset:,} "
                    f"(residency {row}) at {facts.op_text(op)}: let one end before",
                    tensor=tensor,
                    op=op,
                    number=row,
                )
        if old is None or windows[row][1] >= windows[old][1]:
            newest[memory] = row


def overlapping(facts: Facts, windows: list[tuple[int, int]], report: Report) -> list[tuple[int, int, int]]:
    """(row, later row, when they meet) for residencies that share time and addresses."""
    by_memory: dict[int, list[Block]] = {}
    for row, (tensor, memory, offset, _, _) in enumerate(facts.residencies):
        begin, end = windows[row]
        if begin <= end and offset != NO_OFFSET and facts.size[tensor] > 0:
            block = Block(begin, end, offset, offset + facts.size[tensor], row)
            by_memory.setdefault(memory, []).append(block)
    found: list[tuple[int, int, int]] = []
    for memory in sorted(by_memory):
        found += _sweep(facts, sorted(by_memory[memory]), report)
    return found


def _sweep(facts: Facts, blocks: list[Block], report: Report) -> list[tuple[int, int, int]]:
    """Walk through time with the blocks that are held, sorted by address.

    Those in `held` have disjoint addresses or, tied, equal offsets, so only the neighbours of a
    new block can meet it. A block that meets another one is kept apart, in `stray`, and
    compared with each later block: there are few of them, or the report is full.
    """
    place = [facts.place[facts.residencies[block.row].tensor] for block in blocks]
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
