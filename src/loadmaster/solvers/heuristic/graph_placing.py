"""What constructive placers know of a graph: the steps of a fusion, and what groups will hold."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.problems.graph import GraphOptimization
from loadmaster.problems.graph.groups import root_homes
from loadmaster.program.hazards import places
from loadmaster.program.program import PERSISTENT, TensorKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

NONE = np.zeros(0, dtype=np.int32)


def op_groups(problem: GraphOptimization) -> Int32:
    """[n_ops] the group of each op; -1 for views."""
    group = np.full(problem.program.n_ops, -1, dtype=np.int32)
    group[problem.node_op] = problem.node_group
    return group


def expected_bytes(problem: GraphOptimization) -> Int64:
    """[G] what a group is expected to hold: its weights and moments, and of its results those that
    are alive when most bytes are, in program order. So all groups together need that peak."""
    program, n_ops = problem.program, problem.program.n_ops
    home, place = root_homes(program), places(program)[program.tensor_alias]
    size = np.zeros(program.n_tensors, dtype=np.int64)
    np.maximum.at(size, place, program.storage_bytes)
    begin, end = np.full(program.n_tensors, n_ops), np.full(program.n_tensors, -1)
    np.minimum.at(begin, place[program.write_tensor], program.write_op)
    np.maximum.at(end, place[program.write_tensor], program.write_op)
    np.maximum.at(end, place[program.read_tensor], program.read_op)
    end[place[program.tensor_kind == TensorKind.OUTPUT]] = n_ops
    kept = place[np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])]
    begin[kept], end[kept] = 0, n_ops
    used = np.flatnonzero((place == np.arange(program.n_tensors)) & (home >= 0) & (begin <= end))
    held = np.zeros(n_ops + 2, dtype=np.int64)
    np.add.at(held, begin[used], size[used])
    np.add.at(held, end[used] + 1, -size[used])
    peak = int(held.cumsum().argmax())
    alive = used[(begin[used] <= peak) & (peak <= end[used])]
    group = op_groups(problem)[home[alive]]
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
            "group": op_groups(problem),
            "component": problem.hard,
            "bytes": self.bytes,
        }
        return _core.Placers(problem.simulator.native, columns)

    @cached_property
    def table(self) -> tuple[Int32, Int32, Int64, Int64]:
        """(step of each op, group of each step, [steps, D] ps, edges [3, E]: producer, reader, ps of
        a transfer between them)"""
        return self.native.table()

    def keys(self, device: Int32, moves: bool = False) -> npt.NDArray[np.float64]:
        """[n] schedule keys: the longest path to the end, transfers included if `moves`; 1 at most."""
        step = self.table[0][self.problem.node_op]
        level = self.native.levels(np.ascontiguousarray(device, dtype=np.int32), moves)
        keys: npt.NDArray[np.float64] = level[step] / max(1, int(level.max(initial=1)))
        return keys
