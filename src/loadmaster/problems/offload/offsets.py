"""Offsets in fast memory for stays: what lies there between runs from 0, the others above it."""

from __future__ import annotations

import numpy as np

from loadmaster import _core
from loadmaster.host import cores
from loadmaster.problems.offload.model import Int64, OffloadModel
from loadmaster.problems.offload.stays import RESIDENT, Stays
from loadmaster.problems.pack import search_nodes


def offsets_of(model: OffloadModel, stays: Stays, capacity: int, seconds: float = 0.0) -> Int64 | None:
    """[R] an offset for each stay, or None if none were found; see `pack`."""
    found = pack(model, stays, capacity, seconds)
    return None if found is None else found[0]


def pack(
    model: OffloadModel, stays: Stays, capacity: int, seconds: float = 0.0
) -> tuple[Int64, Int64] | None:
    """([R] an offset for each stay, [n, 3] step, begin and end of what each step's kernels take), or None if
    none were found.

    Some orders of first fit, and where none of them fits the exact search of about so many seconds' work.
    """
    size = model.size[stays.item]
    offset = np.zeros(len(size), dtype=np.int64)
    resident = np.flatnonzero(stays.begins == RESIDENT)
    ends = np.cumsum(size[resident])
    offset[resident] = ends - size[resident]
    base = int(ends[-1]) if len(ends) else 0
    moving, working = np.flatnonzero(stays.begins != RESIDENT), np.flatnonzero(model.taken)
    if base > capacity:
        return None
    scratch = np.stack([working, working, working], axis=1).astype(np.int64)
    if len(moving) + len(working):
        sizes = np.concatenate([size[moving], model.taken[working]])
        found = _packed(
            np.concatenate([stays.first[moving], working]).astype(np.int64),
            np.concatenate([stays.last[moving], working]).astype(np.int64) + 1,
            sizes,
            capacity - base,
            seconds,
        )
        if found is None:
            return None
        offset[moving] = base + found[: len(moving)]
        scratch[:, 1] = base + found[len(moving) :]
        scratch[:, 2] = scratch[:, 1] + model.taken[working]
    return offset, scratch


def _packed(lower: Int64, upper: Int64, size: Int64, capacity: int, seconds: float) -> Int64 | None:
    count = len(size)
    nowhere = np.full(count, -1, dtype=np.int64)
    buffers = _core.Buffers(
        lower,
        upper,
        size,
        np.ones(count, dtype=np.int64),
        nowhere,
        nowhere,
        np.empty((0, 5), dtype=np.int64),
        np.empty((0, 2), dtype=np.int32),
    )
    length = upper - lower
    for keys in ((lower, -size), (-length, -size), (lower, -(size * length)), (-size, lower), (size, lower)):
        offset: Int64 = buffers.place(np.lexsort(keys).astype(np.int32))
        if int((offset + size).max()) <= capacity:
            return offset
    if capacity <= 0 or seconds <= 0:
        return None
    stop = _core.Stop(-1.0, search_nodes(seconds, count))
    _, exact, *_ = buffers.fit(capacity, {"threads": cores(), "seed": 0}, stop)
    return exact if len(exact) else None
