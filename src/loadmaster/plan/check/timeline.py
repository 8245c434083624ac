"""Rule `timeline`: a timeline that keeps the rules, whoever computed it (sections 4 to 7).

Costs are not computed again: what is checked is that nothing happens before what it waits for,
that nothing is used by two at once (`check_shared`), and that the totals are those of the events.
"""

from __future__ import annotations

from loadmaster.plan.check.data import Relies
from loadmaster.plan.check.facts import Facts
from loadmaster.plan.check.report import Report
from loadmaster.plan.check.shared import devices, engines, memory, spots, total
from loadmaster.plan.check.times import TimelineLike, Times, is_readable

__all__ = ["TimelineLike", "check_timeline"]


def check_timeline(facts: Facts, timeline: TimelineLike, relies: Relies, report: Report) -> bool:
    """Check all of it; return whether it could be read."""
    if not is_readable(facts, timeline, report):
        return False
    times = Times(facts, timeline, report)
    ops(times)
    copies(times)
    if transfers(times):
        waits(times, relies)
        devices(times)
        engines(times)
        memory(times)
        spots(times)
    total(times)
    return True


def ops(times: Times) -> None:
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


def copies(times: Times) -> None:
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


def transfers(times: Times) -> bool:
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


def waits(times: Times, relies: Relies) -> None:
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
        if start < end and facts.needed(row) != rank:  # the step that needs it: see `copies`
            op, tensor = facts.steps[rank].number, facts.copies[row].tensor
            times.bad(
                f"{facts.op_text(op)} starts at {start:,} ps and reads what copy {row} of "
                f"{facts.tensor_text(tensor)} brings at {end:,} ps",
                end,
                op,
                tensor,
            )
