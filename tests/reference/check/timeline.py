"""Rule `timeline`: a timeline that keeps the rules, whoever computed it (sections 4 to 7).

Costs are not computed again: what is checked is that nothing happens before what it waits for, that
devices, engines and memories are used by one at a time, and that the totals are those of the events.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from loadmaster.plan.plan import NO_OFFSET
from reference.check.data import Relies
from reference.check.facts import Facts, Report
from reference.check.memory import collect_holds, find_overlaps, report_capacity, sweep


class TimelineLike(Protocol):
    """What is needed of `loadmaster.simulate.simulator.Timeline`, which `plan` may not import."""

    @property
    def total_ps(self) -> Any: ...
    @property
    def op_start(self) -> Any: ...
    @property
    def op_end(self) -> Any: ...
    @property
    def copy_start(self) -> Any: ...
    @property
    def copy_end(self) -> Any: ...
    @property
    def transfers(self) -> Any: ...
    @property
    def memory_peak(self) -> Any: ...
    @property
    def memory_top(self) -> Any: ...
    @property
    def memory_over(self) -> Any: ...
    @property
    def memory_first_over(self) -> Any: ...


def is_readable(facts: Facts, timeline: TimelineLike, report: Report) -> bool:
    """Whether all columns have their length and hold whole numbers."""
    memories, copies = len(facts.machine.memories), len(facts.copies)
    shapes: dict[str, tuple[int, ...]] = {
        "op_start": (facts.n_ops,),
        "op_end": (facts.n_ops,),
        "copy_start": (copies,),
        "copy_end": (copies,),
        "memory_peak": (memories,),
        "memory_top": (memories,),
        "memory_over": (memories,),
        "memory_first_over": (memories,),
    }
    before = report.count("timeline")
    for name, shape in shapes.items():
        column = getattr(timeline, name)
        whole = isinstance(column, np.ndarray) and column.dtype.kind in "iu"
        if not whole or column.shape != shape:
            report.add("timeline", f"'{name}' must be {shape[0]:,} whole numbers", number=shape[0])
    rows = timeline.transfers
    whole = isinstance(rows, np.ndarray) and rows.dtype.kind in "iu"
    if not whole or rows.ndim != 2 or rows.shape[1] != 4:
        report.add("timeline", "'transfers' must be rows of 4 whole numbers", number=4)
    if not isinstance(timeline.total_ps, int | np.integer):
        report.add("timeline", f"total is {timeline.total_ps!r} and must be a whole number")
    return report.count("timeline") == before


class Times:
    """The times of one plan. It is a `Clock` for the memory's sweep."""

    begin = 0

    def __init__(self, facts: Facts, timeline: TimelineLike, report: Report) -> None:
        self.facts, self.timeline, self.report = facts, timeline, report
        self.start: list[int] = timeline.op_start.tolist()
        self.end: list[int] = timeline.op_end.tolist()
        self.copy_times: list[tuple[int, int]] = list(
            zip(timeline.copy_start.tolist(), timeline.copy_end.tolist(), strict=True)
        )
        self.transfer_times: dict[tuple[int, int], tuple[int, int]] = {}

    def step(self, rank: int) -> tuple[int, int]:
        number = self.facts.steps[rank].number
        return self.start[number], self.end[number]

    def copy(self, row: int) -> tuple[int, int]:
        return self.copy_times[row]

    def transfer(self, tensor: int, device: int) -> tuple[int, int]:
        return self.transfer_times[tensor, device]

    def bad(self, message: str, number: int, op: int | None = None, tensor: int | None = None) -> None:
        self.report.add("timeline", message, tensor=tensor, op=op, number=number)


def check_devices(times: Times) -> None:
    """A device runs one step at a time, in the plan's order if the plan says so."""
    facts = times.facts
    for device in facts.devices_used:
        ranks = [rank for rank, step in enumerate(facts.steps) if step.device == device]
        if not facts.in_order:
            ranks.sort(key=lambda rank: times.step(rank))
        for before, after in pairwise(ranks):
            end, start = times.step(before)[1], times.step(after)[0]
            if start < end:
                op = facts.steps[after].number
                times.bad(
                    f"{facts.op_text(op)} starts at {start:,} ps and "
                    f"{facts.op_text(facts.steps[before].number)} before it on "
                    f"{facts.device_text(device)} ends at {end:,} ps",
                    end,
                    op,
                )


