"""Rules `residency`, `overlap` and `capacity`: where bytes lie, for how long, that nobody else lies there,
and that a memory has room for all that it holds.

`collect_holds` says what is held and between which events (section 6 of docs/simulation.md). A `Clock` says
when events happen: by the plan's positions here, by a timeline's picoseconds in `check_timeline`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loadmaster.plan.plan import BEFORE, NO_OFFSET
from reference.check.facts import Facts, Report, Violation

# Is a placement of buffers sound? A plain sweep, apart from every allocator.

Piece = tuple[int, int, int, int, int]
"""(buffer, lower, upper, low, high): the buffer's bytes [low, high) are in use during [lower, upper)."""


def check_offsets(
    ids: Sequence[str],
    pieces: Sequence[Piece],
    sizes: Sequence[int],
    offsets: Sequence[int],
    *,
    alignment: Sequence[int],
    pinned: Sequence[int],
    apart: Sequence[tuple[int, int]] = (),
    capacity: int | None = None,
) -> list[Violation]:
    """Every defect of a placement, or the empty list."""
    found = []
    for b, offset in enumerate(offsets):
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
        if capacity is not None and offset + sizes[b] > capacity:
            found.append(
                _violation(
                    "capacity",
                    f"buffer '{ids[b]}' ends at {offset + sizes[b]:,} and the capacity is {capacity:,}",
                    b,
                    offset + sizes[b] - capacity,
                )
            )
    for a, b in apart:
        if max(offsets[a], offsets[b]) < min(offsets[a] + sizes[a], offsets[b] + sizes[b]):
            found.append(
                _violation(
                    "overlap",
                    f"buffers '{ids[a]}' and '{ids[b]}' share bytes and must be kept apart",
                    a,
                    offsets[a],
                )
            )
    return found + _overlaps(ids, pieces, offsets)


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


FOR_EVER = 2**200
"""Later than any event."""


class Clock(Protocol):
    """When things happen; only the order of the numbers counts. The program begins at `begin`."""

    begin: int

    def step(self, rank: int) -> tuple[int, int]: ...
    def copy(self, row: int) -> tuple[int, int]: ...
    def transfer(self, tensor: int, device: int) -> tuple[int, int]: ...


class PositionClock:
    """One device, one step after another: eight moments between two steps.

    A copy counts from its issue to its need, the longest that it can take. In idle time, copies
    that were issued earlier are awaited before others are pushed.
    """

    begin = -1

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.idle = facts.machine.rules.copies == "idle"

    def step(self, rank: int) -> tuple[int, int]:
        return 8 * rank + 4, 8 * rank + 8

    def copy(self, row: int) -> tuple[int, int]:
        issued, needed = self.facts.issued(row), self.facts.needed(row)
        awaited_first = self.idle and issued < needed - 1
        return 8 * issued + 10, 8 * needed + (1 if awaited_first else 3)

    def transfer(self, tensor: int, device: int) -> tuple[int, int]:
        raise AssertionError("one device has no transfers")


class Hold(NamedTuple):
    """A place's bytes in a memory between two moments."""

    begin: int
    end: int
    tensor: int
    memory: int
    op: int | None
    """The op that takes the room; None: before the program."""


def collect_holds(facts: Facts, clock: Clock) -> list[Hold]:
    """Everything that is held: persistent tensors, residencies, home copies."""
    found = []
    elsewhere = _kept_elsewhere(facts)
    home = facts.machine.home
    for row, (tensor, memory, _, first, _) in enumerate(facts.residencies):
        begin, end = facts.window(row)
        if facts.root[tensor] != tensor or begin > end:
            continue
        if first == BEFORE:
            found.append(Hold(clock.begin, FOR_EVER, tensor, memory, None))
        else:
            op = facts.steps[begin].number
            found.append(Hold(clock.step(begin)[0], clock.step(end)[1], tensor, memory, op))
    sent_to: dict[int, list[int]] = {}
    for tensor, device in facts.transfers:
        sent_to.setdefault(tensor, []).append(device)
    for tensor in facts.roots:
        if facts.is_persistent[tensor] and tensor not in elsewhere:
            where = home[facts.home_device[tensor]]
            found.append(Hold(clock.begin, FOR_EVER, tensor, where, None))
        found += _home_copies(facts, clock, tensor, tensor in elsewhere, sent_to.get(tensor, []))
    return [hold for hold in found if hold.begin < hold.end]


