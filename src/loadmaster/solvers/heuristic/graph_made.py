"""What constructive solvers of GraphOptimization share: vectors that stay as the base where they have
nothing to say, and a run that submits them one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadPlan
from loadmaster.problems.graph import GraphOptimization
from loadmaster.solvers.heuristic.graph_placing import Places
from loadmaster.solvers.solver import Meter, Solution, State

Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]
Vectors = Generator[Float64, int | None, None]
"""Vectors one by one; it is told the value of each before it makes the next, or None."""


def clusters_of(problem: GraphOptimization, fusion: Float64 | None = None) -> Int32:
    """[n_ops] the clusters of fusion keys [n]; of the base where there are none or nobody asks."""
    if fusion is None or "fusion" not in problem.tasks:
        return problem.base_clusters
    return problem.fuse(fusion)


def like_base(
    problem: GraphOptimization, fusion: Float64 | None = None, device: Int32 | None = None
) -> Float64:
    """The vector with these clusters and devices whose queues follow the base's rule."""
    if fusion is None and device is None:
        return problem.vector()
    plain = problem.vector(fusion, device, np.zeros(problem.nodes))
    if "schedule" not in problem.tasks or problem.tie == problem.base.schedule:
        return plain
    if problem.base.schedule == "critical_path":
        places = Places(problem, clusters_of(problem, fusion))
        return problem.vector(fusion, device, places.keys(problem.split(plain)[1]))
    return problem.vector(fusion, device, first_come(problem, plain))


def first_come(problem: GraphOptimization, vector: Float64) -> Float64:
    """[n] keys with which the clusters and devices of a vector run first come, first served."""
    if problem.tie == "fifo":
        return np.zeros(problem.nodes)
    try:
        plan = replace(problem.plan(vector), order=None, queue="fifo")
        start = problem.simulator.run(plan).op_start[problem.node_op]
    except BadPlan:  # it can't run in any order, as the evaluation will say
        return np.zeros(problem.nodes)
    first, rank = np.unique(start, return_inverse=True)
    return 1.0 - rank / max(1, len(first))


class Made(ABC):
    """Makes vectors and submits them."""

    name: str
    problem_kind = "graph"
    deterministic = True

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        """Told with the solution."""

    @abstractmethod
    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        """`seconds`: what is left of the budget."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        if not meter.exhausted:
            submit(meter, self.make(problem, meter.seconds_left))
        return meter.solution(white_box=True, **self.notes)


def submit(meter: Meter, vectors: Vectors) -> None:
    """Evaluate one after another until the budget is spent."""
    value: int | None = None
    while not meter.exhausted:
        try:
            vector = vectors.send(value)
        except StopIteration:
            return
        value = meter.evaluate(vector)
