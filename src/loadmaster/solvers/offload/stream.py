"""`Stream`: what must leave is copied out from the start on, as fast as the link takes it.

In a training step the first results are used again last. So they leave as soon as they are made, no
sooner than the link is free for them, until what is left fits.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from loadmaster.problems.offload.model import BETWEEN, Bool
from loadmaster.problems.offload.problem import Offload
from loadmaster.problems.problem import Decision
from loadmaster.solvers.offload.simple import OneRule

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
