"""The lives of tensors, and of places: tensors that share a place count as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.plan.plan import BEFORE, NO_OFFSET, Residency, lifetimes, lifetimes_in_loops
from loadmaster.program.hazards import places
from loadmaster.program.program import PERSISTENT, Program, TensorKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Lives(NamedTuple):
    """[T] at the representatives of places."""

    first: Int64
    last: Int64
    bytes: Int64
    always: Bool
    """It holds something that is kept between runs."""


def place_lives(
    program: Program, roots: Int64, place: npt.NDArray[np.int32], first: Int64, last: Int64, kept: Bool
) -> Lives:
    """What the places of `roots` hold, and when; the other columns are [T], of roots."""
    begin = np.full(program.n_tensors, program.n_ops, dtype=np.int64)
    end, size = np.zeros_like(begin), np.zeros_like(begin)
    always = np.zeros(program.n_tensors, dtype=np.bool_)
    at = place[roots]
    np.minimum.at(begin, at, first[roots])
    np.maximum.at(end, at, last[roots])
    np.maximum.at(size, at, program.storage_bytes[roots])
    np.logical_or.at(always, at, kept[roots])
    return Lives(begin, end, size, always)


def find_live_ranges(program: Program, order: Int32 | None = None) -> tuple[Int64, Int64]:
    """[T] (first op, last op) at which each root must be somewhere, in program order or in another;
    what nobody needs has no meaning here."""
    if order is None:
        return lifetimes_in_loops(program)
    first, last = lifetimes(program, order)
    if not program.n_ops:
        return first, last
    ops = order.astype(np.int64)
    return ops[first], ops[last]


def place_weights(program: Program, memory: int, order: Int32 | None = None) -> Iterator[Residency]:
    """Weights and state, and what is written over them, in one memory, offsets undecided."""
    first, last = find_live_ranges(program, order)
    begin, end = lifetimes(program)
    place = places(program)
    root = program.tensor_alias == np.arange(program.n_tensors)
    given = root & np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    # One place, one memory: a member that must stay at home keeps all of them there.
    at_home = root & (~program.tensor_fast | (program.tensor_kind == TensorKind.INPUT))
    there = np.isin(place, place[given]) & ~np.isin(place, place[at_home])
    for tensor in np.flatnonzero(root & there & (end >= begin)).tolist():
        since = BEFORE if given[tensor] else int(first[tensor])
        yield Residency(tensor, memory, NO_OFFSET, since, int(last[tensor]))


def resident_bytes(program: Program, alignment: int, elsewhere: Iterable[Residency]) -> int:
    """Bytes of weights and state, and of what is written over them, that no row of `elsewhere` has:
    they are at home all the time."""
    place = places(program)
    away = {int(place[row.tensor]) for row in elsewhere}
    given = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    size: dict[int, int] = dict.fromkeys(set(place[given].tolist()) - away, 0)
    for root in np.flatnonzero(program.tensor_alias == np.arange(program.n_tensors)).tolist():
        at = int(place[root])
        if at in size:
            size[at] = max(size[at], int(program.storage_bytes[root]))
    return sum(-(-each // alignment) * alignment for each in size.values())
