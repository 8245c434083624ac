"""A timeline as the checker sees it: the times of steps, copies and transfers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from loadmaster.plan.check.facts import Facts
from loadmaster.plan.check.report import Report


class TimelineLike(Protocol):
    """What is needed of `loadmaster.simulate.timeline.Timeline`, which `plan` may not import."""

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
