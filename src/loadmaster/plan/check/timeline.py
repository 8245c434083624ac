"""Rule `timeline`: a timeline that keeps the rules, whoever computed it (sections 4 to 7).

Costs are not computed again: what is checked is that nothing happens before what it waits for, that
devices, engines and memories are used by one at a time, and that the totals are those of the events.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from loadmaster.plan.check.capacity import Clock, collect_holds, report_capacity, sweep
from loadmaster.plan.check.data import Relies
from loadmaster.plan.check.facts import HOME, Column, Facts, Report
from loadmaster.plan.check.overlap import find_overlaps
from loadmaster.plan.plan import NO_OFFSET


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
    memories, copies = len(facts.machine.memories), len(facts.copy_tensor)
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
    """The times of one plan."""

    def __init__(self, facts: Facts, timeline: TimelineLike, report: Report) -> None:
        self.facts, self.timeline, self.report = facts, timeline, report
        self.start, self.end = timeline.op_start.astype(np.int64), timeline.op_end.astype(np.int64)
        self.step_start, self.step_end = self.start[facts.step_number], self.end[facts.step_number]
        self.copy_start = timeline.copy_start.astype(np.int64)
        self.copy_end = timeline.copy_end.astype(np.int64)
        self.transfer_start = np.full(len(facts.transfers), -1, dtype=np.int64)
        self.transfer_end = self.transfer_start.copy()

    @property
    def clock(self) -> Clock:
        """For the memory's sweep."""
        return Clock(
            0,
            (self.step_start, self.step_end),
            (self.copy_start, self.copy_end),
            (self.transfer_start, self.transfer_end),
        )

    def made(self, tensor: Column) -> Column:
        """When tensors are written; 0: there was nothing to write."""
        writer = self.facts.writer[tensor]
        return np.where(writer >= 0, np.append(self.step_end, 0)[writer], 0)

    def bad(self, message: str, number: int, op: int | None = None, tensor: int | None = None) -> None:
        self.report.add("timeline", message, tensor=tensor, op=op, number=number)


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
    facts, start, end = times.facts, times.start, times.end
    rank, op = facts.members.keys, facts.members.entry
    number = facts.step_number[rank]
    is_step = op == number
    backwards = is_step & ((start[op] < 0) | (start[op] >= end[op]))
    apart = ~is_step & ((start[op] != start[number]) | (end[op] != end[number]))
    for row in np.flatnonzero(backwards | apart).tolist():
        this, step = int(op[row]), int(number[row])
        if this == step:
            times.bad(
                f"{facts.op_text(this)} starts at {start[this]:,} ps and ends at {end[this]:,} ps",
                start[this],
                this,
            )
        else:
            times.bad(
                f"{facts.op_text(this)} is fused with {facts.op_text(step)} and runs "
                f"from {start[this]:,} ps instead of {start[step]:,} ps",
                start[this],
                this,
            )
    shown = facts.is_view[facts.write_op]
    op, root = facts.write_op[shown], facts.write_root[shown]
    views, is_made = np.unique(op), facts.writer[root] >= 0
    when = np.full(facts.n_ops, np.iinfo(np.int64).min)
    np.maximum.at(when, op[is_made], times.made(root[is_made]))
    when[when == np.iinfo(np.int64).min] = 0
    for view in views[(start[views] != when[views]) | (end[views] != when[views])].tolist():
        times.bad(
            f"view {facts.op_text(view)} is at {start[view]:,} ps and what it shows is made at {when[view]:,} ps",
            start[view],
            view,
        )


def check_copies(times: Times) -> None:
    """Between the end of the step that issues a copy and the start of the one that needs it."""
    facts, start, end = times.facts, times.copy_start, times.copy_end
    earliest = np.where(facts.issued >= 0, np.append(times.step_end, 0)[facts.issued], 0)
    awaited = facts.needed < facts.n_steps
    by = np.append(times.step_start, 0)[np.where(awaited, facts.needed, -1)]
    early, late = (start < earliest) | (start >= end), awaited & (by < end)
    for row in np.flatnonzero(early | late).tolist():
        tensor = int(facts.copy_tensor[row])
        what = f"copy {row} of {facts.tensor_text(tensor)}"
        if early[row]:
            times.bad(
                f"{what} runs from {start[row]:,} ps to {end[row]:,} ps and is issued at {earliest[row]:,} ps",
                start[row],
                tensor=tensor,
            )
        if late[row]:
            op = int(facts.step_number[facts.needed[row]])
            times.bad(
                f"{facts.op_text(op)} starts at {times.start[op]:,} ps and needs {what}, which "
                f"ends at {end[row]:,} ps",
                end[row],
                op,
                tensor,
            )


