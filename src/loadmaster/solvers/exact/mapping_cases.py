"""Cases of a Mapping problem, by how many bytes of its fastest memory activations ever fill.

Where activations fill at least P bytes of memory 0 at some step, everything alive only at steps
that have at most P bytes in all may be in memory 0 as well: it fits beside the weights, which
already leave P bytes, and no node gets slower. So a case 'from P to less than Q bytes' has few
open activations, and few of them are close to the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.solvers.exact.mapping_model import MappingModel

Int64 = npt.NDArray[np.int64]


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


def peak_cases(model: MappingModel, count: int = 8) -> list[Case]:
    """Cases that together hold a best map, from most bytes to fewest."""
    allowed = _useful(model)
    needed = np.zeros(model.entries, dtype=np.int64)  # most bytes of any step an entry is alive in
    totals = []
    for entries, size in model.rows:
        totals.append(int(size[:, 0].sum()))
        needed[entries] = np.maximum(needed[entries], totals[-1])
    fixable = _never_slower(model) & (model.always.sum(axis=1) == 0)
    marks = sorted(set(totals), reverse=True)
    cases, above = [], None
    for mark in [*marks[: count - 1], 0]:
        here = [(0,) if fixable[e] and 0 < needed[e] <= mark and 0 in allowed[e] else allowed[e]
                for e in range(model.entries)]  # fmt: skip
        cases.append(Case(tuple(here), None if above is None else above - 1))
        above = mark
        if mark == 0:
            break
    return cases


def _useful(model: MappingModel) -> list[tuple[int, ...]]:
    """The memories of each entry without those that are never faster than the slowest."""
    last = model.memories - 1
    slower = np.zeros((model.entries, model.memories), dtype=np.bool_)
    np.logical_or.at(slower, model.access_entry, model.access_cost < model.access_cost[:, last:])
    return [(*np.flatnonzero(row[:last]).tolist(), last) for row in slower]


def _never_slower(model: MappingModel) -> npt.NDArray[np.bool_]:
    """[E] whether no node gets slower if an entry moves to memory 0."""
    fine = np.ones(model.entries, dtype=np.bool_)
    if model.parallel:  # memory 0 may be the busiest
        fine[:] = False
    slow = (model.access_cost[:, :1] > model.access_cost).any(axis=1)
    fine[model.access_entry[slow]] = False
    return fine
