"""Rule `tie`: tensors that share one place are read and written in that place."""

from __future__ import annotations

from loadmaster.plan.check.facts import HOME, Facts, Overwrite
from loadmaster.plan.check.report import Report
from loadmaster.plan.plan import NO_OFFSET
from loadmaster.program.program import TieKind

Spot = tuple[int, int]
"""A memory and an offset; the home of a device has no offset."""


def check_ties(facts: Facts, report: Report) -> None:
    """In-place ops, values that a loop carries, and nobody who uses what is gone."""
    for overwrite in facts.overwrites:
        _after_users(facts, overwrite, report)
    members = _loop_members(facts)
    for kind, source, target, at in facts.ties:
        if at < 0 or source == target:
            continue
        if kind == TieKind.INPLACE:
            if facts.step_of[at] >= 0:
                _in_place(facts, source, target, at, report)
        elif facts.residencies_of.keys() & {source, target} or len(facts.devices_used) > 1:
            _carried(facts, source, target, at, members.get(at, []), report)


def _spot(facts: Facts, rank: int, tensor: int) -> Spot:
    """Where a step's access to a tensor takes place."""
    memory, row = facts.serves(rank, tensor)
    return memory, NO_OFFSET if row == HOME else facts.residencies[row].offset


def _spot_text(facts: Facts, spot: Spot) -> str:
    offset = f" at {spot[1]:,}" if spot[1] != NO_OFFSET else ""
    return facts.memory_text(spot[0]) + offset


def _in_place(facts: Facts, source: int, target: int, op: int, report: Report) -> None:
    """The op finds the source where it leaves the target."""
    rank = facts.step_of[op]
    step = facts.steps[rank]
    if target in step.writes:
        where = _spot(facts, rank, target)
        found = _spot(facts, rank, source) if source in step.reads else where
        if found != where:
            report.add(
                "tie",
                f"{facts.op_text(op)} writes {facts.tensor_text(target)} to "
                f"{_spot_text(facts, where)} over {facts.tensor_text(source)} in "
                f"{_spot_text(facts, found)}: use one memory and one offset",
                tensor=target,
                op=op,
                number=where[1],
            )


def _after_users(facts: Facts, overwrite: Overwrite, report: Report) -> None:
    """An op that takes a place comes after all that use what lies there, copies too."""
    tensor, over, op, users = overwrite
    rank = facts.step_of[op]
    if facts.in_order:
        for user in users:
            if user > rank:
                late = facts.steps[user]
                report.add(
                    "tie",
                    f"{facts.op_text(late.number)} at position {late.position} uses "
                    f"{facts.tensor_text(tensor)} after {facts.op_text(op)} has written "
                    f"{facts.tensor_text(over)} over it: run it before",
                    tensor=tensor,
                    op=late.number,
                    number=late.position,
                )
    if over not in facts.steps[rank].writes:
        return
    memory = _spot(facts, rank, over)[0]
    for row in facts.copies_of.get(tensor, []):
        if facts.needed(row) > rank and facts.copies[row].source == memory:
            report.add(
                "tie",
                f"copy {row} takes {facts.tensor_text(tensor)} from {facts.memory_text(memory)} and "
                f"is not needed before {facts.op_text(op)}, which writes {facts.tensor_text(over)} "
                "over it: let that op need it",
                tensor=tensor,
                op=op,
                number=row,
            )


def _loop_members(facts: Facts) -> dict[int, list[int]]:
    """The ranks of the steps inside each loop that carries something, inner loops included."""
    parent = facts.program.loop_parent.tolist()
    wanted = {at for kind, _, _, at in facts.ties if kind == TieKind.CARRIED}
    members: dict[int, list[int]] = {}
    if wanted:
        for rank, step in enumerate(facts.steps):
            loop = facts.loop[step.number]
            while loop >= 0:
                if loop in wanted:
                    members.setdefault(loop, []).append(rank)
                loop = parent[loop]
    return members


def _carried(facts: Facts, source: int, target: int, loop: int, ranks: list[int], report: Report) -> None:
    """One spot for the whole loop: what an iteration leaves, the next one finds."""
    wanted: Spot | None = None
    for rank in ranks:
        step = facts.steps[rank]
        for tensor in dict.fromkeys([*step.reads, *step.writes]):
            if tensor not in (source, target):
                continue
            spot = _spot(facts, rank, tensor)
            wanted = wanted or spot
            if spot != wanted:
                report.add(
                    "tie",
                    f"{facts.op_text(step.number)} accesses {facts.tensor_text(tensor)} "
                    f"in {_spot_text(facts, spot)}, and loop {loop} carries it in "
                    f"{_spot_text(facts, wanted)}: use one memory and one offset",
                    tensor=tensor,
                    op=step.number,
                    number=spot[1],
                )
    rows = facts.residencies_of.get(source, []) + facts.residencies_of.get(target, [])
    in_spot = [row for row in rows if facts.residencies[row][1:3] == wanted]
    if wanted is None or not in_spot:
        return  # the home of a device is there all the time
    covered = ranks[0]
    for first, last in sorted(facts.window(row) for row in in_spot):
        if first <= covered:
            covered = max(covered, last + 1)
    if covered <= ranks[-1]:
        op = facts.op_at(covered)
        report.add(
            "tie",
            f"loop {loop} carries {facts.tensor_text(source)} in "
            f"{_spot_text(facts, wanted)}, and it does not stay there at {facts.op_text(op)} "
            f"(position {facts.steps[covered].position}): let it cover the whole loop",
            tensor=source,
            op=op,
            number=facts.steps[covered].position,
        )
