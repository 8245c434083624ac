"""A problem as arrays that the network reads, padded so that few shapes are compiled."""

from __future__ import annotations

import math
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from loadmaster.graph import TASKS, GraphOptimization
from loadmaster.graph.features import COLUMNS, machine_vector, node_features
from loadmaster.graph.placers import expected_bytes
from loadmaster.learn.backend import bucket, pad_rows
from loadmaster.program.program import PERSISTENT

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

KINDS = 64
MOST_DEVICES = 16
GROUP_COLUMNS = 3
"""Of each node's group: its share of the work, of the bytes, and its place among the groups."""
FEATURES = len(COLUMNS) + GROUP_COLUMNS
ABOUT = 8 + 6 + 5
"""Numbers of a machine, of what is decided, and of the whole graph."""

# What makes the columns of about equal size: sizes in log2 up to 30, ranks up to 6, degrees up to 5.
_SCALE = np.array([16, 16, 24, 16, 3, 16, 1, 1, 0.01, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 0.05, 0.05, 1])


class Graph(NamedTuple):
    """N nodes, P pairs of neighbours in both directions, G groups, D devices, all padded."""

    features: Float32
    """[N, FEATURES]"""
    kind: Int32
    real: Bool
    """[N]"""
    target: Int32
    """[P] sorted; N where there is no pair"""
    source: Int32
    by_group: Int32
    """[N] nodes sorted by their groups; the padding last"""
    group: Int32
    """[N] the group of each of them, sorted; G where there is none"""
    first: Int32
    """[G] the first node of each group"""
    group_real: Bool
    device_real: Bool
    about: Float32
    """[ABOUT]"""
    decided: Bool
    """[3] fusion, placement, schedule"""
    fusible: Bool
    """[N] whether a fusion key can have an effect"""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return (len(self.kind), len(self.target), len(self.first), len(self.device_real))


def padded_sizes(problem: GraphOptimization, segment: int) -> tuple[int, int, int, int]:
    """(N, P, G, D)"""
    devices = 2
    while devices < problem.devices:
        devices *= 2
    return (
        bucket(problem.nodes, segment),
        bucket(2 * problem.edges.shape[1], 256),
        bucket(problem.groups, 16),
        devices,
    )


def graph_of(problem: GraphOptimization, sizes: tuple[int, int, int, int]) -> Graph:
    """The arrays of a problem."""
    n, groups, devices = problem.nodes, problem.groups, problem.devices
    nodes, pairs, group_room, device_room = sizes
    target = np.concatenate([problem.edges[1], problem.edges[0]])
    order = np.argsort(target, kind="stable")
    source = np.concatenate([problem.edges[0], problem.edges[1]])[order]
    by_group = np.argsort(problem.node_group, kind="stable")
    sorted_groups = problem.node_group[by_group]
    first = by_group[np.searchsorted(sorted_groups, np.arange(groups))]
    seen = node_features(problem)
    kinds = np.array([crc32(name.lower().encode()) % KINDS for name in problem.program.op_kind.values] or [0])
    return Graph(
        pad_rows(_features(problem, seen), nodes),
        pad_rows(kinds[problem.program.op_kind.codes[problem.node_op]].astype(np.int32), nodes),
        pad_rows(np.ones(n, dtype=bool), nodes),
        pad_rows(target[order].astype(np.int32), pairs, nodes),
        pad_rows(source.astype(np.int32), pairs),
        pad_rows(by_group.astype(np.int32), nodes, nodes - 1),
        pad_rows(sorted_groups.astype(np.int32), nodes, group_room),
        pad_rows(first.astype(np.int32), group_room),
        pad_rows(np.ones(groups, dtype=bool), group_room),
        pad_rows(np.ones(devices, dtype=bool), device_room),
        _about(problem, seen),
        np.array([task in problem.tasks for task in ("fusion", "placement", "schedule")]),
        pad_rows(problem.touched[problem.node_op].astype(bool), nodes),
    )


def _features(problem: GraphOptimization, seen: Float32) -> Float32:
    n, groups = problem.nodes, max(1, problem.groups)
    columns = np.zeros((n, FEATURES))
    columns[:, : len(COLUMNS)] = seen
    cost = columns[:, COLUMNS.index("cost")]
    work = np.bincount(problem.node_group, cost, minlength=groups)
    held = expected_bytes(problem).astype(np.float64) if n else np.zeros(groups)
    held = held / max(1.0, held.sum())
    group = problem.node_group
    columns[:, len(COLUMNS) :] = np.stack([work[group], held[group], group / groups], axis=1)
    return _clipped(columns / _SCALE)


def _about(problem: GraphOptimization, seen: Float32) -> Float32:
    program, machine = problem.program, problem.machine
    base = problem.base
    cost = np.maximum(problem.durations, 0).min(axis=1) * program.op_repeat[problem.node_op]
    work = max(1.0, float(cost.sum()))
    # A node's bottom level counts its own cost, so that one with no readers tells the critical path.
    ends = (seen[:, COLUMNS.index("readers")] == 0) & (seen[:, COLUMNS.index("bottom_level")] > 0)
    shares = seen[ends, COLUMNS.index("cost")] / seen[ends, COLUMNS.index("bottom_level")]
    serial = float(np.median(shares)) if ends.any() else 1.0
    written = np.zeros(program.n_ops)
    np.add.at(written, program.write_op, program.write_bytes)
    link = machine.links[0].bandwidth if machine.links else 1
    moved = float(written[problem.node_op[problem.edges[0]]].sum()) / max(1, link) * 1e12
    kept = program.tensor_bytes[np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])].sum()
    room = sum(machine.memories[home].capacity for home in set(machine.home))
    flags = [task in problem.tasks for task in TASKS] + [
        base.fusion == "none",
        base.schedule == "fifo",
        problem.tie == "fifo",
    ]
    whole = [
        math.log2(1 + problem.nodes) / 8 - 1.5,
        math.log2(1 + problem.groups) / 4 - 2,
        math.log2(max(serial, 1e-6)) / 4,
        math.log2((1 + moved) / work) / 4,
        math.log2((1 + float(kept)) / max(1, room)) / 4,
    ]
    numbers = np.concatenate([machine_vector(problem) / 20 - 1, np.array(flags, dtype=float), whole])
    return _clipped(numbers)


def _clipped(numbers: npt.NDArray[np.float64]) -> Float32:
    """As the network sees them: a few of an unusual size must not drown the rest."""
    kept: Float32 = np.clip(numbers, -8, 8).astype(np.float32)
    return kept
