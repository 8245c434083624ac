"""The slow, obvious way to give copies their time at addresses: a table of who has which byte at which step."""

from __future__ import annotations

import numpy as np

from loadmaster.offload.model import OffloadModel
from loadmaster.offload.residencies import FETCHED, Residencies
from reference.offload import latest_issues

MOST = 4
"""Gaps that are looked at, the largest."""


class Board:
    """`taken[step, byte]`: how many lie there, which is never more than one."""

    def __init__(
        self,
        model: OffloadModel,
        residencies: Residencies,
        capacity: int,
        offset: list[int],
        scratch: list[list[int]],
    ) -> None:
        self.taken = np.zeros((model.steps, capacity), dtype=np.int8)
        self.first, self.last = residencies.first.tolist(), residencies.last.tolist()
        self.low, self.size = list(offset), model.size[residencies.item].tolist()
        for step, low, high in scratch:
            self.taken[step, low:high] += 1
        for row in range(len(self.low)):
            self.fill(row, 1)
        self.moves = 0

    def fill(self, row: int, change: int) -> None:
        low = self.low[row]
        self.taken[self.first[row] : self.last[row] + 1, low : low + self.size[row]] += change
        assert self.taken.min() >= 0 and self.taken.max() <= 1

    def stretch(self, row: int, wanted: int, by: int) -> None:
        """Make a stay longer at its end (by = 1) or its beginning (-1): where it lies, or in another gap if it
        gets further there."""
        self.fill(row, -1)
        here, low = self.furthest(row, wanted, by, self.own_gap(row))
        if here != wanted:
            there, elsewhere = self.furthest(row, wanted, by, self.gaps(row))
            if abs(wanted - there) < abs(wanted - here):
                here, low = there, elsewhere
                self.moves += 1
        self.low[row] = low
        if by > 0:
            self.last[row] = here
        else:
            self.first[row] = here
        self.fill(row, 1)

    def own_gap(self, row: int) -> list[tuple[int, int]]:
        return [(self.low[row], self.low[row] + self.size[row])]

    def gaps(self, row: int) -> list[tuple[int, int]]:
        free = ~self.taken[self.first[row] : self.last[row] + 1].any(axis=0)
        found = [(low, high) for low, high in runs(free) if high - low >= self.size[row]]
        return sorted(sorted(found, key=lambda gap: (gap[0] - gap[1], -gap[0]))[:MOST])

    def furthest(self, row: int, wanted: int, by: int, gaps: list[tuple[int, int]]) -> tuple[int, int]:
        """The last step that can be reached within some gaps, and the lowest address of the smallest one left."""
        step = self.last[row] if by > 0 else self.first[row]
        open_ = np.zeros(self.taken.shape[1], dtype=bool)
        for low, high in gaps:
            open_[low:high] = True
        while step * by < wanted * by:
            narrower = open_ & (self.taken[step + by] == 0)
            if not any(high - low >= self.size[row] for low, high in runs(narrower)):
                break
            open_, step = narrower, step + by
        left = [(high - low, low) for low, high in runs(open_) if high - low >= self.size[row]]
        return step, min(left)[1] if left else -1


def runs(free: np.ndarray) -> list[tuple[int, int]]:
    """[low, high) of what is free, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], free.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def scheduled_placed(
    model: OffloadModel,
    residencies: Residencies,
    capacity: int,
    lead: int,
    scratch: list[list[int]],
    offset: list[int],
) -> tuple[list[list[int]], list[int], int]:
    """Rows (first, last, issued, out needed), offsets, and how many stays were moved."""
    board = Board(model, residencies, capacity, offset, scratch)
    clock, steps, item = model.clock.tolist(), model.steps, residencies.item.tolist()
    count, first = len(item), residencies.first.tolist()
    out_needed, issued, earliest = [-1] * count, [-1] * count, residencies.earliest.tolist()
    again = [row + 1 < count and item[row + 1] == item[row] for row in range(count)]
    free_at = delay = 0
    leaving = [row for row in range(count) if residencies.leaves[row]]
    for row in sorted(leaving, key=lambda row: int(model.made[item[row]])):
        start = clock[int(model.made[item[row]]) + 1] + delay
        free_at = max(free_at, start) + int(model.copy_out[item[row]])
        done = [step for step in range(steps) if clock[step] >= free_at - delay]
        until = max(board.last[row] + 1, done[0] if done else steps)
        if again[row]:
            until = min(until, first[row + 1] - 1)
        if until - 1 > board.last[row]:
            board.stretch(row, until - 1, 1)
        out_needed[row] = until = board.last[row] + 1
        if until < steps:
            delay = max(delay, free_at - clock[until])
    for row in range(count - 1):
        if again[row]:
            earliest[row + 1] = max(earliest[row + 1], board.last[row] + 1)
    fetched = sorted(
        (row for row in range(count) if residencies.begins[row] == FETCHED), key=first.__getitem__
    )
    latest = latest_issues(model, item, first, fetched, lead)
    turn = -1
    for row in fetched:
        wanted = max([-1, *(step for step in range(steps) if clock[step + 1] <= latest[row])])
        wanted = max(min(max(wanted, earliest[row]), first[row] - 1), turn)
        if wanted + 1 < board.first[row]:
            board.stretch(row, wanted + 1, -1)
        issued[row] = turn = board.first[row] - 1
    times = [list(each) for each in zip(board.first, board.last, issued, out_needed, strict=True)]
    return times, board.low, board.moves