def check_engines(times: Times) -> None:
    """An engine serves one at a time; listed transfers in the order of the list."""
    facts, home = times.facts, times.facts.machine.home
    if facts.machine.rules.copies == "idle":
        return  # copies share the home memory's idle time, not engines
    listed = [] if facts.plan.transfers is None else facts.plan.transfers.tolist()
    place_in_list = {(tensor, device): place for place, (tensor, device) in enumerate(listed)}
    served: dict[str, list[tuple[int, int, int]]] = {}
    in_list: dict[str, list[tuple[int, int, int]]] = {}
    for row, copy in enumerate(facts.copies):
        start, end = times.copy_times[row]
        for engine in _engines_between(times, copy.source, copy.target):
            served.setdefault(engine, []).append((start, end, copy.tensor))
    for (tensor, device), (start, end) in times.transfer_times.items():
        for engine in _engines_between(times, home[facts.home_device[tensor]], home[device]):
            served.setdefault(engine, []).append((start, end, tensor))
            if (tensor, device) in place_in_list:
                place = place_in_list[tensor, device]
                in_list.setdefault(engine, []).append((place, start, tensor))
    for engine, jobs in sorted(served.items()):
        for (_, end, _), (start, _, tensor) in pairwise(sorted(jobs)):
            if start < end:
                times.bad(
                    f"engine '{engine}' starts {facts.tensor_text(tensor)} at {start:,} ps and "
                    f"is busy until {end:,} ps",
                    end,
                    tensor=tensor,
                )
    for engine, jobs in sorted(in_list.items()):
        for (_, before, _), (_, start, tensor) in pairwise(sorted(jobs)):
            if start < before:
                times.bad(
                    f"engine '{engine}' starts {facts.tensor_text(tensor)} at {start:,} ps and "
                    f"the transfer listed before it at {before:,} ps",
                    start,
                    tensor=tensor,
                )


def _engines_between(times: Times, source: int, target: int) -> tuple[str, ...]:
    """The engines of a link; none if there is no link, which is another rule's violation."""
    link = times.facts.machine.link_between.get((source, target))
    return times.facts.machine.links[link].engines if link is not None else ()


def check_memory(times: Times) -> None:
    """What a sweep over the times finds is what the timeline states."""
    facts = times.facts
    usages = sweep(facts, collect_holds(facts, times))
    top = [0] * len(usages)
    for tensor, where, offset, _, _ in facts.residencies:
        if offset != NO_OFFSET:
            top[where] = max(top[where], offset + facts.align(facts.size[tensor], where))
    for where, usage in enumerate(usages):
        capacity = facts.machine.memories[where].capacity
        found = {
            "memory_peak": usage.peak,
            "memory_top": top[where],
            "memory_over": max(0, usage.peak - capacity, top[where] - capacity),
            "memory_first_over": -1 if usage.first_over is None else usage.first_over,
        }
        for name, value in found.items():
            stated = int(getattr(times.timeline, name)[where])
            if stated != value:
                times.bad(
                    f"{name} of {facts.memory_text(where)} is {stated:,} and the times say {value:,}", value
                )
    report_capacity(facts, usages, times.report)


def check_spots(times: Times) -> None:
    """On several devices, residencies apart by position may still meet in time."""
    facts = times.facts
    if len(facts.devices_used) < 2:
        return
    by_time = []
    by_position = [facts.window(row) for row in range(len(facts.residencies))]
    for begin, end in by_position:
        if begin > end or end < 0:
            by_time.append((0, -1))  # holds nothing
        else:
            start = times.step(begin)[0] if begin >= 0 else -1
            by_time.append((start, times.step(end)[1] - 1))
    for first, second, when in find_overlaps(facts, by_time, times.report):
        (begin, end), (other_begin, other_end) = by_position[first], by_position[second]
        if begin > other_end or other_begin > end:  # else it was reported by position
            tensor = facts.residencies[second].tensor
            op = facts.op_at(by_position[second][0])
            times.report.add(
                "overlap",
                f"residencies {first} and {second} of "
                f"{facts.memory_text(facts.residencies[first].memory)} share addresses at "
                f"{when:,} ps, when {facts.tensor_text(tensor)} comes in at "
                f"{facts.op_text(op)}: move one",
                tensor=tensor,
                op=op,
                number=second,
            )


def check_total(times: Times) -> None:
    """The end of the last step, or of the last copy that is needed by the end."""
    ends = [times.step(rank)[1] for rank in range(len(times.facts.steps))]
    ends += [
        end
        for row, (_, end) in enumerate(times.copy_times)
        if times.facts.needed(row) == len(times.facts.steps)
    ]
    last, stated = max(ends, default=0), times.timeline.total_ps
    if stated != last:
        times.bad(f"total is {stated:,} ps and the last end is {last:,} ps", last)


__all__ = ["TimelineLike", "check_timeline"]


def check_timeline(facts: Facts, timeline: TimelineLike, relies: Relies, report: Report) -> bool:
    """Check all of it; return whether it could be read."""
    if not is_readable(facts, timeline, report):
        return False
    times = Times(facts, timeline, report)
    check_ops(times)
    check_copies(times)
    if check_transfers(times):
        check_waits(times, relies)
        check_devices(times)
        check_engines(times)
        check_memory(times)
        check_spots(times)
    check_total(times)
    return True


