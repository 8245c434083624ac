"""Constructive solvers of one rule each: placements, schedules and fusions that need no search."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator

import numpy as np

from loadmaster.problems.graph import GraphOptimization
from loadmaster.problems.graph.base import fixed_keys, m_topo
from loadmaster.problems.graph.expert import expert_placement
from loadmaster.solvers.heuristic.graph_made import Float64, Int32, Made, Vectors, first_come, like_base
from loadmaster.solvers.heuristic.graph_placing import Places, op_groups

Placements = Generator[Int32, int | None, None]
"""Devices [G] one by one; it is told the value of each before it makes the next, or None."""


class Placer(Made):
    """Decides devices alone; fusion and schedule stay as in the base."""

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        if "placement" not in problem.tasks:
            yield problem.vector()
            return
        placements = self.place(Places(problem, problem.base_clusters), seconds)
        value: int | None = None
        while True:
            try:
                device = placements.send(value)
            except StopIteration:
                return
            value = yield like_base(problem, device=device)

    @abstractmethod
    def place(self, places: Places, seconds: float | None = None) -> Placements:
        """Devices of the groups, for the steps of one fusion; `seconds` are left for it."""


class Single(Placer):
    name = "single"
    summary = "everything on the first device"

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        yield np.zeros(places.problem.groups, dtype=np.int32)


class Expert(Placer):
    name = "expert"
    summary = "whole layers on neighbours, as a person would; needs scopes that name layers"

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        problem = places.problem
        found = expert_placement(problem.program, op_groups(problem), problem.groups, problem.devices)
        if found is None:
            self.notes["reason"] = "the scopes don't tell layers apart: there is no expert placement"
            return
        yield found


class RoundRobin(Placer):
    name = "round-robin"
    summary = "groups in program order, one device after another"

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        problem = places.problem
        yield (np.arange(problem.groups) % problem.devices).astype(np.int32)


class MTopo(Placer):
    name = "m-topo"
    summary = "devices filled one after another in program order, each with its share of the bytes"

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        problem = places.problem
        yield m_topo(problem.program, op_groups(problem), problem.groups, problem.devices)


class CriticalPath(Made):
    """Keys are the longest paths to the end on the base's clusters and devices."""

    name = "critical-path"
    summary = "the longest path to the end goes first; fusion and placement as in the base"

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        device = np.ascontiguousarray(problem.split(problem.vector())[1])
        yield problem.vector(schedule=Places(problem, problem.base_clusters).keys(device))


class FirstCome(Made):
    name = "fifo"
    summary = "what is ready first goes first; fusion and placement as in the base"

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        base = problem.vector()
        if problem.base.schedule != "fifo" and "schedule" in problem.tasks:
            base = problem.vector(schedule=first_come(problem, base))
        yield base


class _Fusion(Made):
    """Decides fusion alone; placement and schedule stay as in the base."""

    @abstractmethod
    def keys(self, problem: GraphOptimization) -> Float64:
        """[n]"""

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        if "fusion" not in problem.tasks:
            yield problem.vector()
            return
        yield like_base(problem, fusion=self.keys(problem))


class NoFusion(_Fusion):
    name = "fusion-none"
    summary = "nothing is fused; placement and schedule as in the base"

    def keys(self, problem: GraphOptimization) -> Float64:
        return np.zeros(problem.nodes)


class FixedFusion(_Fusion):
    name = "fusion-fixed"
    summary = "fused from the end of the graph to its beginning; placement and schedule as in the base"

    def keys(self, problem: GraphOptimization) -> Float64:
        return fixed_keys(problem.nodes)


class CostModel(_Fusion):
    name = "cost-model"
    summary = "the fusion that saves most time first; placement and schedule as in the base"

    def keys(self, problem: GraphOptimization) -> Float64:
        return problem.cost_model_keys()
