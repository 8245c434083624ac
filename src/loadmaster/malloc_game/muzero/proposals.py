"""Which of many proposed moves are evaluated: those that are likely to make a plan faster than the one they change.

A move changes the priorities of some tensors. What it changes is summed over the tensors that move, each by how far: what
they are (features) and what the plan in hand says of them (kept, lost, blamed). A weight for each of these sums gives
the logarithm of the odds that the changed plan is faster: learned from every move that was evaluated on training
cells (logistic regression), so that it says how plans *differ*, and never what one is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmaster.arrays import Float32, Float64, Int64
from loadmaster.malloc_game.msa import Placements

KINDS = 4
"""Of moves."""
SEEN = 39
"""Of a tensor's features, without what is around it."""
VIEWED = 17
"""Of a tensor, in a plan."""
_LEAST = 1e-9
_MOST = 4.0
_STEPS, _RIDGE = 12, 30.0
"""Of Newton's method; against weights that few moves decide."""


def view_plan(features: Float32, priorities: Float64, placed: Placements) -> Float32:
    """[B, V] what a move may know of the tensors of a plan, given their normalised features."""
    kept, lost, blamed, total = placed.kept[0], placed.lost[0], placed.blamed[0], float(placed.total[0])
    at, is_kept, is_lost = priorities - 0.5, kept > 0, lost > 0
    seen = [
        np.ones(len(at)),
        at,
        2 * at**2,
        _rank(kept) * is_kept,
        _rank(lost) * is_lost,
        _rank(blamed),
        is_kept - 0.5,
        is_lost - 0.5,
        at * is_kept,
        at * is_lost,
        kept / np.maximum(kept + lost, 1.0) - 0.5,
        *(
            1 + np.clip(np.log(np.maximum(each / total, _LEAST)) / 6, -1.5, 1.5)
            for each in (kept, lost, blamed)
        ),
        *(np.minimum(100 * each / total, 3.0) for each in (kept, lost, blamed)),
    ]
    return np.concatenate([features[:, :SEEN], np.stack(seen, axis=1)], axis=1).astype(np.float32)


def moves_width(features: int) -> int:
    """D of moves where tensors have so many features."""
    return KINDS + 5 + 2 * (min(SEEN, features) + VIEWED)


def _rank(values: Float64) -> Float64:
    return np.argsort(np.argsort(values, kind="stable")) / max(1, len(values) - 1) - 0.5


class Start(NamedTuple):
    """The plan that a move changes."""

    view: Float32
    """[B, V]"""
    priorities: Float64
    behind: float
    """log(its time / the best)"""
    setting: int


def describe_moves(
    starts: Sequence[Start],
    start: Int64,
    priorities: Float64,
    settings: Int64,
    kinds: Int64,
    best_in: Float64,
) -> Float32:
    """[K, D] of moves to priorities [K, B] and settings [K].

    Args:
      starts: the plans that are changed; `start` [K] says which by each move.
      kinds: [K] of the moves.
      best_in: [settings] the best time in each so far; infinite: none.
    """
    count = priorities.shape[1]
    rows = np.empty((len(priorities), KINDS + 5 + 2 * starts[0].view.shape[1]), np.float32)
    rows[:, :KINDS] = kinds[:, None] == np.arange(KINDS)
    for number, each in enumerate(starts):
        mine = np.flatnonzero(start == number)
        if not len(mine):
            continue
        moved = (priorities[mine] - each.priorities).astype(np.float32)
        far = np.abs(moved)
        whole = far.sum(axis=1, keepdims=True) + np.float32(1e-6)
        rows[mine, KINDS] = np.log(whole[:, 0] / count + 1e-4) / 4
        rows[mine, KINDS + 1] = np.log1p((far > 2.5 / count).sum(axis=1)) / 4 - 0.5
        rows[mine, KINDS + 2] = min(3.0, 100 * each.behind)
        with np.errstate(invalid="ignore"):
            change = np.log(best_in[settings[mine]] / best_in[each.setting])
        rows[mine, KINDS + 3] = np.where(np.isfinite(change), np.clip(30 * change, -2, 2), 0.0)
        rows[mine, KINDS + 4] = settings[mine] != each.setting
        sums = [_product(part, each.view) for part in (moved, far)]
        rows[mine, KINDS + 5 :] = np.concatenate(sums, axis=1) / whole
    return rows


def _product(left: Float32, right: Float32) -> Float32:
    """As `left @ right`, by one thread: those of BLAS wait for one another on a busy computer, a hundred times as
    long as a product of this size takes."""
    product: Float32 = np.einsum("kb,bv->kv", left, right)
    return product


@dataclass(frozen=True)
class Screen:
    """The odds of moves."""

    mean: Float32
    deviation: Float32
    weights: Float64
    """[D]"""
    bias: float

    def log_odds(self, moves: Float32) -> Float64:
        """[K] of moves [K, D] that their plans are faster than those they start from."""
        odds: Float64 = np.einsum("kd,d->k", self._normalise(moves), self.weights) + self.bias
        return odds

    def _normalise(self, moves: Float32) -> Float32:
        clipped: Float32 = np.clip((moves - self.mean) / self.deviation, -_MOST, _MOST)
        return clipped


def fit_screen(moves: Float32, is_faster: Float64) -> Screen:
    """Logistic regression of moves [K, D] by Newton's method."""
    mean, deviation = moves.mean(axis=0), moves.std(axis=0) + np.float32(1e-3)
    screen = Screen(mean, deviation, np.zeros(moves.shape[1]), 0.0)
    inputs = np.concatenate([screen._normalise(moves), np.ones((len(moves), 1), np.float32)], axis=1)
    ridge = np.full(inputs.shape[1], _RIDGE)
    ridge[-1] = 1e-3
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        odds = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        slope = inputs.T @ (odds - is_faster).astype(np.float32) + ridge * weights
        curvature = inputs.T @ (inputs * (odds * (1 - odds)).astype(np.float32)[:, None]) + np.diag(ridge)
        weights = weights - np.linalg.solve(curvature, slope)
    return Screen(mean, deviation, weights[:-1], float(weights[-1]))