def check_transfers(times: Times) -> bool:
    """One for each that is needed, after the tensor is made. Returns whether none is missing."""
    facts, sent = times.facts, times.facts.transfers
    stated = times.timeline.transfers.astype(np.int64)
    devices = len(facts.near)
    needed = sent.tensor * devices + sent.device
    known = (stated[:, 0] >= 0) & (stated[:, 0] < facts.n_tensors)
    known &= (stated[:, 1] >= 0) & (stated[:, 1] < devices)
    code = np.where(known, stated[:, 0] * devices + stated[:, 1], -1)
    at = np.minimum(np.searchsorted(needed, code), max(0, len(needed) - 1))
    known &= needed[at] == code if len(needed) else False
    first = np.zeros(len(stated), dtype=np.bool_)
    rows = np.flatnonzero(known)
    first[rows[np.unique(at[rows], return_index=True)[1]]] = True
    times.transfer_start[at[first]], times.transfer_end[at[first]] = stated[first, 2], stated[first, 3]
    made = times.made(np.where(known, stated[:, 0], 0)) if len(stated) else stated[:, 0]
    wrong = ~first | (stated[:, 2] < made) | (stated[:, 2] >= stated[:, 3])
    for row in np.flatnonzero(wrong).tolist():
        tensor, device, start, end = stated[row].tolist()
        if not first[row]:
            why = "there twice" if known[row] else "there and not needed"
            times.bad(f"the transfer of tensor {tensor} to device {device} is {why}", device)
            continue
        times.bad(
            f"the transfer of {facts.tensor_text(tensor)} to device {device} runs from "
            f"{start:,} ps to {end:,} ps and the tensor is made at {made[row]:,} ps",
            start,
            tensor=tensor,
        )
    missing = np.ones(len(sent), dtype=np.bool_)
    missing[at[first]] = False
    for row in np.flatnonzero(missing).tolist():
        tensor, device = int(sent.tensor[row]), int(sent.device[row])
        op = int(facts.step_number[sent.readers[row][0]])
        times.bad(
            f"the transfer of {facts.tensor_text(tensor)} to device {device} is missing, and "
            f"{facts.op_text(op)} waits for it",
            device,
            op,
            tensor,
        )
    return not missing.any()


def check_waits(times: Times, relies: Relies) -> None:
    """No step starts before what it reads is there, or while others use what it writes over."""
    facts = times.facts
    rank, tensor = facts.reads.keys, facts.reads.entry
    own = facts.is_input[tensor] | (facts.writer[tensor] == rank)
    ready = np.where(own, times.step_start[rank], times.made(tensor))
    sent = facts.transfers
    if len(sent):
        device, code = facts.near[facts.step_device[rank]], sent.tensor * len(facts.near) + sent.device
        away = np.flatnonzero(~own & (facts.near[facts.home_device[tensor]] != device))
        away = away[facts.serve(rank[away], tensor[away])[1] == HOME]
        row = np.searchsorted(code, tensor[away] * len(facts.near) + device[away])
        ready[away] = times.transfer_end[row]
    early = np.flatnonzero(times.step_start[rank] < ready)
    seen: set[tuple[int, int]] = set()
    for row in early.tolist():
        key = int(rank[row]), int(tensor[row])
        if key in seen:
            continue
        seen.add(key)
        op = int(facts.step_number[key[0]])
        times.bad(
            f"{facts.op_text(op)} starts at {times.start[op]:,} ps and reads "
            f"{facts.tensor_text(key[1])}, which is there at {ready[row]:,} ps",
            ready[row],
            op,
            key[1],
        )
    for old, over, op, users in facts.overwrites:
        start = times.step_start[facts.step_of[op]]
        for user in users:
            if start < times.step_end[user]:
                times.bad(
                    f"{facts.op_text(op)} starts at {start:,} ps and writes "
                    f"{facts.tensor_text(over)} over {facts.tensor_text(old)}, which "
                    f"{facts.op_text(int(facts.step_number[user]))} uses until {times.step_end[user]:,} ps",
                    times.step_end[user],
                    op,
                    old,
                )
    for step, row in relies:
        start, end = times.step_start[step], times.copy_end[row]
        if start < end and facts.needed[row] != step:  # the step that needs it: see `check_copies`
            op, moved = int(facts.step_number[step]), int(facts.copy_tensor[row])
            times.bad(
                f"{facts.op_text(op)} starts at {start:,} ps and reads what copy {row} of "
                f"{facts.tensor_text(moved)} brings at {end:,} ps",
                end,
                op,
                moved,
            )


def check_devices(times: Times) -> None:
    """A device runs one step at a time, in the plan's order if the plan says so."""
    facts = times.facts
    for device in facts.devices_used:
        ranks = np.flatnonzero(facts.step_device == device)
        if not facts.in_order:
            ranks = ranks[np.lexsort((times.step_end[ranks], times.step_start[ranks]))]
        end, start = times.step_end[ranks[:-1]], times.step_start[ranks[1:]]
        for row in np.flatnonzero(start < end).tolist():
            op, before = (int(facts.step_number[ranks[each]]) for each in (row + 1, row))
            times.bad(
                f"{facts.op_text(op)} starts at {start[row]:,} ps and "
                f"{facts.op_text(before)} before it on "
                f"{facts.device_text(device)} ends at {end[row]:,} ps",
                end[row],
                op,
            )


