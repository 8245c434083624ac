"""Rule `capacity`: a memory has room for all that it holds.

`collect_holds` says what is held and between which events (section 6 of docs/simulation.md). A `Clock` says
when events happen: by the plan's positions here, by a timeline's picoseconds in `check_timeline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmaster.plan.check.facts import HOME, Column, Facts, Mask, Report, distinct
from loadmaster.plan.plan import BEFORE

FOR_EVER = 2**63 - 1
"""Later than any event."""


class Clock(NamedTuple):
    """When things happen; only the order of the numbers counts."""

    begin: int
    """of the program"""
    step: tuple[Column, Column]
    """[steps] start and end, of copies and transfers too"""
    copy: tuple[Column, Column]
    transfer: tuple[Column, Column]


def position_clock(facts: Facts) -> Clock:
    """One device, one step after another: eight moments between two steps.

    A copy counts from its issue to its need, the longest that it can take. In idle time, copies
    that were issued earlier are awaited before others are pushed.
    """
    rank, none = np.arange(facts.n_steps), np.empty(0, dtype=np.int64)
    issued, needed = facts.issued, facts.needed
    awaited_first = (issued < needed - 1) & (facts.machine.rules.copies == "idle")
    copy = 8 * issued + 10, 8 * needed + np.where(awaited_first, 1, 3)
    return Clock(-1, (8 * rank + 4, 8 * rank + 8), copy, (none, none))


class Holds(NamedTuple):
    """The bytes of places in memories, each between two moments."""

    begin: Column
    end: Column
    tensor: Column
    memory: Column
    op: Column
    """The op that takes the room; -1: before the program."""


def collect_holds(facts: Facts, clock: Clock) -> Holds:
    """Everything that is held: residencies; then, tensor by tensor, persistent ones and home copies."""
    elsewhere = _kept_elsewhere(facts)
    first, last = facts.windows
    rows = np.flatnonzero(facts.is_root[facts.res_tensor] & (first <= last))
    before = facts.res_first[rows] == BEFORE
    begin, end = np.maximum(first[rows], 0), np.maximum(last[rows], 0)
    start, stop = (np.append(column, 0) for column in clock.step)
    residencies = Holds(
        np.where(before, clock.begin, start[begin]),
        np.where(before, FOR_EVER, stop[end]),
        facts.res_tensor[rows],
        facts.res_memory[rows],
        np.where(before, -1, np.append(facts.step_number, 0)[begin]),
    )
    kept = np.flatnonzero(facts.is_root & facts.is_persistent & ~elsewhere)
    always = np.full(len(kept), -1, dtype=np.int64)
    where = facts.home[facts.home_device[kept]]
    persistent = Holds(always * 0 + clock.begin, always * 0 + FOR_EVER, kept, where, always)
    copies = _home_copies(facts, clock, elsewhere)
    by_tensor = np.argsort(np.concatenate([persistent.tensor, copies.tensor]), kind="stable")
    others = [np.concatenate(pair)[by_tensor] for pair in zip(persistent, copies, strict=True)]
    found = [np.concatenate(pair) for pair in zip(residencies, others, strict=True)]
    lasts = found[0] < found[1]
    return Holds(*(column[lasts] for column in found))


def _kept_elsewhere(facts: Facts) -> Mask:
    """[tensors] weights and state with a residency between runs: their home need not keep them."""
    elsewhere = np.zeros(facts.n_tensors, dtype=np.bool_)
    elsewhere[facts.res_tensor[facts.res_first == BEFORE]] = True
    return elsewhere & facts.is_persistent


def _joined(*parts: tuple[Column, ...]) -> list[Column]:
    """The same columns of several parts, one below the other."""
    return [np.concatenate(columns, dtype=np.int64) for columns in zip(*parts, strict=True)]


def _home_copies(facts: Facts, clock: Clock, elsewhere: Mask) -> Holds:
    """Tensors in the homes of devices, from the first opener to the end of the last use."""
    near, home, number = facts.near, facts.home, facts.step_number
    lives_on = near[facts.home_device]
    first_near = np.full(len(facts.machine.memories), -1, dtype=np.int64)
    first_near[home[::-1]] = np.arange(len(home))[::-1]  # the first device with that home

    written = np.flatnonzero(facts.is_root & facts.is_written)
    written = written[facts.serve(facts.writer[written], written)[1] == HOME]
    writer = facts.writer[written]
    tensor, rank = facts.readers.keys, facts.readers.entry
    reads = (facts.served_readers[1] == HOME) & (rank != facts.writer[tensor]) & facts.is_root[tensor]
    tensor, rank = tensor[reads], rank[reads]
    sent = facts.transfers
    sent_op = number[sent.readers.entry[sent.readers.start[:-1]]]
    moved = np.flatnonzero(facts.is_root[facts.copy_tensor])
    moved = moved[np.argsort(facts.copy_tensor[moved], kind="stable")]
    source, target, what = facts.copy_source[moved], facts.copy_target[moved], facts.copy_tensor[moved]
    comes_home = (target == home[lives_on[what]]) & ~facts.is_input[what]
    arrives, leaves = moved[comes_home], moved[first_near[source] >= 0]
    come, go = facts.copy_tensor[arrives], facts.copy_tensor[leaves]

    tensors, devices, ends = _joined(
        (written, lives_on[written], clock.step[1][writer]),
        (tensor, near[facts.step_device[rank]], clock.step[1][rank]),
        (sent.tensor, sent.device, clock.transfer[1]),
        (sent.tensor, lives_on[sent.tensor], clock.transfer[1]),
        (come, lives_on[come], clock.copy[1][arrives]),
        (go, first_near[facts.copy_source[leaves]], clock.copy[1][leaves]),
    )
    code = tensors * len(home) + devices
    used, first = np.unique(code, return_index=True)
    last = np.full(len(used), np.iinfo(np.int64).min)
    np.maximum.at(last, np.searchsorted(used, code), ends)
    of, on = used // len(home), used % len(home)
    last[facts.is_output[of] & ~facts.is_input[of] & (on == lives_on[of])] = FOR_EVER
    given = facts.is_input[of] | (elsewhere[of] & (on == lives_on[of]))
    given = np.flatnonzero(given)[np.argsort(first[given], kind="stable")]  # as they were used first

    issuer = np.array([facts.op_at(int(rank)) for rank in facts.issued[arrives]], dtype=np.int64)
    tensors, devices, begins, ops = _joined(
        (written, lives_on[written], clock.step[0][writer], number[writer]),
        (sent.tensor, sent.device, clock.transfer[0], sent_op),
        (come, lives_on[come], clock.copy[0][arrives], issuer),
        (of[given], on[given], np.full(len(given), clock.begin), np.full(len(given), -1)),
    )
    held_anyway = facts.is_persistent[tensors] & ~elsewhere[tensors] & (devices == lives_on[tensors])
    code = tensors * len(home) + devices
    earliest = np.lexsort((begins, code))
    earliest = earliest[~held_anyway[earliest]]
    codes, at = np.unique(code[earliest], return_index=True)
    chosen = earliest[at]  # of equally early ones the first
    turn = np.full(len(codes), len(code))
    np.minimum.at(turn, np.searchsorted(codes, code[~held_anyway]), np.flatnonzero(~held_anyway))
    chosen = chosen[np.lexsort((turn, tensors[chosen]))]
    end = last[np.searchsorted(used, code[chosen])]
    return Holds(begins[chosen], end, tensors[chosen], home[devices[chosen]], ops[chosen])


@dataclass
class Usage:
    """How full one memory gets."""

    peak: int = 0
    first_over: int | None = None
    """When the capacity was first exceeded."""
    op: int | None = None
    """The op that first exceeded it,"""
    tensor: int | None = None
    """and the largest tensor held then."""


def sweep(facts: Facts, held: Holds) -> list[Usage]:
    """Walk through all moments; at one moment frees come first. A place counts once per memory."""
    largest = _largest_of_places(facts)
    size = facts.size[largest[facts.place]]
    place = facts.place[held.tensor] * len(facts.capacity) + held.memory
    takes = np.repeat([1, 0], len(place))
    moment = np.concatenate([held.begin, held.end])
    hold = np.concatenate([np.arange(len(place))] * 2)[moment < FOR_EVER]
    takes, moment = takes[moment < FOR_EVER], moment[moment < FOR_EVER]
    if len(distinct(place)) < len(place):
        # How many hold a place; the room is taken with the first and free after the last.
        hold, takes, moment = _first_and_last(place, hold, takes, moment)
    room = (2 * takes - 1) * facts.align(size[held.tensor[hold]], held.memory[hold])
    usages = []
    for memory, capacity in enumerate(facts.capacity.tolist()):
        here = np.flatnonzero(held.memory[hold] == memory)
        here = here[np.lexsort((takes[here], moment[here]))]
        peak = int(np.cumsum(room[here]).max(initial=0))
        full = _first_overflow(facts, held, memory, size) if peak > capacity else {}
        usages.append(Usage(peak=peak, **full))
    return usages


def _first_and_last(
    place: Column, hold: Column, takes: Column, moment: Column
) -> tuple[Column, Column, Column]:
    """Of the events (hold, takes, moment) those at which a place gets its first holder or loses its last."""
    order = np.lexsort((takes, moment, place[hold]))
    hold, takes, moment = hold[order], takes[order], moment[order]
    change = 2 * takes - 1
    count = np.cumsum(change)
    is_first = np.append(True, np.diff(place[hold]) != 0)[: len(hold)]
    before = (count - change)[is_first]
    count -= np.repeat(before, np.diff(np.append(np.flatnonzero(is_first), len(hold))))
    counts = count == takes
    return hold[counts], takes[counts], moment[counts]


def _largest_of_places(facts: Facts) -> Column:
    """[tensors] of each place (its smallest tensor), its largest one; of equal ones the first."""
    largest = np.arange(facts.n_tensors)
    tensors = facts.roots[np.lexsort((-facts.roots, facts.size[facts.roots]))]
    largest[facts.place[tensors]] = tensors  # the last is kept
    return largest


def _first_overflow(facts: Facts, held: Holds, memory: int, size: Column) -> dict[str, int | None]:
    """The moment at which a memory is first too full, the op that makes it so, and the largest tensor then."""
    rows = np.flatnonzero(held.memory == memory).tolist()
    largest = _largest_of_places(facts)
    begin, end, op = held.begin.tolist(), held.end.tolist(), held.op.tolist()
    place = facts.place[held.tensor].tolist()
    events = [(end[row], False, row) for row in rows if end[row] < FOR_EVER]
    events += [(begin[row], True, row) for row in rows]
    events.sort()
    count: dict[int, int] = {}
    now, capacity, alignment = 0, int(facts.capacity[memory]), int(facts.alignment[memory])
    for moment, takes, row in events:
        bytes_held = -(-int(size[place[row]]) // alignment) * alignment
        count[place[row]] = count.get(place[row], 0) + (1 if takes else -1)
        if not takes:
            now -= bytes_held if count[place[row]] == 0 else 0
            continue
        now += bytes_held if count[place[row]] == 1 else 0
        if now > capacity:
            here = [int(largest[each]) for each, times in count.items() if times]
            tensor = max(here, key=lambda tensor: (facts.size[tensor], -tensor))
            return {"first_over": moment, "op": None if op[row] < 0 else op[row], "tensor": tensor}
    raise AssertionError("a peak above the capacity is reached at some moment")


def report_capacity(facts: Facts, usages: list[Usage], report: Report) -> None:
    """One violation per memory that is too small."""
    for memory, usage in enumerate(usages):
        excess = usage.peak - facts.capacity[memory]
        if usage.tensor is not None:
            _too_small(facts, memory, usage.peak, usage.tensor, usage.op, excess, report)


def _too_small(
    facts: Facts, memory: int, needs: int, tensor: int, op: int | None, excess: int, report: Report
) -> None:
    when = f"at {facts.op_text(op)}" if op is not None else "before the program starts"
    report.add(
        "capacity",
        f"{facts.memory_text(memory)} needs {needs:,} bytes and has "
        f"{facts.capacity[memory]:,}, {excess:,} too few; it first overflows "
        f"{when}, where {facts.tensor_text(tensor)} ({facts.size[tensor]:,} bytes) is the "
        "largest: move it to another memory or free it earlier",
        tensor=tensor,
        op=op,
        number=excess,
    )


def check_capacity(facts: Facts, report: Report) -> None:
    """Without a timeline: exact for one device in order, else what is sure to be held at once."""
    if facts.in_order and len(facts.devices_used) < 2 and not len(facts.transfers):
        report_capacity(facts, sweep(facts, collect_holds(facts, position_clock(facts))), report)
        return
    memories = len(facts.capacity)
    kept = facts.is_root & facts.is_persistent & ~_kept_elsewhere(facts)
    there = np.flatnonzero((facts.res_first == BEFORE) & facts.is_root[facts.res_tensor])
    tensor = np.concatenate([np.flatnonzero(kept), facts.res_tensor[there]])
    memory = np.concatenate([facts.home[facts.home_device[kept]], facts.res_memory[there]])
    always, size = _taken(facts, facts.place[tensor] * memories + memory, tensor, memory)
    base = np.zeros(memories, dtype=np.int64)
    np.add.at(base, always % memories, size)
    worst: dict[int, tuple[int, int, int | None]] = {}
    for over in np.flatnonzero(base > facts.capacity).tolist():
        mine = np.flatnonzero(memory == over)
        aligned = facts.align(facts.size[tensor[mine]], memory[mine])
        worst[over] = (int(base[over]), _fullest(facts, tensor[mine], aligned), None)

    rank, tensor = facts.uses.keys, facts.uses.entry
    memory, _ = facts.serve(rank, tensor)
    own = ~np.isin(facts.place[tensor] * memories + memory, always)
    rank, tensor, memory = rank[own], tensor[own], memory[own]
    code = (rank * memories + memory) * facts.n_tensors + facts.place[tensor]
    codes, size = _taken(facts, code, tensor, memory)
    steps = codes // facts.n_tensors
    at, first = np.unique(steps, return_index=True)
    needs = base[at % memories] + (np.add.reduceat(size, first) if len(first) else size)
    for row in np.flatnonzero(needs > facts.capacity[at % memories]).tolist():
        where, step, need = int(at[row] % memories), int(at[row] // memories), int(needs[row])
        if where not in worst:
            mine = np.flatnonzero((rank == step) & (memory == where))
            aligned = facts.align(facts.size[tensor[mine]], memory[mine])
            worst[where] = (need, _fullest(facts, tensor[mine], aligned), int(facts.step_number[step]))
        elif need > worst[where][0]:
            worst[where] = (need, *worst[where][1:])
    for where, (need, place, op) in sorted(worst.items()):
        _too_small(facts, where, need, place, op, need - int(facts.capacity[where]), report)


def _taken(facts: Facts, code: Column, tensor: Column, memory: Column) -> tuple[Column, Column]:
    """(codes, each once; bytes of the largest of its tensors)"""
    codes, which = np.unique(code, return_inverse=True)
    size = np.zeros(len(codes), dtype=np.int64)
    np.maximum.at(size, which, facts.align(facts.size[tensor], memory))
    return codes, size


def _fullest(facts: Facts, tensor: Column, size: Column) -> int:
    """The place that takes most, of equal ones the first."""
    taken: dict[int, int] = {}
    for place, each in zip(facts.place[tensor].tolist(), size.tolist(), strict=True):
        taken[place] = max(taken.get(place, 0), each)
    return max(taken, key=lambda place: taken[place])
