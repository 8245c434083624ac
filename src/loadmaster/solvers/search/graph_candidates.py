"""Plans from which a search of GraphOptimization may begin: the constructive ones and others, each with
fusion fitted to its devices. A cluster runs on one device, so fusion that was made before the
placement takes ops to where nobody wanted them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph import GraphOptimization
from loadmaster.problems.graph.base import fixed_keys
from loadmaster.solvers.go.actions import leaves
from loadmaster.solvers.heuristic.graph_made import Vectors
from loadmaster.solvers.heuristic.graph_pipeline import Classical
from loadmaster.solvers.search.graph_start import batch_size, starts
from loadmaster.solvers.solver import Meter

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

WORST = np.iinfo(np.int64).max
"""The value of what can't run."""
FITTED = 16
"""Placements of which variants are made: the best ones."""
CLASSICAL, SHARE = 0.3, 0.4
"""Of the time, at most: for constructive plans, and for all plans before the search itself."""


@dataclass
class Candidates:
    """Vectors [B, V] and their values [B], `WORST` for what can't run."""

    vectors: Float64
    values: Int64

    def best_placements(self, problem: GraphOptimization, count: int) -> list[int]:
        """Rows: the best of each placement, the best of them first."""
        rows, seen, at = [], set(), problem.part("device")
        for row in np.argsort(self.values, kind="stable").tolist():
            key = self.vectors[row, at].tobytes()
            if key not in seen and self.values[row] < WORST:
                seen.add(key)
                rows.append(row)
            if len(rows) == count:
                break
        return rows

    def add(self, meter: Meter, vectors: Iterable[Float64], share: float = 1.0) -> None:
        """Evaluate those that are new, as far as the budget goes, or a share of its time."""
        known = {vector.tobytes() for vector in self.vectors}
        new = list({v.tobytes(): v for v in vectors if v.tobytes() not in known}.values())
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        size, limit = batch_size(problem, 64), meter.budget.seconds
        for first in range(0, len(new), size):
            late = limit is not None and len(self.values) and meter.seconds > share * limit
            if meter.exhausted or late:
                return
            batch = np.stack(new[first : first + size])
            found = meter.evaluate_many(batch).value
            self.vectors = np.concatenate([self.vectors, batch[: len(found)]])
            self.values = np.concatenate([self.values, np.where(found < 0, WORST, found)])

    def follow(self, meter: Meter, maker: Vectors, share: float) -> None:
        """Evaluate what a constructive solver makes, which is told each value, in a share of the
        time."""
        known = {v.tobytes(): value for v, value in zip(self.vectors, self.values.tolist(), strict=True)}
        new: list[Float64] = []
        value: int | None = None
        limit = meter.budget.seconds
        while not meter.exhausted and (limit is None or meter.seconds < share * limit):
            try:
                vector = maker.send(value)
            except StopIteration:
                break
            key = vector.tobytes()
            if key not in known:
                found = meter.evaluate(vector)
                known[key] = WORST if found is None else found
                new.append(vector)
            value = None if known[key] == WORST else known[key]
        values = [known[vector.tobytes()] for vector in new]
        self.vectors = np.concatenate([self.vectors, np.array(new).reshape(-1, self.vectors.shape[1])])
        self.values = np.concatenate([self.values, np.array(values, dtype=np.int64)])


def constructive(meter: Meter, problem: GraphOptimization) -> Candidates:
    """What the meter knows already, the base plan, every constructive plan, and the best placements
    with fusion that fits them."""
    found = Candidates(np.zeros((0, problem.width)), np.zeros(0, dtype=np.int64))
    if meter.best is not None and meter.best_value is not None:
        found = Candidates(meter.best[None].copy(), np.array([meter.best_value], dtype=np.int64))
    found.add(meter, starts(meter, "base"))
    found.follow(meter, Classical().make(problem), CLASSICAL)
    rows = found.best_placements(problem, FITTED)
    found.add(meter, variants(problem, found.vectors[rows]), SHARE)
    return found


def variants(problem: GraphOptimization, vectors: Float64) -> list[Float64]:
    """With the placement of each vector: the order left to the rule for ties, and fusion as it is,
    within devices alone, and within groups alone."""
    fitting, zeros, made = Fitting(problem), np.zeros(problem.nodes), []
    for vector in vectors:
        fusion, device, _ = problem.split(vector)
        made.append(problem.vector(fusion, device, zeros))
        if "fusion" in problem.tasks:
            made += [
                problem.vector(fitting.keys(device), device, zeros),
                problem.vector(fitting.apart, device, zeros),
            ]
    return made


class Fitting:
    """Fusion keys that follow devices."""

    def __init__(self, problem: GraphOptimization) -> None:
        self._problem, self.plain = problem, fixed_keys(problem.nodes)
        self.apart = self.keys(np.arange(problem.groups))
        """[n] keys with which every group stays by itself."""

    def keys(self, device: npt.NDArray[np.generic]) -> Float64:
        """[n] as the fixed pass, but nothing is fused from one device into another; devices [G]."""
        return np.where(leaves(self._problem, device), 0.0, self.plain)


def renamed(device: npt.NDArray[np.generic], like: npt.NDArray[np.generic]) -> Int64:
    """Devices [G] renamed so that they agree most with weights [G, D], largest agreement first."""
    now, count = device.astype(np.int64), like.shape[1]
    agrees = np.zeros((count, count))
    np.add.at(agrees, now, like)
    names = np.zeros(count, dtype=np.int64)
    for _ in range(count):
        old, new = np.unravel_index(int(agrees.argmax()), agrees.shape)
        names[old] = new
        agrees[old, :] = agrees[:, new] = -1.0
    return names[now]


def children(
    problem: GraphOptimization, rng: np.random.Generator, parents: Float64, count: int, alike: bool
) -> Float64:
    """[count, V] each of two parents: by a run of groups, by groups at random, or by tasks."""
    made, at = [], problem.part("device")
    for _ in range(count):
        a, b = rng.choice(len(parents), size=2, replace=False).tolist()
        child, other = parents[a].copy(), parents[b].copy()
        if alike and at.stop > at.start:
            other[at] = renamed(other[at], np.eye(problem.devices)[child[at].astype(np.int64)])
        kind = rng.random()
        if kind < 0.25:  # one task of the other
            part = problem.part(("fusion", "device", "schedule")[int(rng.integers(3))])
            child[part] = other[part]
        else:
            _mix(problem, child, other, _chosen(problem, rng, kind < 0.6))
        made.append(child)
    return np.array(made).reshape(len(made), problem.width)


def _chosen(problem: GraphOptimization, rng: np.random.Generator, run: bool) -> npt.NDArray[np.bool_]:
    """[G] the groups that the other parent decides."""
    if not run:
        return rng.random(problem.groups) < rng.uniform(0.1, 0.5)
    first, last = np.sort(rng.integers(0, problem.groups + 1, size=2))
    chosen = np.zeros(problem.groups, dtype=np.bool_)
    chosen[first:last] = True
    return chosen


def _mix(problem: GraphOptimization, child: Float64, other: Float64, groups: npt.NDArray[np.bool_]) -> None:
    nodes = groups[problem.node_group]
    for name, chosen in (("fusion", nodes), ("device", groups), ("schedule", nodes)):
        at = problem.part(name)
        if at.stop > at.start:
            child[at] = np.where(chosen, other[at], child[at])