def _kept_elsewhere(facts: Facts) -> set[int]:
    """Weights and state with a residency between runs: their home need not keep them."""
    before = {row.tensor for row in facts.residencies if row.first == BEFORE}
    return {tensor for tensor in before if facts.is_persistent[tensor]}


def _home_copies(facts: Facts, clock: Clock, tensor: int, elsewhere: bool, sent_to: list[int]) -> list[Hold]:
    """A tensor in the homes of devices, from the first opener to the end of the last use."""
    home, near = facts.machine.home, facts.near
    lives_on = near[facts.home_device[tensor]]
    opened: dict[int, list[tuple[int, int | None]]] = {}
    over: dict[int, list[int]] = {}
    writer = facts.writer[tensor]
    is_written = writer >= 0 and tensor in facts.steps[writer].writes
    if is_written and facts.is_at_home(writer, tensor):
        begin, end = clock.step(writer)
        opened.setdefault(lives_on, []).append((begin, facts.steps[writer].number))
        over.setdefault(lives_on, []).append(end)
    for rank in facts.readers[tensor]:
        if rank != writer and facts.is_at_home(rank, tensor):
            over.setdefault(near[facts.steps[rank].device], []).append(clock.step(rank)[1])
    for device in sent_to:
        begin, end = clock.transfer(tensor, device)
        op = facts.steps[facts.transfers[tensor, device][0]].number
        opened.setdefault(device, []).append((begin, op))
        over.setdefault(device, []).append(end)
        over.setdefault(lives_on, []).append(end)
    is_input = facts.is_input[tensor]
    for row in facts.copies_of.get(tensor, []):
        copy = facts.copies[row]
        begin, end = clock.copy(row)
        if copy.target == home[lives_on] and not is_input:
            opened.setdefault(lives_on, []).append((begin, facts.op_at(facts.issued(row))))
            over.setdefault(lives_on, []).append(end)
        if copy.source in home:
            over.setdefault(home.index(copy.source), []).append(end)
    if is_input or (elsewhere and lives_on in over):
        for device in over if is_input else [lives_on]:
            opened.setdefault(device, []).append((clock.begin, None))
    if facts.is_output[tensor] and not is_input:
        over.setdefault(lives_on, []).append(FOR_EVER)
    if facts.is_persistent[tensor] and not elsewhere:
        opened.pop(lives_on, None)  # it is held there anyway
    copies = []
    for device, openers in opened.items():
        begin, by = min(openers, key=lambda opener: opener[0])
        copies.append(Hold(begin, max(over[device]), tensor, home[device], by))
    return copies


@dataclass
class Usage:
    """How full one memory gets."""

    now: int = 0
    peak: int = 0
    first_over: int | None = None
    """When the capacity was first exceeded."""
    op: int | None = None
    """The op that first exceeded it,"""
    tensor: int | None = None
    """and the largest tensor held then."""


def sweep(facts: Facts, held: list[Hold]) -> list[Usage]:
    """Walk through all moments; at one moment frees come first. A place counts once per memory."""
    largest: dict[int, int] = {}  # of each place, its largest tensor
    for tensor in facts.roots:
        one = largest.setdefault(facts.place[tensor], tensor)
        if facts.size[tensor] > facts.size[one]:
            largest[facts.place[tensor]] = tensor
    events = [(hold.end, False, index) for index, hold in enumerate(held) if hold.end < FOR_EVER]
    events += [(hold.begin, True, index) for index, hold in enumerate(held)]
    events.sort()
    usages = [Usage() for _ in facts.machine.memories]
    counter: dict[tuple[int, int], int] = {}
    for moment, takes, index in events:
        hold = held[index]
        usage, key = usages[hold.memory], (facts.place[hold.tensor], hold.memory)
        bytes_held = facts.align(facts.size[largest[key[0]]], hold.memory)
        if not takes:
            counter[key] -= 1
            usage.now -= bytes_held if counter[key] == 0 else 0
            continue
        counter[key] = counter.get(key, 0) + 1
        usage.now += bytes_held if counter[key] == 1 else 0
        usage.peak = max(usage.peak, usage.now)
        if usage.now > facts.machine.memories[hold.memory].capacity and usage.first_over is None:
            usage.first_over, usage.op = moment, hold.op
            here = [
                largest[place]
                for (place, memory), count in counter.items()
                if memory == hold.memory and count
            ]
            usage.tensor = max(here, key=lambda tensor: (facts.size[tensor], -tensor))
    return usages


