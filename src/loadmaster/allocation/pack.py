"""Offsets for tensors that stay in one memory: weights and state from 0, the others above them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.arrays import distinct
from loadmaster.host import cores
from loadmaster.machine.machine import Machine, Memory
from loadmaster.plan.live_ranges import place_lives
from loadmaster.plan.plan import NO_OFFSET, lifetimes_in_loops
from loadmaster.program.hazards import places
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.search.pins import Pins

Int64 = npt.NDArray[np.int64]
SEARCHED_PER_SECOND = 15_000_000
"""Nodes times buffers of the exact search that two ordinary cores look at in a second."""


def search_nodes(seconds: float, buffers: int) -> int:
    """Nodes of the exact search in about so many seconds. Counted and not timed, since whether a
    decision has a plan must not depend on what else the computer has to do."""
    return max(1, int(seconds * SEARCHED_PER_SECOND / max(1, buffers)))


def pack(
    program: Program, machine: Machine, memory: Int64, seconds: float = 5.0, pins: Pins | None = None
) -> tuple[Int64, bool]:
    """[T] an offset for each root with a memory, and whether everything fits.

    Largest first, each at the lowest free offset; where that exceeds a capacity, the exact search
    of about so many seconds' work.
    A memory in which an offset is pinned is searched whole, weights and all.
    """
    first, last = lifetimes_in_loops(program)
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    place = places(program)
    here = np.flatnonzero((memory >= 0) & (last >= first))
    # Tensors that share a place have one offset.
    begin, end, bytes_, always = place_lives(program, here, place, first, last, kept)
    offset, fits = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64), True
    at = _pinned_places(place, pins)
    for number, there in enumerate(machine.memories):
        held = distinct(place[here[memory[here] == number]])
        size = -(-bytes_[held] // there.alignment) * there.alignment
        if (at[held] >= 0).any():
            until = np.where(always[held], program.n_ops, end[held] + 1)
            since = np.where(always[held], 0, begin[held])
            offset[held], inside = _around(since, until, size, at[held], there, seconds)
            fits = fits and inside
            continue
        fixed = held[always[held]]
        ends = np.cumsum(size[always[held]])
        offset[fixed] = ends - size[always[held]]
        base = int(ends[-1]) if len(ends) else 0
        floating, loose = held[~always[held]], size[~always[held]]
        if len(floating):
            found, inside = _placed(begin[floating], end[floating] + 1, loose, there.capacity - base, seconds)
            offset[floating] = base + found
            fits = fits and inside
        fits = fits and base <= there.capacity
    offset[here] = offset[place[here]]
    return np.where((memory >= 0) & (last >= first), offset, NO_OFFSET), fits


def _placed(lower: Int64, upper: Int64, size: Int64, capacity: int, seconds: float) -> tuple[Int64, bool]:
    count = len(size)
    buffers = _core.Buffers(
        lower,
        upper,
        size,
        np.ones(count, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.empty((0, 5), dtype=np.int64),
        np.empty((0, 2), dtype=np.int32),
    )
    offsets = buffers.place(np.lexsort((lower, -size)).astype(np.int32))
    height = int((offsets + size).max())
    if height <= capacity or capacity <= 0:
        return offsets, height <= capacity
    options = {"threads": cores(), "seed": 0}
    stop = _core.Stop(-1.0, search_nodes(seconds, count))
    _, exact, *_ = buffers.fit(capacity, options, stop)
    return (exact, True) if len(exact) else (offsets, False)


def _pinned_places(place: npt.NDArray[np.int32], pins: Pins | None) -> Int64:
    """[T] the offset that a place is pinned to, or -1."""
    at = np.full(len(place), NO_OFFSET, dtype=np.int64)
    for tensor, (_, offset) in (pins.memory if pins else {}).items():
        at[place[tensor]] = max(offset, at[place[tensor]])
    return at


def _around(
    lower: Int64, upper: Int64, size: Int64, pinned: Int64, memory: Memory, seconds: float
) -> tuple[Int64, bool]:
    """Offsets beside those that are pinned, by the exact search."""
    count = len(size)
    buffers = _core.Buffers(
        lower,
        upper,
        size,
        np.full(count, memory.alignment, dtype=np.int64),
        pinned,
        np.full(count, -1, dtype=np.int64),
        np.empty((0, 5), dtype=np.int64),
        np.empty((0, 2), dtype=np.int32),
    )
    capacity = min(memory.capacity, 2**60)
    stop = _core.Stop(-1.0, search_nodes(seconds, count))
    _, found, *_ = buffers.fit(capacity, {"threads": cores(), "seed": 0}, stop)
    return (found, True) if len(found) else (np.zeros(count, dtype=np.int64), False)
