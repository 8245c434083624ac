"""Constructive solvers of one rule each: placements, schedules and fusions that need no search, and what
all constructive solvers share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.arrays import Float64, Int32, Int64
from loadmaster.errors import BadPlan
from loadmaster.graph import GraphOptimization
from loadmaster.graph.base import expert_placement, fixed_keys, m_topo
from loadmaster.graph.groups import root_homes
from loadmaster.program.hazards import place_bytes, places
from loadmaster.program.program import TensorKind
from loadmaster.search.solver import Meter, Solution, Solver, State

NONE = np.zeros(0, dtype=np.int32)


def expected_bytes(problem: GraphOptimization) -> Int64:
    """[G] what a group is expected to hold: its weights and moments, and of its results those that
    are alive when most bytes are, in program order. So all groups together need that peak."""
    program, n_ops = problem.program, problem.program.n_ops
    home, place = root_homes(program), places(program)[program.tensor_alias]
    size = place_bytes(program)
    begin, end = np.full(program.n_tensors, n_ops), np.full(program.n_tensors, -1)
    np.minimum.at(begin, place[program.write_tensor], program.write_op)
    np.maximum.at(end, place[program.write_tensor], program.write_op)
    np.maximum.at(end, place[program.read_tensor], program.read_op)
    end[place[program.tensor_kind == TensorKind.OUTPUT]] = n_ops
    kept = place[program.is_persistent]
    begin[kept], end[kept] = 0, n_ops
    used = np.flatnonzero((place == np.arange(program.n_tensors)) & (home >= 0) & (begin <= end))
    held = np.zeros(n_ops + 2, dtype=np.int64)
    np.add.at(held, begin[used], size[used])
    np.add.at(held, end[used] + 1, -size[used])
    peak = int(held.cumsum().argmax())
    alive = used[(begin[used] <= peak) & (peak <= end[used])]
    group = problem.op_group[home[alive]]
    total = np.bincount(group[group >= 0], size[alive][group >= 0], minlength=problem.groups)
    return total.astype(np.int64)


class Places:
    """The steps of one fusion, ready for placers."""

    def __init__(self, problem: GraphOptimization, clusters: Int32) -> None:
        self.problem, self.clusters = problem, clusters
        self.capacity = np.array([m.capacity for m in problem.machine.memories], dtype=np.int64)
        """[memories]"""

    @cached_property
    def bytes(self) -> Int64:
        """[G]"""
        return expected_bytes(self.problem)

    @cached_property
    def native(self) -> _core.Placers:
        problem = self.problem
        columns: dict[str, npt.NDArray[Any]] = {
            "fusion": self.clusters,
            "group": problem.op_group,
            "component": problem.hard,
            "bytes": self.bytes,
        }
        return _core.Placers(problem.simulator.native, columns)

    @cached_property
    def table(self) -> tuple[Int32, Int32, Int64, Int64]:
        """(step of each op, group of each step, [steps, D] ps, edges [3, E]: producer, reader, ps of
        a transfer between them)"""
        return self.native.table()

    def keys(self, device: Int32, moves: bool = False) -> Float64:
        """[n] schedule keys: the longest path to the end, transfers included if `moves`; 1 at most."""
        step = self.table[0][self.problem.node_op]
        level = self.native.levels(np.ascontiguousarray(device, dtype=np.int32), moves)
        keys: Float64 = level[step] / max(1, int(level.max(initial=1)))
        return keys


Vectors = Generator[Float64, int | None, None]
"""Vectors one by one; it receives the value of each, or None, before it makes the next."""


def find_clusters(problem: GraphOptimization, fusion: Float64 | None = None) -> Int32:
    """[n_ops] the clusters of fusion keys [n]; of the base where there are none or nobody asks."""
    if fusion is None or "fusion" not in problem.tasks:
        return problem.base_clusters
    return problem.fuse(fusion)


def follow_base(
    problem: GraphOptimization, fusion: Float64 | None = None, device: Int32 | None = None
) -> Float64:
    """The vector with these clusters and devices whose queues follow the base's rule."""
    if fusion is None and device is None:
        return problem.vector()
    plain = problem.vector(fusion, device, np.zeros(problem.nodes))
    if "schedule" not in problem.tasks or problem.tie == problem.base.schedule:
        return plain
    if problem.base.schedule == "critical_path":
        places = Places(problem, find_clusters(problem, fusion))
        return problem.vector(fusion, device, places.keys(problem.split(plain)[1]))
    return problem.vector(fusion, device, first_come_keys(problem, plain))


def first_come_keys(problem: GraphOptimization, vector: Float64) -> Float64:
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


class Constructive(Solver):
    """Makes vectors and submits them."""

    name: str
    problem_kind = "graph"
    deterministic = True

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        """Metrics of the solution."""

    @abstractmethod
    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        """`seconds`: what is left of the budget."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        if not meter.exhausted:
            submit(meter, self.make(problem, meter.seconds_left))
        return meter.solution(**self.notes)


def submit(meter: Meter, vectors: Vectors) -> None:
    """Evaluate one after another until the budget is spent."""
    value: int | None = None
    while not meter.exhausted:
        try:
            vector = vectors.send(value)
        except StopIteration:
            return
        value = meter.evaluate(vector)


Placements = Generator[Int32, int | None, None]
"""Devices [G] one by one; it receives the value of each, or None, before it makes the next."""


class Placer(Constructive):
    """Decides devices alone; fusion and schedule are the base's."""

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
            value = yield follow_base(problem, device=device)

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
        found = expert_placement(problem.program, problem.op_group, problem.groups, problem.devices)
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
        yield m_topo(problem.program, problem.op_group, problem.groups, problem.devices)


class CriticalPath(Constructive):
    """Keys are the longest paths to the end on the base's clusters and devices."""

    name = "critical-path"
    summary = "the longest path to the end goes first; fusion and placement as in the base"

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        device = np.ascontiguousarray(problem.split(problem.vector())[1])
        yield problem.vector(schedule=Places(problem, problem.base_clusters).keys(device))


class FirstCome(Constructive):
    name = "fifo"
    summary = "what is ready first goes first; fusion and placement as in the base"

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        base = problem.vector()
        if problem.base.schedule != "fifo" and "schedule" in problem.tasks:
            base = problem.vector(schedule=first_come_keys(problem, base))
        yield base


class _Fusion(Constructive):
    """Decides fusion alone; placement and schedule are the base's."""

    @abstractmethod
    def keys(self, problem: GraphOptimization) -> Float64:
        """[n]"""

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        if "fusion" not in problem.tasks:
            yield problem.vector()
            return
        yield follow_base(problem, fusion=self.keys(problem))


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
