"""What constructive placers would do, as an input of the placement head.

A policy that sees them need not learn again what a list scheduler knows: it learns where to follow
which, and where to leave all of them. Nothing is evaluated, so hints cost no evaluation.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from loadmaster.host import cores
from loadmaster.problems.graph import GraphOptimization
from loadmaster.problems.graph.base import m_topo
from loadmaster.solvers.heuristic.graph_placing import NONE, Places, op_groups

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
            m_topo(problem.program, op_groups(problem), groups, devices),
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
