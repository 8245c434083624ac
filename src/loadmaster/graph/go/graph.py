"""A problem as arrays that the network reads, padded so that few shapes are compiled."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from loadmaster.graph import TASKS, GraphOptimization
from loadmaster.graph.base import m_topo
from loadmaster.graph.features import COLUMNS, machine_vector, node_features
from loadmaster.graph.placers import NONE, Places, expected_bytes
from loadmaster.host import cores
from loadmaster.learn.backend import bucket, pad_rows
from loadmaster.program.program import PERSISTENT

# What constructive placers would do, as an input of the placement head.
#
# A policy that sees them need not learn again what a list scheduler knows: it learns where to follow
# which, and where to leave all of them. Nothing is evaluated, so hints cost no evaluation.

Int32 = npt.NDArray[np.int32]

HINTS = ("base", "single", "round-robin", "m-topo", "heft", "heft-ahead", "m-etf", "m-etf-ahead")
_AHEAD = (True, 30)
"""Transfers wait for each other, and 30 % of a group's later transfers count."""


def hinted_devices(problem: GraphOptimization) -> Int32:
    """[hints, G] a device for each group, in the order of `HINTS`."""
    groups, devices = problem.groups, problem.devices
    if "placement" not in problem.tasks or devices == 1 or not groups:
        return np.zeros((len(HINTS), groups), dtype=np.int32)
    places = Places(problem, problem.base_clusters)
    native, room = places.native, places.capacity
    with ThreadPoolExecutor(min(4, cores())) as pool:  # the placers release the GIL
        listed = [
            pool.submit(native.heft, room, False, 0),
            pool.submit(native.heft, room, *_AHEAD),
            pool.submit(native.earliest_start, room, NONE, False, 0),
            pool.submit(native.earliest_start, room, NONE, *_AHEAD),
        ]
        found = [
            problem.split(problem.vector())[1],
            np.zeros(groups, dtype=np.int32),
            np.arange(groups, dtype=np.int32) % devices,
            m_topo(problem.program, problem.op_group, groups, devices),
            *(placed.result() for placed in listed),
        ]
    rows = np.stack([np.asarray(row, dtype=np.int32) for row in found])
    return np.stack([by_first_use(row, devices) for row in rows]) if alike(problem) else rows


STATS = 5
"""Numbers that tell how good a hint is: see `hint_stats`."""


def hint_stats(problem: GraphOptimization, hinted: Int32) -> npt.NDArray[np.float32]:
    """[hints, STATS] estimates without a simulation, as log2 shares of the whole work: the longest
    path with transfers, the busiest device, the bytes over the busiest link end; then the fullest
    memory over its capacity, and the share of devices in use."""
    rows = np.zeros((len(hinted), STATS), dtype=np.float32)
    if "placement" not in problem.tasks or problem.devices == 1 or not problem.groups:
        return rows
    machine, devices = problem.machine, problem.devices
    places = Places(problem, problem.base_clusters)
    _, step_group, step_ps, edges = places.table
    cost = np.maximum(step_ps, 0)
    work = max(1.0, float(cost.min(axis=1).sum()))
    capacity = np.array([machine.memories[home].capacity for home in machine.home], dtype=float)
    for row, device in zip(rows, hinted, strict=True):
        where = np.asarray(device)[step_group]
        longest = int(places.native.levels(np.ascontiguousarray(device, dtype=np.int32), True).max(initial=0))
        busy = np.bincount(where, cost[np.arange(len(where)), where], minlength=devices)
        far = where[edges[0]] != where[edges[1]]
        out = np.bincount(where[edges[0]][far], edges[2][far], minlength=devices)
        into = np.bincount(where[edges[1]][far], edges[2][far], minlength=devices)
        held = np.bincount(device, places.bytes, minlength=devices) / np.maximum(1, capacity)
        moved = max(out.max(initial=0), into.max(initial=0))
        row[:] = (
            np.log2((1 + longest) / work),
            np.log2((1 + busy.max()) / work),
            np.log2((1 + moved) / work + 1e-3),
            min(4.0, held.max()),
            len(np.unique(device)) / devices,
        )
    return np.clip(rows, -8, 8)


def alike(problem: GraphOptimization) -> bool:
    """Whether all devices and links are the same, so that a plan may rename devices."""
    machine = problem.machine
    devices = {(str(d.rates), d.launch) for d in machine.devices}
    homes = {(m.capacity, m.read, m.write) for m in (machine.memories[h] for h in machine.home)}
    links = {(link.bandwidth, link.latency) for link in machine.links}
    return max(len(devices), len(homes), len(links)) <= 1


def by_first_use(device: Int32, devices: int) -> Int32:
    """The same placement with devices numbered as groups first use them."""
    used, first = np.unique(device, return_index=True)
    order = used[np.argsort(first)]
    new = np.zeros(devices, dtype=np.int32)
    rest = np.setdiff1d(np.arange(devices), order)
    new[np.concatenate([order, rest])] = np.arange(devices, dtype=np.int32)
    return new[device]


Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

SCHEMA = 2
"""Of features and hints; a checkpoint of another one is refused."""
KINDS = 64
MOST_DEVICES = 16
GROUP_COLUMNS = 3
"""Of each node's group: its share of the work, of the bytes, and its place among the groups."""
FEATURES = len(COLUMNS) + GROUP_COLUMNS
ABOUT = 8 + 6 + 5
"""Numbers of a machine, of what is decided, and of the whole graph."""
DEVICE = 5

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
    hints: Float32
    """[G, D, HINTS] 1 where a hint places a group"""
    stats: Float32
    """[HINTS, STATS]"""
    device: Float32
    """[D, DEVICE]"""
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


def graph_of(
    problem: GraphOptimization, sizes: tuple[int, int, int, int], hinted: Int32 | None = None
) -> Graph:
    """The arrays of a problem; `hinted` where the hints are known already."""
    n, groups, devices = problem.nodes, problem.groups, problem.devices
    nodes, pairs, group_room, device_room = sizes
    target = np.concatenate([problem.edges[1], problem.edges[0]])
    order = np.argsort(target, kind="stable")
    source = np.concatenate([problem.edges[0], problem.edges[1]])[order]
    by_group = np.argsort(problem.node_group, kind="stable")
    sorted_groups = problem.node_group[by_group]
    first = by_group[np.searchsorted(sorted_groups, np.arange(groups))]
    hints = np.zeros((group_room, device_room, len(HINTS)), dtype=np.float32)
    found = hinted_devices(problem) if hinted is None else hinted
    for number, row in enumerate(found):
        hints[np.arange(groups), row, number] = 1.0
    device = np.zeros((device_room, DEVICE), dtype=np.float32)
    device[:devices] = _devices(problem)
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
        hints,
        hint_stats(problem, found),
        device,
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


def _devices(problem: GraphOptimization) -> Float32:
    """[D, DEVICE] relative to the first device and to what the program needs."""
    machine, durations = problem.machine, np.maximum(problem.durations, 0)
    work = np.maximum(1.0, durations.sum(axis=0))
    need = max(1.0, float(expected_bytes(problem).sum()))
    rows = [
        (
            math.log2(work[d] / work[0]),
            float((problem.durations[:, d] < 0).mean()),
            math.log2(max(1, machine.memories[home].capacity) / need) / 4,
            math.log2(1 + machine.memories[home].read) / 40,
            d / max(1, len(machine.home)),
        )
        for d, home in enumerate(machine.home)
    ]
    return _clipped(np.array(rows))


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