def check_engines(times: Times) -> None:
    """An engine serves one at a time; listed transfers in the order of the list."""
    facts, sent = times.facts, times.facts.transfers
    if facts.machine.rules.copies == "idle":
        return  # copies share the home memory's idle time, not engines
    listed = [] if facts.plan.transfers is None else facts.plan.transfers.tolist()
    place_in_list = {(tensor, device): place for place, (tensor, device) in enumerate(listed)}
    place = np.array([place_in_list.get(key, -1) for key in sent.keys], dtype=np.int64)
    source = np.concatenate([facts.copy_source, facts.home[facts.home_device[sent.tensor]]])
    target = np.concatenate([facts.copy_target, facts.home[sent.device]])
    start = np.concatenate([times.copy_start, times.transfer_start])
    end = np.concatenate([times.copy_end, times.transfer_end])
    tensor = np.concatenate([facts.copy_tensor, sent.tensor])
    place = np.concatenate([np.full(len(facts.copy_tensor), -1), place])
    for engine, links in sorted(_links_of_engines(times).items()):
        jobs = np.flatnonzero(np.isin(source * len(facts.capacity) + target, links))
        jobs = jobs[np.lexsort((tensor[jobs], end[jobs], start[jobs]))]
        for row in np.flatnonzero(start[jobs[1:]] < end[jobs[:-1]]).tolist():
            before, after = jobs[row], jobs[row + 1]
            times.bad(
                f"engine '{engine}' starts {facts.tensor_text(tensor[after])} at {start[after]:,} ps and "
                f"is busy until {end[before]:,} ps",
                end[before],
                tensor=tensor[after],
            )
    for engine, links in sorted(_links_of_engines(times).items()):
        jobs = np.flatnonzero(np.isin(source * len(facts.capacity) + target, links) & (place >= 0))
        jobs = jobs[np.argsort(place[jobs])]
        for row in np.flatnonzero(start[jobs[1:]] < start[jobs[:-1]]).tolist():
            before, after = jobs[row], jobs[row + 1]
            times.bad(
                f"engine '{engine}' starts {facts.tensor_text(tensor[after])} at {start[after]:,} ps and "
                f"the transfer listed before it at {start[before]:,} ps",
                start[after],
                tensor=tensor[after],
            )


def _links_of_engines(times: Times) -> dict[str, list[int]]:
    """source * n_memories + target of the links that each engine serves."""
    machine, found = times.facts.machine, dict[str, list[int]]()
    for (source, target), link in machine.link_between.items():
        for engine in machine.links[link].engines:
            found.setdefault(engine, []).append(source * len(machine.memories) + target)
    return found


def check_memory(times: Times) -> None:
    """What a sweep over the times finds is what the timeline states."""
    facts = times.facts
    usages = sweep(facts, collect_holds(facts, times.clock))
    placed = facts.res_offset != NO_OFFSET
    where = facts.res_memory[placed]
    top = np.zeros(len(usages), dtype=np.int64)
    np.maximum.at(
        top, where, facts.res_offset[placed] + facts.align(facts.size[facts.res_tensor[placed]], where)
    )
    for memory, usage in enumerate(usages):
        capacity = int(facts.capacity[memory])
        found = {
            "memory_peak": usage.peak,
            "memory_top": int(top[memory]),
            "memory_over": max(0, usage.peak - capacity, int(top[memory]) - capacity),
            "memory_first_over": -1 if usage.first_over is None else usage.first_over,
        }
        for name, value in found.items():
            stated = int(getattr(times.timeline, name)[memory])
            if stated != value:
                times.bad(
                    f"{name} of {facts.memory_text(memory)} is {stated:,} and the times say {value:,}", value
                )
    report_capacity(facts, usages, times.report)


def check_spots(times: Times) -> None:
    """On several devices, residencies apart by position may still meet in time."""
    facts = times.facts
    if len(facts.devices_used) < 2:
        return
    begin, end = facts.windows
    nothing = (begin > end) | (end < 0)
    start = np.where(begin >= 0, times.step_start[np.where(nothing, 0, begin)], -1)
    until = times.step_end[np.where(nothing, 0, end)] - 1
    by_time = np.where(nothing, 0, start), np.where(nothing, -1, until)
    for first, second, when in find_overlaps(facts, by_time, times.report):
        if begin[first] > end[second] or begin[second] > end[first]:  # else it was reported by position
            tensor = int(facts.res_tensor[second])
            op = facts.op_at(int(begin[second]))
            times.report.add(
                "overlap",
                f"residencies {first} and {second} of "
                f"{facts.memory_text(facts.res_memory[first])} share addresses at "
                f"{when:,} ps, when {facts.tensor_text(tensor)} comes in at "
                f"{facts.op_text(op)}: move one",
                tensor=tensor,
                op=op,
                number=second,
            )


def check_total(times: Times) -> None:
    """The end of the last step, or of the last copy that is needed by the end."""
    awaited = times.copy_end[times.facts.needed == times.facts.n_steps]
    ends = np.concatenate([times.step_end, awaited])
    last, stated = int(ends.max()) if len(ends) else 0, times.timeline.total_ps
    if stated != last:
        times.bad(f"total is {stated:,} ps and the last end is {last:,} ps", last)
