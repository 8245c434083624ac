"""What an agent sees of a graph: numbers per node, and of the machine; and its decisions in levels. No
names, no scopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Float32, Float64
from loadmaster.graph.fusion import tensor_elements
from loadmaster.graph.problem import GraphOptimization
from loadmaster.program.program import TensorKind, TieKind

LEVELS = 16
"""Choices per key that an agent has: level l is the key l / 15."""


def vector_of_levels(problem: GraphOptimization, action: npt.NDArray[np.integer[Any]]) -> Float64:
    """float64[..., V] of whole numbers [..., V]: levels become keys, devices are kept."""
    vector = np.asarray(action) / (LEVELS - 1)
    at = problem.part("device")
    vector[..., at] = np.asarray(action)[..., at]
    return vector


COLUMNS = (
    "output_bytes",
    "input_bytes",
    "flops",
    "weight_bytes",
    "rank",
    "elements",
    "readers",
    "producers",
    "cost",
    "top_level",
    "bottom_level",
    "slack",
    "index",
    "backward",
    "update",
    "barrier",
    "reads_weight",
    "in_hard_group",
    "repeat",
    "dtype_bytes",
)
"""Sizes as log2(1 + x), degrees as log(1 + x), costs and levels as shares of work and critical path."""


def node_features(problem: GraphOptimization) -> Float32:
    """[n, F] as in `COLUMNS`."""
    program, nodes, n = problem.program, problem.node_op, problem.nodes
    columns = np.zeros((n, len(COLUMNS)))
    read, written, weights = (np.zeros(program.n_ops) for _ in range(3))
    np.add.at(read, program.read_op, program.read_bytes)
    np.add.at(written, program.write_op, program.write_bytes)
    kept = program.is_persistent[program.tensor_alias[program.read_tensor]]
    np.add.at(weights, program.read_op, np.where(kept, program.read_bytes, 0))
    elements, rank = np.zeros(program.n_ops), np.zeros(program.n_ops)
    np.maximum.at(elements, program.write_op, tensor_elements(program)[program.write_tensor])
    np.maximum.at(rank, program.write_op, np.diff(program.tensor_shape_start)[program.write_tensor])
    cost = np.maximum(problem.durations, 0).min(axis=1).astype(np.float64)
    cost *= program.op_repeat[nodes]
    top, bottom = _levels(problem, cost)
    longest = max(float((top + bottom).max(initial=0.0)), 1.0)
    updates = np.zeros(program.n_ops, dtype=bool)
    in_place = program.tie_kind == TieKind.INPLACE
    of_state = program.tensor_kind[program.tensor_alias[program.tie_source]] != TensorKind.ACTIVATION
    updates[program.tie_at[in_place & of_state]] = True
    values = (
        np.log2(1 + written[nodes]),
        np.log2(1 + read[nodes]),
        np.log2(1 + program.op_flops.sum(axis=1)[nodes]),
        np.log2(1 + weights[nodes]),
        rank[nodes],
        np.log2(1 + elements[nodes]),
        np.log1p(np.bincount(problem.edges[0], minlength=n)),
        np.log1p(np.bincount(problem.edges[1], minlength=n)),
        cost / max(cost.sum(), 1.0),
        top / longest,
        bottom / longest,
        1 - (top + bottom) / longest,
        np.arange(n) / max(1, n),
        program.op_backward[nodes],
        updates[nodes],
        problem.rules.fusible[nodes] == 0,
        weights[nodes] > 0,
        problem.hard[nodes] >= 0,
        np.log2(program.op_repeat[nodes]),
        written[nodes] / np.maximum(1, elements[nodes]),
    )
    for number, column in enumerate(values):
        columns[:, number] = column
    return np.clip(columns, -64, 64).astype(np.float32)


def _levels(problem: GraphOptimization, cost: Float64) -> tuple[Float64, Float64]:
    """Longest path of costs before each node, and from it to the end."""
    n = problem.nodes
    top, bottom = [0.0] * n, cost.tolist()
    own = cost.tolist()
    pairs = problem.edges.T.tolist()  # by producer, which comes before its readers
    for a, b in pairs:
        top[b] = max(top[b], top[a] + own[a])
    for a, b in reversed(pairs):
        bottom[a] = max(bottom[a], own[a] + bottom[b])
    return np.array(top), np.array(bottom)


def machine_vector(problem: GraphOptimization) -> Float32:
    """[8] log2 of devices, matrix and vector rate, memory bandwidth, launch, link bandwidth, link
    latency and capacity, of the first device and the first link."""
    machine = problem.machine
    device, home = machine.devices[0], machine.memories[machine.home[0]]
    link = machine.links[0] if machine.links else None
    values = (
        len(machine.devices),
        max(device.rates["matrix"].values()),
        max(device.rates["vector"].values()),
        home.read,
        device.launch,
        link.bandwidth if link else 0,
        link.latency if link else 0,
        home.capacity,
    )
    return np.log2(1 + np.array(values, dtype=np.float64)).astype(np.float32)
