"""Cases of a Mapping problem, by how many bytes of its fastest memory activations ever fill.

Where activations fill at least P bytes of memory 0 at some step, everything alive only at steps
that have at most P bytes in all may be in memory 0 as well: it fits beside the weights, which
already leave P bytes, and no node gets slower. So a case 'from P to less than Q bytes' has few
open activations, and few of them are close to the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.solvers.exact.mapping_model import MappingModel

MOST_CASES = 12


@dataclass(frozen=True)
class Case:
    """Some of the maps: the best of all maps is the best of some case."""

    allowed: tuple[tuple[int, ...], ...]
    """[E] the memories that each entry can have."""
    most: int | None = None
    """At most so many bytes in memory 0 at any step, weights left out; None: any."""


def whole(model: MappingModel) -> Case:
    """All maps that matter, as one case."""
    return Case(tuple(_useful(model)))


def peak_cases(model: MappingModel, most_cases: int = MOST_CASES) -> list[Case]:
    """Cases that together hold a best map, from most bytes to fewest."""
    allowed = _useful(model)
    # Memory 0 may be the busiest: nothing gains by moving there for certain. And a case with few
    # bytes in memory 0 may have no room for what is pinned there.
    if model.parallel or (model.pinned >= 0).any():
        return [Case(tuple(allowed))]
    needed = np.zeros(model.entries, dtype=np.int64)  # most bytes of any step an entry is alive in
    for entries, size in model.rows:
        needed[entries] = np.maximum(needed[entries], size[:, 0].sum())
    slower = (model.access_cost[:, :1] > model.access_cost).any(axis=1)
    fixable = model.always.sum(axis=1) == 0
    fixable[model.access_entry[slower]] = False
    marks = np.unique(needed[fixable & (needed > 0) & (needed <= model.capacity[0])])[::-1]
    if len(marks) >= most_cases:
        marks = marks[np.linspace(0, len(marks) - 1, most_cases - 1).astype(np.int64)]
    cases: list[Case] = []
    most = None
    for mark in [*marks.tolist(), 0]:
        here = [
            (0,) if fixable[e] and 0 < needed[e] <= mark and 0 in allowed[e] else allowed[e]
            for e in range(model.entries)
        ]
        cases.append(Case(tuple(here), most))
        most = mark - 1
    return cases


def _useful(model: MappingModel) -> list[tuple[int, ...]]:
    """The memories of each entry, without those that are never faster than the slowest."""
    last = model.memories - 1
    faster = np.zeros((model.entries, model.memories), dtype=np.bool_)
    if model.parallel:
        faster[:] = True
    else:
        cost = model.access_cost
        np.logical_or.at(faster, model.access_entry, cost < cost[:, last:])
    pinned = model.pinned.tolist()
    return [
        (pin,) if pin >= 0 else (*np.flatnonzero(row[:last]).tolist(), last)
        for row, pin in zip(faster, pinned, strict=True)
    ]
