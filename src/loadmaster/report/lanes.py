"""What devices and links do over time: bars for steps, copies and transfers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.plan.check.facts import Facts
from loadmaster.plan.plan import BEFORE, WHOLE
from loadmaster.simulate import Timeline

Int64 = npt.NDArray[np.int64]
_MOST_ROWS = 6
"""Copies of one link that wait side by side; more are drawn over one another."""


@dataclass(frozen=True)
class Bars:
    """Steps of devices, by start. A fused group is one step."""

    op: Int64
    """The step's number: its smallest op."""
    members: Int64
    device: Int64
    start: Int64
    end: Int64
    stall: Int64
    work: Int64
    """The class of most of its flops, as in `FLOP_CLASSES`; 3: it has none."""


@dataclass(frozen=True)
class Moves:
    """Copies and transfers, by start."""

    tensor: Int64
    link: Int64
    start: Int64
    end: Int64
    bytes: Int64
    issued_after: Int64
    """An op, or BEFORE."""
    needed_by: Int64
    """An op, or the number of ops: the end."""
    row: Int64
    """Of the lane of its link."""
    stalls: npt.NDArray[np.bool_]
    """Whether an op waits for it."""
    planned: npt.NDArray[np.bool_]
    """Whether it is a copy of the plan, not a transfer between devices that follows from it."""


def find_bars(facts: Facts, timeline: Timeline) -> Bars:
    """All steps."""
    number = np.array([step.number for step in facts.steps], dtype=np.int64)
    members = np.array([len(step.members) for step in facts.steps], dtype=np.int64)
    device = np.array([step.device for step in facts.steps], dtype=np.int64)
    flops = np.zeros((len(number), 3), dtype=np.int64)
    step_of = np.array(facts.step_of, dtype=np.int64)
    real = step_of >= 0
    np.add.at(flops, step_of[real], facts.program.op_flops[real])
    work = np.where(flops.any(axis=1), flops.argmax(axis=1), 3) if len(number) else number
    start, end = timeline.op_start[number], timeline.op_end[number]
    order = np.lexsort((number, start))
    columns = (number, members, device, start, end, timeline.op_stall[number], work)
    return Bars(*(column[order] for column in columns))


def find_moves(facts: Facts, timeline: Timeline) -> Moves:
    """All copies and transfers."""
    rows = [*_copies(facts, timeline), *_transfers(facts, timeline)]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 9)
    table = table[np.argsort(table[:, 2], kind="stable")]
    tensor, link, start, end, size, issued, needed, stalls, planned = table.T
    lane = _lanes(link, start, end)
    return Moves(tensor, link, start, end, size, issued, needed, lane, stalls > 0, planned > 0)


def _copies(facts: Facts, timeline: Timeline) -> Iterator[tuple[int, ...]]:
    for row, copy in enumerate(facts.copies):
        link = facts.machine.link_between[copy.source, copy.target]
        size = facts.size[copy.tensor] if copy.low == WHOLE else copy.high - copy.low
        start, end = int(timeline.copy_start[row]), int(timeline.copy_end[row])
        needed = facts.needed(row)
        waits = needed < len(facts.steps) and _waits(facts, timeline, needed, end)
        yield copy.tensor, link, start, end, size, copy.issued_after, copy.needed_by, waits, 1


def _transfers(facts: Facts, timeline: Timeline) -> Iterator[tuple[int, ...]]:
    home = facts.machine.home
    for tensor, device, start, end in timeline.transfers.tolist():
        link = facts.machine.link_between[home[facts.home_device[tensor]], home[device]]
        writer = facts.writer[tensor]
        made = facts.steps[writer].number if writer >= 0 else BEFORE
        ranks = facts.transfers.get((tensor, device), [])
        needed_by = min((facts.steps[rank].number for rank in ranks), default=facts.n_ops)
        yield tensor, link, start, end, facts.size[tensor], made, needed_by, 0, 0


def _waits(facts: Facts, timeline: Timeline, rank: int, end: int) -> int:
    number = facts.steps[rank].number
    return int(timeline.op_stall[number] > 0 and timeline.op_start[number] == end)


def _lanes(link: Int64, start: Int64, end: Int64) -> Int64:
    """[moves] the first row of its lane that is free; the last where none is."""
    free: dict[int, list[int]] = {}
    lane = np.zeros(len(link), dtype=np.int64)
    for i, (k, s, e) in enumerate(zip(link.tolist(), start.tolist(), end.tolist(), strict=True)):
        rows = free.setdefault(k, [])
        spot = next((row for row, until in enumerate(rows) if until <= s), len(rows))
        spot = min(spot, _MOST_ROWS - 1)
        if spot == len(rows):
            rows.append(e)
        rows[spot] = max(rows[spot], e)
        lane[i] = spot
    return lane
