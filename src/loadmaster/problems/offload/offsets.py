"""Offsets in fast memory for stays: what lies there between runs from 0, the others above it."""

from __future__ import annotations

import numpy as np

from loadmaster import _core
from loadmaster.host import cores
from loadmaster.problems.offload.model import Int64, OffloadModel
from loadmaster.problems.offload.stays import RESIDENT, Stays


def offsets_of(model: OffloadModel, stays: Stays, capacity: int, seconds: float = 0.0) -> Int64 | None:  # fmt: skip
    """[R] an offset for each stay, or None if none were found.

    Some orders of first fit, and the exact search for so many seconds where none of them fits.
    """
    size = model.size[stays.item]
    offset = np.zeros(len(size), dtype=np.int64)
    resident = np.flatnonzero(stays.begins == RESIDENT)
    ends = np.cumsum(size[resident])
    offset[resident] = ends - size[resident]
    base = int(ends[-1]) if len(ends) else 0
    moving = np.flatnonzero(stays.begins != RESIDENT)
    if base > capacity:
        return None
    if len(moving):
        found = _packed(stays.first[moving].astype(np.int64), stays.last[moving].astype(np.int64) + 1, size[moving],
                        capacity - base, seconds)  # fmt: skip
        if found is None:
            return None
        offset[moving] = base + found
    return offset


def _packed(lower: Int64, upper: Int64, size: Int64, capacity: int, seconds: float) -> Int64 | None:
    count = len(size)
    nowhere = np.full(count, -1, dtype=np.int64)
    buffers = _core.Buffers(lower, upper, size, np.ones(count, dtype=np.int64), nowhere, nowhere,
                            np.empty((0, 5), dtype=np.int64), np.empty((0, 2), dtype=np.int32))  # fmt: skip
    length = upper - lower
    for keys in (
        (lower, -(size * length)),
        (lower, -size),
        (-length, -size),
        (-size, lower),
        (size, lower),
    ):
        offset: Int64 = buffers.place(np.lexsort(keys).astype(np.int32))
        if int((offset + size).max()) <= capacity:
            return offset
    if capacity <= 0 or seconds <= 0:
        return None
    _, exact, *_ = buffers.fit(capacity, {"threads": cores(), "seed": 0}, _core.Stop(seconds, -1))
    return exact if len(exact) else None
