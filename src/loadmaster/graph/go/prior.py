"""What is believed of a graph before it is searched: how likely each decision is to be right.

GO's policy gives one; `seeds_prior` makes one of known plans, to tell what learning adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.features import LEVELS
from loadmaster.graph.go.actions import WITHIN, Actions, leaves, vectors_of

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Rng = np.random.Generator

SMOOTHING = 0.05
"""Of a prior made of plans: so much is left to what no plan does."""
SHARPNESS = 8.0
"""How much more a plan counts that takes a part of the time of another: their ratio to this power."""


@dataclass(frozen=True)
class Prior:
    """Probabilities, one row per decision: `device` [G, D], `fusion` and `schedule` [n, 16] of levels.
    What is not decided has no rows."""

    device: Float32
    fusion: Float32
    schedule: Float32

    @cached_property
    def uncertainty(self) -> Float64:
        """[G] the entropy of each group's device: what to try."""
        if not len(self.device):
            return np.zeros(0)
        sure = np.maximum(self.device.astype(np.float64), 1e-12)
        entropy: Float64 = np.einsum("gd,gd->g", sure, -np.log(sure))
        return entropy

    def best(self, problem: GraphOptimization) -> Float64:
        """[V] the likeliest of each."""
        chosen = [part.argmax(axis=1)[None] for part in self._parts]
        vector: Float64 = self._vectors(problem, *chosen)[0]
        return vector

    def draw(self, problem: GraphOptimization, rng: Rng, count: int, sharpness: float = 1.0) -> Float64:
        """[count, V] drawn one by one; a larger `sharpness` keeps nearer to the likeliest."""
        drawn = []
        for part in self._parts:
            chosen = np.zeros((count, len(part)), dtype=np.int64)
            if part.size:
                edges = _cumulated(part, sharpness)
                for row in range(count):  # a row at a time: [count, n, 16] need not fit in memory
                    chosen[row] = _below(edges, rng.random(len(part), dtype=np.float32))
            drawn.append(chosen)
        return self._vectors(problem, *drawn)

    def draw_part(self, name: str, entries: Int64, rng: Rng) -> Float64:
        """Values for some entries of 'device', 'fusion' or 'schedule'."""
        part: Float32 = getattr(self, name)
        chosen = _below(part[entries].cumsum(axis=1), rng.random(len(entries), dtype=np.float32))
        return _values(name, chosen, entries, len(part))

    def mixed(self, other: Prior) -> Prior:
        """Half of each."""
        half = np.float32(0.5)
        return Prior(
            half * self.device + half * other.device,
            half * self.fusion + half * other.fusion,
            half * self.schedule + half * other.schedule,
        )

    @property
    def _parts(self) -> tuple[Float32, Float32, Float32]:
        return self.fusion, self.device, self.schedule

    def _vectors(self, problem: GraphOptimization, fusion: Int64, device: Int64, schedule: Int64) -> Float64:
        return vectors_of(problem, Actions(fusion, device, schedule))


def _values(name: str, chosen: Int64, entries: Int64, count: int) -> Float64:
    """Levels as keys. Equal fusion levels fuse from the end of the graph, as the fixed pass does;
    equal schedule levels leave the order to the rule for ties."""
    level = chosen.astype(np.float64)
    if name == "fusion":
        return np.where(level < 1, 0.0, (level + entries / max(1, count)) / LEVELS)
    return level / (LEVELS - 1) if name == "schedule" else level


def levels_of(problem: GraphOptimization, vectors: Float64) -> tuple[Int64, Int64, Int64]:
    """([B, n], [B, G], [B, n]) levels of fusion, devices and levels of schedule nearest to vectors;
    parts that are not decided are empty."""
    fusion, schedule = vectors[:, problem.part("fusion")], vectors[:, problem.part("schedule")]
    level = np.where(fusion < 1 / LEVELS, 0, np.clip(np.floor(fusion * LEVELS), 1, LEVELS - 1))
    if fusion.size:  # what is fused into another device must be at a level that allows it
        far = leaves(problem, problem.split(vectors)[1])
        level = np.where(far, np.minimum(level, WITHIN - 1), level)
    rank = np.rint(np.clip(schedule, 0, 1) * (LEVELS - 1))
    return (
        level.astype(np.int64),
        vectors[:, problem.part("device")].astype(np.int64),
        rank.astype(np.int64),
    )


def seeds_prior(problem: GraphOptimization, vectors: Float64, values: Int64) -> Prior:
    """How often known plans [B, V] decide so, better ones weighted more: nothing is learned."""
    fits = (values >= 0) & (values < UNFIT)
    best = max(1, int(values[fits].min())) if fits.any() else 1
    weight = np.where(fits, (best / np.maximum(best, values)) ** SHARPNESS, 0.0)
    weight = weight if weight.sum() > 0 else np.ones(len(vectors))
    weight /= weight.sum()
    fusion, device, schedule = levels_of(problem, vectors)
    parts = ((device, problem.devices), (fusion, LEVELS), (schedule, LEVELS))
    return Prior(*(_mixture(chosen, weight, wide) for chosen, wide in parts))


def _mixture(chosen: Int64, weight: Float64, wide: int) -> Float32:
    shares = np.full((chosen.shape[1], wide), SMOOTHING / wide, dtype=np.float32)
    entries = np.arange(chosen.shape[1])
    for row, share in zip(chosen, weight, strict=True):
        shares[entries, row] += np.float32((1 - SMOOTHING) * share)
    return shares


def _cumulated(part: Float32, sharpness: float) -> Float32:
    weights = part if sharpness == 1.0 else part ** np.float32(sharpness)
    edges: Float32 = weights.cumsum(axis=1, dtype=np.float32)
    return edges


def _below(edges: Float32, share: Float32) -> Int64:
    """[n] the first column whose cumulated weight is above a share of the whole: never one without
    weight, nor, by rounding, one behind the last that has any."""
    passed: Int64 = (edges <= (share * edges[:, -1])[:, None]).sum(axis=1)
    last: Int64 = (edges < edges[:, -1:]).sum(axis=1)
    return np.asarray(np.minimum(passed, last), dtype=np.int64)
