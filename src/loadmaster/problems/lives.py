"""The lives of places: tensors that share a place count as one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.program.program import Program

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Lives(NamedTuple):
    """[T] at the representatives of places."""

    first: Int64
    last: Int64
    bytes: Int64
    always: Bool
    """It holds something that is kept between runs."""


def place_lives(program: Program, roots: Int64, place: npt.NDArray[np.int32], first: Int64,
                last: Int64, kept: Bool) -> Lives:  # fmt: skip
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
