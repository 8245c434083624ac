"""Plan again after a few buffers changed, and move little else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.problems.buffers import NONE, Buffers
from loadmaster.solvers.heuristic.assign import offsets_within

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Replan:
    """New offsets, and which of the buffers that could have stayed had to move."""

    offset: Int64
    moved: Int64
    """Numbers of unchanged buffers whose offset changed."""


def replan(
    buffers: Buffers,
    before: Buffers,
    offset: npt.NDArray[np.int64],
    capacity: int,
    *,
    seconds: float = 5.0,
    seed: int = 0,
) -> Replan | None:
    """Offsets within a capacity that keep unchanged buffers (same id, life and size) where they were.

    First everything unchanged is held; if that leaves no room, those nearest in time to a change are
    let go, twice as many each time, until it fits. None: not even a new plan was found.
    """
    old = _old_offsets(buffers, before, offset)
    unchanged = np.flatnonzero((old != NONE) & (buffers.pinned == NONE) & (old + buffers.size <= capacity))
    fresh = np.setdiff1d(np.arange(len(buffers)), unchanged)
    by_distance = unchanged[np.lexsort((-buffers.size[unchanged], _distance(buffers, unchanged, fresh)))]
    release = 0
    while True:
        held = by_distance[release:]
        pinned = buffers.pinned.copy()
        pinned[held] = old[held]
        hint = np.where(old % buffers.alignment == 0, old, NONE)
        share = seconds if release >= len(by_distance) else seconds / 4
        found = offsets_within(buffers.changed(pinned=pinned, hint=hint), capacity, share, seed)
        if found is not None:
            return Replan(found, unchanged[found[unchanged] != old[unchanged]])
        if release >= len(by_distance):
            return None
        release = min(len(by_distance), max(1, 2 * release))


def _old_offsets(buffers: Buffers, before: Buffers, offset: Int64) -> Int64:
    known = {
        (before.ids[b], int(before.lower[b]), int(before.upper[b]), int(before.size[b])): int(offset[b])
        for b in range(len(before))
    }
    rows = zip(
        buffers.ids, buffers.lower.tolist(), buffers.upper.tolist(), buffers.size.tolist(), strict=True
    )
    old = np.array([known.get(row, NONE) for row in rows], dtype=np.int64)
    return np.where((old != NONE) & (old % buffers.alignment != 0), NONE, old)


def _distance(buffers: Buffers, unchanged: Int64, fresh: Int64) -> Int64:
    """0 where a life overlaps that of a changed buffer, else the time between them."""
    if not len(fresh):
        return np.zeros(len(unchanged), dtype=np.int64)
    lower, upper = buffers.lower[unchanged, None], buffers.upper[unchanged, None]
    gap = np.maximum(buffers.lower[fresh] - upper + 1, lower - buffers.upper[fresh] + 1)
    return np.asarray(np.maximum(0, gap).min(axis=1), dtype=np.int64)
