"""A slow and obvious allocator: a list of what is there, every hole looked at, the end taken last."""

from __future__ import annotations

import numpy as np

from loadmaster.plan import BEFORE, Plan
from loadmaster.program.program import Program

MIB = 2**20


class SlowHeap:
    def __init__(self) -> None:
        self.live: list[tuple[int, int]] = []
        self.top = 0

    def take(self, size: int) -> tuple[int, int]:
        fitting = [(end - start, start) for start, end in self.holes()
                   if end - start >= size and end < self.top]  # fmt: skip
        start = min(fitting)[1] if fitting else max((end for _, end in self.live), default=0)
        self.live.append((start, start + size))
        self.top = max(self.top, start + size)
        return start, start + size

    def give(self, start: int, end: int) -> None:
        self.live.remove((start, end))

    def holes(self) -> list[tuple[int, int]]:
        """(start, end) between what is there, and at the end."""
        found, free = [], 0
        for start, end in [*sorted(self.live), (self.top, self.top)]:
            if start > free:
                found.append((free, start))
            free = end
        return found


def slow_held(program: Program, plan: Plan, alignment: int, workspace: list[int]) -> int:
    """Bytes that the allocator takes for a plan's residencies, op by op: what comes in is asked for when
    its copy is issued, a result when its op begins, and all goes after the last op that has it."""
    small, large = SlowHeap(), SlowHeap()
    places: dict[int, tuple[SlowHeap, tuple[int, int]]] = {}
    fetched = {(row.tensor, 0 if row.issued_after == BEFORE else row.issued_after + 1)
               for row in plan.copy_rows if row.target == 0}  # fmt: skip
    rows = list(enumerate(plan.residency_rows))
    real = np.flatnonzero(~program.op_view).tolist()

    def ask(key: int, size: int) -> None:
        rounded = (size + 511) // 512 * 512
        heap = large if rounded > MIB else small
        places[key] = heap, heap.take(rounded)

    def room(tensor: int) -> int:
        return -(-int(program.storage_bytes[tensor]) // alignment) * alignment

    def ask_for_copies(after: int, before: int) -> None:
        """Of those whose stay begins after one op and not after another."""
        for key, row in rows:
            if (row.tensor, row.first) in fetched and after < row.first <= before:
                ask(key, room(row.tensor))

    for key, row in rows:
        if row.first == BEFORE:
            ask(key, room(row.tensor))
    last = -1
    for op in real:
        ask_for_copies(last, op)
        for key, row in rows:
            if row.first == op and (row.tensor, row.first) not in fetched:
                ask(key, room(row.tensor))
        if workspace[op]:
            ask(-1, workspace[op])
            heap, place = places.pop(-1)
            heap.give(*place)
        for key, row in rows:
            if row.first != BEFORE and row.last == op:
                heap, place = places.pop(key)
                heap.give(*place)
        last = op
    return -(-small.top // (2 * MIB)) * 2 * MIB + -(-large.top // (20 * MIB)) * 20 * MIB
