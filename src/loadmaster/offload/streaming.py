"""`Stream`: what must leave is copied out from the start on, as fast as the link takes it.

In a training step the first results are used again last. So they leave as soon as they are made, no
sooner than the link is free for them, until what is left fits.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from loadmaster.offload.heuristics import OneRule
from loadmaster.offload.model import BEFORE_USE, BETWEEN, TO_END, Bool, Int64, OffloadModel
from loadmaster.offload.problem import Offload
from loadmaster.offload.residencies import SMALL, occupied, repaired, settled, stays_of
from loadmaster.search.problem import Decision

# ----------------------------------------------------------------------------
# `Spread`: what must be streamed is spread evenly over the time in which ops run, so that the link is
# never asked for more than it can hide.

BUFFERS = (1.0, 2.0, 4.0, 8.0)
"""Room for copies on their way, in largest streamed tensors."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the bytes that ops make and use again much later: how much leaves."""


class Spread(OneRule):
    name = "spread"
    summary = "what is streamed is spread evenly over the run (white box)"

    def make(self, problem: Offload) -> list[Decision]:
        made = {}
        for share, buffer, lead in product(SHARES, BUFFERS, (3, 6)):
            keep = spread_gaps(problem, share, buffer)
            made[keep.tobytes(), lead] = problem.vector(keep, lead)
        return list(made.values())


def spread_gaps(problem: Offload, share: float, buffer: float) -> Bool:
    """[G] kept gaps: activations first, then weights in the room that is left."""
    model, clock = problem.model, problem.clock
    weight = model.persistent[model.gap_item]
    keep = np.ones(model.gaps, dtype=bool)
    tiny = model.size[model.gap_item] <= model.capacity // SMALL
    keep[weight & ~tiny] = False
    long = np.flatnonzero(~weight & _is_long(problem))
    size = model.size[model.gap_item]
    if share > 0 and len(long):
        order = long[np.argsort(model.gap_from[long], kind="stable")]
        keep[order[_diffused(size[order], clock[model.gap_from[order]], share)]] = False
    room = max(problem.least, model.capacity - int(buffer * _typical(model)))
    keep = repaired(model, keep, room)
    before = np.flatnonzero((model.gap_kind == BEFORE_USE) & ~tiny)
    before = before[np.argsort(model.gap_to[before], kind="stable")]
    free = room - int(occupied(model, stays_of(model, settled(model, keep))).max(initial=0))
    total = int(size[before].sum())
    if total:
        streamed = _diffused(size[before], clock[model.gap_to[before]], 1 - min(1.0, max(0, free) / total))
        chosen = np.zeros(len(before), dtype=bool)
        chosen[streamed] = True
        keep[before[~chosen]] = True
    return repaired(model, keep, room)


def _is_long(problem: Offload) -> Bool:
    """[G] gaps in which a copy out and one in have time, outputs included."""
    model, clock = problem.model, problem.clock
    wait = clock[model.gap_to] - clock[np.minimum(model.gap_from + 1, model.steps)]
    item = model.gap_item
    long: Bool = (wait > model.copy_in[item] + model.copy_out[item]) | (model.gap_kind == TO_END)
    return long


def _typical(model: OffloadModel) -> int:
    """Bytes of a large tensor that is streamed: larger than nine tenths of the weights' bytes."""
    size = np.sort(model.size[model.persistent | ~model.given])
    if not len(size):
        return 0
    below = np.cumsum(size) / size.sum()
    return int(size[min(len(size) - 1, int(np.searchsorted(below, 0.9)))])


def _diffused(size: Int64, time: Int64, share: float) -> Int64:
    """Rows that make up a share of the bytes, so that what was chosen keeps step with the clock."""
    goal, total = share * float(size.sum()), 0.0
    if goal <= 0:
        return np.zeros(0, dtype=np.int64)
    # By time where there is any between the first and the last; the last has all of the share.
    span = float(time[-1] - time[0]) if len(time) > 1 else 0.0
    bytes_before = np.cumsum(size) / float(size.sum())
    progress = (time - time[0]) / span if span > 0 else bytes_before
    progress = 0.5 * progress + 0.5 * bytes_before
    chosen = []
    for row, amount in enumerate(size.tolist()):
        if total + amount / 2 <= goal * float(progress[row]):
            chosen.append(row)
            total += amount
    return np.array(chosen, dtype=np.int64)


PACES = (0.8, 1.0, 1.3)
"""Of the link's own."""
AMOUNTS = (0.3, 0.6, 1.0, 1.3)
"""Of the bytes that do not fit."""


class Stream(OneRule):
    name = "stream"
    summary = "the first results leave as fast as the link takes them (white box)"

    def make(self, problem: Offload) -> list[Decision]:
        made = {}
        for amount, pace in product(AMOUNTS, PACES):
            keep = stream_gaps(problem, pace, amount)
            made[keep.tobytes()] = problem.vector(keep)
        return list(made.values())


def stream_gaps(problem: Offload, pace: float, amount: float) -> Bool:
    """[G] kept gaps: all but those in which something made leaves and has time to come back."""
    model, clock, item = problem.model, problem.clock, problem.model.gap_item
    keep = np.ones(model.gaps, dtype=bool)
    ready = clock[np.minimum(model.gap_from + 1, model.steps)]
    wait = clock[model.gap_to] - ready
    long = (
        (model.gap_kind == BETWEEN) & ~model.given[item] & (wait > model.copy_in[item] + model.copy_out[item])
    )
    rows = np.flatnonzero(long)
    left = amount * (model.needed - model.capacity)
    patience, free = int(model.copy_out.max(initial=0)), 0
    gone = np.zeros(model.items, dtype=bool)
    for gap in rows[np.argsort(model.gap_from[rows], kind="stable")].tolist():
        which, start = int(item[gap]), max(free, int(ready[gap]))
        if left <= 0:
            break
        if gone[which] or start - int(ready[gap]) > patience:
            continue
        keep[gap], gone[which] = False, True
        free, left = start + int(model.copy_out[which] / pace), left - int(model.size[which])
    return keep
