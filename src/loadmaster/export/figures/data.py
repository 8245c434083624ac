"""The numbers behind the pictures of Mapping runs, from plain data; nothing is drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.problems.features import edges
from loadmaster.problems.mapping import Mapping

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Maps = npt.NDArray[np.int8]
Improvements = Sequence[tuple[int, int]]
"""(evaluations, value in picoseconds) of each improvement of a run, in order."""


@dataclass(frozen=True)
class Curves:
    """The best speed-up so far of several runs of one solver, on one grid of evaluations."""

    at: Int64
    """[G] numbers of evaluations at which something changes, from 0 to the end."""
    runs: Float64
    """[runs, G]; 0 before a run's first legal map, held after its last improvement."""

    @property
    def mean(self) -> Float64:
        mean: Float64 = self.runs.mean(axis=0)
        return mean

    @property
    def spread(self) -> Float64:
        """The sample standard deviation; 0 for one run."""
        if len(self.runs) < 2:
            return np.zeros(len(self.at))
        spread: Float64 = self.runs.std(axis=0, ddof=1)
        return spread


def learning_curves(runs: Sequence[Improvements], compiler_ps: int, end: int) -> Curves:
    """Curves of the runs of one solver up to `end` evaluations."""
    changes = {count for run in runs for count, _ in run if count <= end}
    at = np.array(sorted({0, end} | changes), dtype=np.int64)
    rows = np.zeros((len(runs), len(at)))
    for row, run in zip(rows, runs, strict=True):
        for count, value in run:
            row[at >= count] = compiler_ps / max(value, 1)
    return Curves(at, rows)


@dataclass(frozen=True)
class Transitions:
    """Where tensors went between two maps: rows the memory before, columns the one after."""

    bytes: Int64
    """[M, M]"""
    count: Int64
    """[M, M]"""


def transitions(problem: Mapping, before: Maps, after: Maps) -> dict[str, Transitions]:
    """For 'weights' and 'activations' apart; entries that decide nothing are left out."""
    nodes, memories = problem.nodes, len(problem.memories)
    is_weight = np.arange(2 * nodes) >= nodes
    found = {}
    for name, chosen in (("weights", is_weight), ("activations", ~is_weight)):
        entry = np.flatnonzero(chosen & problem.live)
        cell = before[entry].astype(np.int64) * memories + after[entry]
        size, count = np.zeros((2, memories * memories), dtype=np.int64)
        np.add.at(size, cell, problem.entries.bytes[entry])
        np.add.at(count, cell, 1)
        shape = (memories, memories)
        found[name] = Transitions(size.reshape(shape), count.reshape(shape))
    return found


def distances(problem: Mapping, maps: Maps) -> Float64:
    """[B, B] the share of the decided bytes that two maps place differently."""
    share = np.where(problem.live, problem.entries.bytes, 0).astype(np.float64)
    share /= max(1.0, float(share.sum()))
    same = np.zeros((len(maps), len(maps)))
    for memory in range(len(problem.memories)):
        here = (maps == memory).astype(np.float64)
        same += (here * share) @ here.T
    apart: Float64 = np.clip(1.0 - same, 0.0, 1.0)
    np.fill_diagonal(apart, 0.0)
    return apart


def scaled_to_plane(apart: Float64) -> tuple[Float64, float]:
    """[B, 2] points by classical multidimensional scaling, and the share of the (positive)
    variance that two dimensions show."""
    count = len(apart)
    centre = np.eye(count) - 1.0 / max(1, count)
    values, vectors = np.linalg.eigh(-0.5 * centre @ (apart**2) @ centre)
    order = np.argsort(values)[::-1][:2]
    points = np.zeros((count, 2))
    for axis, which in enumerate(order):
        vector = vectors[:, which]
        # An eigenvector's sign is arbitrary: its largest part points up, so pictures repeat.
        vector = vector * np.sign(vector[np.argmax(np.abs(vector))])
        points[:, axis] = vector * np.sqrt(max(0.0, float(values[which])))
    positive = float(np.clip(values, 0, None).sum())
    shown = float(np.clip(values[order], 0, None).sum())
    return points, shown / positive if positive > 0 else 1.0


@dataclass(frozen=True)
class Contiguity:
    """How far a map keeps neighbours together; None where there are no neighbours."""

    activations: float | None
    """The share of edges whose two activations are in one memory."""
    weights: float | None
    """The share of weights that are in the memory of the weights before them."""


def contiguity(problem: Mapping, decision: Maps) -> Contiguity:
    """Of one map."""
    nodes, live = problem.nodes, problem.live
    source, target = edges(problem)
    decided = live[source] & live[target]
    together = decision[source[decided]] == decision[target[decided]]
    weights = decision[nodes:][live[nodes:]]
    follows = weights[1:] == weights[:-1]
    return Contiguity(
        float(together.mean()) if len(together) else None, float(follows.mean()) if len(follows) else None
    )