def check_ops(times: Times) -> None:
    """Steps end after they start, members share times, a view happens when its root is made."""
    facts = times.facts
    for rank, step in enumerate(facts.steps):
        start, end = times.step(rank)
        if not 0 <= start < end:
            times.bad(
                f"{facts.op_text(step.number)} starts at {start:,} ps and ends at {end:,} ps",
                start,
                step.number,
            )
        for op in step.members[1:]:
            if (times.start[op], times.end[op]) != (start, end):
                times.bad(
                    f"{facts.op_text(op)} is fused with {facts.op_text(step.number)} and runs "
                    f"from {times.start[op]:,} ps instead of {start:,} ps",
                    times.start[op],
                    op,
                )
    for op in range(facts.n_ops):
        if facts.is_view[op]:
            writers = [facts.writer[facts.root[tensor]] for tensor in facts.op_writes[op]]
            made = max((times.step(rank)[1] for rank in writers if rank >= 0), default=0)
            if writers and (times.start[op], times.end[op]) != (made, made):
                times.bad(
                    f"view {facts.op_text(op)} is at {times.start[op]:,} ps and what it shows "
                    f"is made at {made:,} ps",
                    times.start[op],
                    op,
                )


def check_copies(times: Times) -> None:
    """Between the end of the step that issues a copy and the start of the one that needs it."""
    facts = times.facts
    for row, (start, end) in enumerate(times.copy_times):
        tensor = facts.copies[row].tensor
        issued, needed = facts.issued(row), facts.needed(row)
        earliest = times.step(issued)[1] if issued >= 0 else 0
        what = f"copy {row} of {facts.tensor_text(tensor)}"
        if not earliest <= start < end:
            times.bad(
                f"{what} runs from {start:,} ps to {end:,} ps and is issued at {earliest:,} ps",
                start,
                tensor=tensor,
            )
        if needed < len(facts.steps) and times.step(needed)[0] < end:
            op = facts.steps[needed].number
            times.bad(
                f"{facts.op_text(op)} starts at {times.start[op]:,} ps and needs {what}, which "
                f"ends at {end:,} ps",
                end,
                op,
                tensor,
            )


def check_transfers(times: Times) -> bool:
    """One for each that is needed, after the tensor is made. Returns whether none is missing."""
    facts = times.facts
    for tensor, device, start, end in times.timeline.transfers.tolist():
        key = (tensor, device)
        if key not in facts.transfers or key in times.transfer_times:
            why = "there twice" if key in times.transfer_times else "there and not needed"
            times.bad(f"the transfer of tensor {tensor} to device {device} is {why}", device)
            continue
        times.transfer_times[key] = (start, end)
        writer = facts.writer[tensor]
        made = times.step(writer)[1] if writer >= 0 else 0
        if not made <= start < end:
            times.bad(
                f"the transfer of {facts.tensor_text(tensor)} to device {device} runs from "
                f"{start:,} ps to {end:,} ps and the tensor is made at {made:,} ps",
                start,
                tensor=tensor,
            )
    missing = [key for key in facts.transfers if key not in times.transfer_times]
    for tensor, device in missing:
        op = facts.steps[facts.transfers[tensor, device][0]].number
        times.bad(
            f"the transfer of {facts.tensor_text(tensor)} to device {device} is missing, and "
            f"{facts.op_text(op)} waits for it",
            device,
            op,
            tensor,
        )
    return not missing


def check_waits(times: Times, relies: Relies) -> None:
    """No step starts before what it reads is there, or while others use what it writes over."""
    facts = times.facts
    for rank, step in enumerate(facts.steps):
        start = times.step(rank)[0]
        for tensor in dict.fromkeys(step.reads):
            writer = facts.writer[tensor]
            if facts.is_input[tensor] or writer == rank:
                continue
            ready = times.step(writer)[1] if writer >= 0 else 0
            if not facts.is_near(tensor, step.device) and facts.is_at_home(rank, tensor):
                ready = times.transfer_times[tensor, facts.near[step.device]][1]
            if start < ready:
                times.bad(
                    f"{facts.op_text(step.number)} starts at {start:,} ps and reads "
                    f"{facts.tensor_text(tensor)}, which is there at {ready:,} ps",
                    ready,
                    step.number,
                    tensor,
                )
    for tensor, over, op, users in facts.overwrites:
        start = times.step(facts.step_of[op])[0]
        for rank in users:
            if start < times.step(rank)[1]:
                times.bad(
                    f"{facts.op_text(op)} starts at {start:,} ps and writes "
                    f"{facts.tensor_text(over)} over {facts.tensor_text(tensor)}, which "
                    f"{facts.op_text(facts.steps[rank].number)} uses until {times.step(rank)[1]:,} ps",
                    times.step(rank)[1],
                    op,
                    tensor,
                )
    for rank, row in relies:
        start, end = times.step(rank)[0], times.copy_times[row][1]
        if start < end and facts.needed(row) != rank:  # the step that needs it: see `check_copies`
            op, tensor = facts.steps[rank].number, facts.copies[row].tensor
            times.bad(
                f"{facts.op_text(op)} starts at {start:,} ps and reads what copy {row} of "
                f"{facts.tensor_text(tensor)} brings at {end:,} ps",
                end,
                op,
                tensor,
            )
