"""METIS: groups cut into as many parts as there are devices, with few bytes between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.errors import require
from loadmaster.problems.graph import GraphOptimization
from loadmaster.problems.graph.groups import root_homes
from loadmaster.solvers.heuristic.graph_placing import Int32, Int64, Places, op_groups
from loadmaster.solvers.heuristic.graph_simple import Placements, Placer

_LARGEST = 1 << 20
"""Weights are scaled below it: METIS adds them up in 32 bits."""


class Metis(Placer):
    """Once with equal time and once with equal memory per part; the better plan is kept."""

    name = "metis"
    summary = "graph partitioning by METIS: few bytes between devices, equal time or memory on each"

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        metis, problem = require("pymetis", "bench"), places.problem
        if problem.groups <= problem.devices or problem.devices == 1:
            yield (np.arange(problem.groups) % problem.devices).astype(np.int32)
            return
        start, other, bytes_ = group_edges(problem)
        cost = np.maximum(problem.durations, 0).min(axis=1) * problem.program.op_repeat[problem.node_op]
        work = np.bincount(problem.node_group, cost, minlength=problem.groups)
        for weight in (work, places.bytes):
            yield _parts(metis, problem.devices, start, other, bytes_, weight)


def _parts(metis: Any, devices: int, start: Int64, other: Int64, bytes_: Int64, weight: Any) -> Int32:
    _, part = metis.part_graph(
        devices,
        metis.CSRAdjacency(start.tolist(), other.tolist()),
        eweights=_scaled(bytes_),
        vweights=_scaled(weight),
        recursive=False,
        options=metis.Options(seed=0),
    )
    return np.array(part, dtype=np.int32)


def _scaled(weight: Any) -> list[int]:
    top = max(1.0, float(np.max(weight, initial=0)))
    scaled: list[int] = np.ceil(np.asarray(weight) / top * _LARGEST / 16).astype(np.int64).tolist()
    return [max(1, value) for value in scaled]


def group_edges(problem: GraphOptimization) -> tuple[Int64, Int64, Int64]:
    """(row starts [G + 1], neighbour [E], bytes [E]) of the graph of groups, both ways. A tensor
    counts once for every group that reads it; weights count between their home and their readers."""
    program, group = problem.program, op_groups(problem).astype(np.int64)
    home, root = root_homes(program), program.tensor_alias[program.read_tensor]
    real = (home[root] >= 0) & ~program.op_view[program.read_op]
    roots, readers = root[real].astype(np.int64), group[program.read_op[real]]
    key = np.unique(roots * problem.groups + readers)
    roots, readers = np.divmod(key, problem.groups)
    makers, size = group[home[roots]], program.storage_bytes[roots]
    apart = makers != readers
    a, b, size = makers[apart], readers[apart], size[apart]
    pair, inverse = np.unique(
        np.concatenate([a, b]) * problem.groups + np.concatenate([b, a]), return_inverse=True
    )
    total = np.bincount(inverse, np.concatenate([size, size]), minlength=len(pair))
    source, other = np.divmod(pair, problem.groups)
    start = np.searchsorted(source, np.arange(problem.groups + 1))
    return start.astype(np.int64), other.astype(np.int64), total.astype(np.int64)