def report_capacity(facts: Facts, usages: list[Usage], report: Report) -> None:
    """One violation per memory that is too small."""
    for memory, usage in enumerate(usages):
        excess = usage.peak - facts.machine.memories[memory].capacity
        if usage.tensor is not None:
            _too_small(facts, memory, usage.peak, usage.tensor, usage.op, excess, report)


def _too_small(
    facts: Facts, memory: int, needs: int, tensor: int, op: int | None, excess: int, report: Report
) -> None:
    when = f"at {facts.op_text(op)}" if op is not None else "before the program starts"
    report.add(
        "capacity",
        f"{facts.memory_text(memory)} needs {needs:,} bytes and has "
        f"{facts.machine.memories[memory].capacity:,}, {excess:,} too few; it first overflows "
        f"{when}, where {facts.tensor_text(tensor)} ({facts.size[tensor]:,} bytes) is the "
        "largest: move it to another memory or free it earlier",
        tensor=tensor,
        op=op,
        number=excess,
    )


def check_capacity(facts: Facts, report: Report) -> None:
    """Without a timeline: exact for one device in order, else what is sure to be held at once."""
    if facts.in_order and len(facts.devices_used) < 2 and not facts.transfers:
        report_capacity(facts, sweep(facts, collect_holds(facts, PositionClock(facts))), report)
        return
    elsewhere = _kept_elsewhere(facts)
    always: list[dict[int, int]] = [{} for _ in facts.machine.memories]
    for tensor in facts.roots:
        if facts.is_persistent[tensor] and tensor not in elsewhere:
            _take(facts, always, facts.machine.home[facts.home_device[tensor]], tensor)
    for residency in facts.residencies:
        if residency.first == BEFORE and facts.root[residency.tensor] == residency.tensor:
            _take(facts, always, residency.memory, residency.tensor)
    base = [sum(taken.values()) for taken in always]
    worst: dict[int, tuple[int, int, int | None]] = {}
    for memory, taken in enumerate(always):
        if base[memory] > facts.machine.memories[memory].capacity:
            worst[memory] = (base[memory], max(taken, key=lambda place: taken[place]), None)
    for rank, step in enumerate(facts.steps):
        own: list[dict[int, int]] = [{} for _ in facts.machine.memories]
        for tensor in dict.fromkeys([*step.reads, *step.writes]):
            memory = facts.serves(rank, tensor)[0]
            if facts.place[tensor] not in always[memory]:
                _take(facts, own, memory, tensor)
        for memory, taken in enumerate(own):
            needs = base[memory] + sum(taken.values())
            over = needs > facts.machine.memories[memory].capacity
            if taken and over and (memory not in worst or needs > worst[memory][0]):
                first = (max(taken, key=lambda place: taken[place]), step.number)
                worst[memory] = (needs, *(worst[memory][1:] if memory in worst else first))
    for memory, (needs, place, op) in sorted(worst.items()):
        excess = needs - facts.machine.memories[memory].capacity
        _too_small(facts, memory, needs, place, op, excess, report)


def _take(facts: Facts, taken: list[dict[int, int]], memory: int, tensor: int) -> None:
    place = facts.place[tensor]
    size = facts.align(facts.size[tensor], memory)
    taken[memory][place] = max(taken[memory].get(place, 0), size)


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
        end = offset + facts.align(size, memory)
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
    for first, second, begin in find_overlaps(facts, windows, report):
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


def find_overlaps(facts: Facts, windows: list[tuple[int, int]], report: Report) -> list[tuple[int, int, int]]:
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
