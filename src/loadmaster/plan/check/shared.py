"""Rule `timeline`, second part: what steps and copies share is used by one at a time.

Devices, engines, memories, and the total.
"""

from __future__ import annotations

from itertools import pairwise

from loadmaster.plan.check.memory import holds, report_capacity, sweep
from loadmaster.plan.check.residency import overlapping
from loadmaster.plan.check.times import Times
from loadmaster.plan.plan import NO_OFFSET


def devices(times: Times) -> None:
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


def engines(times: Times) -> None:
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


def memory(times: Times) -> None:
    """What a sweep over the times finds is what the timeline states."""
    facts = times.facts
    usages = sweep(facts, holds(facts, times))
    top = [0] * len(usages)
    for tensor, where, offset, _, _ in facts.residencies:
        if offset != NO_OFFSET:
            top[where] = max(top[where], offset + facts.aligned(facts.size[tensor], where))
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


def spots(times: Times) -> None:
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
    for first, second, when in overlapping(facts, by_time, times.report):
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


def total(times: Times) -> None:
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
