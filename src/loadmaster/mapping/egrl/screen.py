"""The linear critic: from all that was scored it learns what each kind of tensor costs in each
memory, and picks the most promising of many draws before one of them is evaluated. Ours.

Tensors of layers with equal features share their parameters, so that a few hundred scores teach it
all layers. It sees what every agent sees: features, maps and scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.mapping.features import COLUMNS
from loadmaster.search.solver import State

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Maps = npt.NDArray[np.int8]

LEAST_SCORES = 40
"""Maps that must have fitted before it has a say."""
BOLD = 0.2
"""Share of picks for which it does not matter whether more fits than ever before."""
PRIOR = 1e-6
MOST_KINDS = 1000
"""Programs with more kinds of layers than this are told apart by their ops alone."""
_POSITION = [COLUMNS.index(name) for name in ("n_ops_left", "n_w_left", "placed_activation", "placed_weight")]
_LEARNED = ("normal", "moment", "most", "scores", "scale", "cost")


class LinearCritic:
    """time = sum over tensors of cost[kind of tensor, memory], by ridge regression."""

    def __init__(self, features: Float32, live: npt.NDArray[np.bool_], memories: int) -> None:
        nodes = len(features)
        kind = np.delete(features, _POSITION, axis=1).round(6)
        kinds = np.unique(kind, axis=0, return_inverse=True)[1].reshape(-1)
        if kinds.max(initial=0) >= MOST_KINDS:
            kinds = features[:, COLUMNS.index("op_id")].astype(np.int64)
        heads = np.concatenate([kinds, kinds + kinds.max(initial=0) + 1])
        classes = np.unique(heads[live], return_inverse=True)[1]
        self.live = np.flatnonzero(live)
        self.memories = memories
        self.column = (classes * memories).astype(np.int64)
        """[live entries] the first parameter of each"""
        self.size = int(self.column.max(initial=0)) + memories
        self.bytes = self._bytes(features)[np.flatnonzero(live)]
        self.is_weight = self.live >= nodes
        self.normal = np.zeros((self.size, self.size))
        self.moment = np.zeros(self.size)
        self.most = np.zeros((2, memories))
        """The largest load of activations and of weights that ever fitted, by memory."""
        self.scores, self.scale = 0, 1.0
        self.cost = np.zeros(self.size)

    @staticmethod
    def _bytes(features: Float32) -> Float64:
        """[2N] of activations and of weights, as the features tell them."""
        columns = [COLUMNS.index("ofm_size"), COLUMNS.index("weight_size")]
        return np.concatenate([np.exp2(32.0 * features[:, c].astype(np.float64)) - 1 for c in columns])

    def learn(self, maps: Maps, values: npt.NDArray[np.int64]) -> None:
        """Take in scores; maps that did not fit (value -1) teach nothing here."""
        fits = values >= 0
        if not fits.any():
            return
        x, y = self._counts(maps[fits]), np.maximum(values[fits], 1).astype(np.float64)
        if not self.scores:
            self.scale = float(y.min())
        weight = (self.scale / y) ** 4  # what is slow tells little about what is fast
        self.normal += (x * weight[:, None]).T @ x
        self.moment += (x * weight[:, None]).T @ (y / self.scale)
        self.most = np.maximum(self.most, self._loads(maps[fits]).max(axis=0))
        self.scores += int(fits.sum())
        ridge = PRIOR * np.trace(self.normal) / self.size * np.eye(self.size)
        self.cost = np.linalg.solve(self.normal + ridge, self.moment)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that learning changes: sums in another order would be other sums."""
        return {f"critic.{name}": np.asarray(getattr(self, name)) for name in _LEARNED}

    def restore(self, state: State) -> None:
        """Go on from `arrays`."""
        for name in _LEARNED:
            stored = np.array(state[f"critic.{name}"])
            setattr(self, name, stored if stored.ndim else stored.item())

    def pick(self, rng: np.random.Generator, maps: Maps) -> Maps:
        """[groups, draws, 2N] -> [groups, 2N]: of each group the draw with the least predicted time
        among those that hold no more than what has fitted before."""
        groups, draws, entries = maps.shape
        if self.scores < LEAST_SCORES:
            return maps[:, 0]
        flat = maps.reshape(groups * draws, entries)
        time = self.cost[self.column + flat[:, self.live]].sum(axis=1)
        fast = self._loads(flat)[:, :, :-1]  # the slowest memory holds everything
        over = np.maximum(fast - self.most[:, :-1], 0).sum(axis=(1, 2)).reshape(groups, draws)
        over[rng.random(groups) < BOLD] = 0
        least = np.lexsort((time.reshape(groups, draws), over), axis=1)[:, 0]
        return maps[np.arange(groups), least]

    def exchange(self, rng: np.random.Generator, maps: Maps) -> Maps:
        """[B, 2N] -> the same with one tensor brought to a faster memory, and others of its kind that
        were there, chosen at random, sent where it came from, until they make room for it."""
        rows, held = np.arange(len(maps)), maps[:, self.live]
        slow = held > 0
        key = rng.random(held.shape, dtype=np.float32)
        comer = np.where(slow, key, -1).argmax(axis=1)
        source = held[rows, comer]
        target = (rng.random(len(maps)) * source).astype(np.int8)
        there = (held == target[:, None]) & (self.is_weight == self.is_weight[comer][:, None])
        order = np.argsort(np.where(there, key, 2), axis=1)
        size = np.where(np.take_along_axis(there, order, axis=1), self.bytes[order], 0)
        before = np.cumsum(size, axis=1) - size
        leaves = (before < self.bytes[comer][:, None]) & (size > 0) & (source > target)[:, None]
        moved = held.copy()
        row, position = np.nonzero(leaves)
        moved[row, order[row, position]] = source[row]
        moved[rows, comer] = target
        result = maps.copy()
        result[:, self.live] = moved
        return result

    def _counts(self, maps: Maps) -> Float64:
        """[B, size] how many tensors of each kind are in each memory"""
        rows = np.repeat(np.arange(len(maps)), len(self.live))
        flat = rows * self.size + (self.column + maps[:, self.live]).ravel()
        return (
            np.bincount(flat, minlength=len(maps) * self.size)
            .reshape(len(maps), self.size)
            .astype(np.float64)
        )

    def _loads(self, maps: Maps) -> Float64:
        """[B, 2, M] bytes of activations and of weights in each memory"""
        held = maps[:, self.live]
        parts = [
            [((held == m) * (self.bytes * head)).sum(axis=1) for m in range(self.memories)]
            for head in (~self.is_weight, self.is_weight)
        ]
        return np.moveaxis(np.array(parts), 2, 0)
