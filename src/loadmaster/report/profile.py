"""Bytes in use per memory over time, and the moment at which they are most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.report.holdings import Boxes

Int64 = npt.NDArray[np.int64]
_LARGEST = 10


@dataclass(frozen=True)
class Profile:
    """A memory's bytes: `bytes[i]` from `when[i]` on. The peak is that of the timeline."""

    memory: int
    when: Int64
    bytes: Int64
    peak: int
    peak_at: int
    """The first moment at which it is reached, picoseconds."""
    largest: list[int]
    """The largest tensors there then, largest first."""
    alive: int
    """How many tensors are there then."""


def profiles(boxes: Boxes) -> list[Profile]:
    """Of every memory that holds anything."""
    return [_profile(boxes, memory, span) for memory, span in sorted(boxes.spans.items())]


def _profile(boxes: Boxes, memory: int, span: Int64) -> Profile:
    begin, end, size = span.T
    moments = np.unique(np.concatenate([begin, end]))
    change = np.zeros(len(moments), dtype=np.int64)
    np.add.at(change, np.searchsorted(moments, begin), size)
    np.subtract.at(change, np.searchsorted(moments, end), size)
    held = np.cumsum(change)
    top = int(held.argmax()) if len(held) else 0
    at = int(moments[top]) if len(held) else 0
    here = (boxes.memory == memory) & (boxes.begin <= at) & (boxes.end > at)
    rows = np.flatnonzero(here)
    ranked = rows[np.lexsort((boxes.tensor[rows], -boxes.size[rows]))]
    tensors = list(dict.fromkeys(boxes.tensor[ranked].tolist()))
    peak = int(held[top]) if len(held) else 0
    return Profile(memory, moments, held, peak, at, tensors[:_LARGEST], len(tensors))
