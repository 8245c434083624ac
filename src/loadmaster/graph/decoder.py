"""Devices from a few numbers: the list scheduler that puts freed groups again, and what it starts from.

An action is the set of groups that are freed and the parameters of the scheduler that puts them again. The
scheduler walks over the steps of the base's clusters and gives each freed group the device where its first
step ends first, by what its parameters count. With the parameters of HEFT and everything freed it is HEFT.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Bool, Float64, Int32, Int64
from loadmaster.errors import MissingPackage
from loadmaster.graph.base import fixed_keys, m_topo
from loadmaster.graph.list_placers import Metis
from loadmaster.graph.placers import NONE, Places
from loadmaster.graph.problem import GraphOptimization
from loadmaster.host import cores

PARAMETERS = ("transfer", "ahead", "load", "wait", "memory")
"""What counts when a device is chosen: the time of transfers; the group's transfers with groups that have a
device; the work that the device has; the wait for links that are busy; and the share of a memory that may be
filled."""
ORDERS = ("program", "rank", "rank with transfers")
"""In which steps are taken: as the program has them, or by the longest path to the end."""
HEFT = (1.0, 0.0, 0.0, 0.0, 1.0)
EXACT = (1.0, 0.0, 0.0, 1.0, 1.0)
"""Transfers wait for each other, as they will: for reckoning the time of a placement."""
_MOST = 1_000
"""Of a parameter."""


class Decoder:
    """The native list scheduler over the steps of one fusion."""

    def __init__(self, problem: GraphOptimization, threads: int | None = None) -> None:
        self.problem, self.threads = problem, threads or cores()
        self.places = Places(problem, problem.base_clusters)
        self.pinned = np.flatnonzero(problem.pinned >= 0)

    @cached_property
    def work(self) -> Float64:
        """[G] ps of all steps of a group where they are fastest."""
        _, group, time, _ = self.places.table
        own = np.where(time < 0, np.iinfo(np.int64).max, time).min(axis=1, initial=2**60)
        return np.bincount(group, weights=own, minlength=self.problem.groups).astype(np.float64)

    def repair(
        self,
        device: npt.NDArray[np.integer[Any]],
        parameters: Float64,
        order: npt.NDArray[np.integer[Any]],
        bias: Float64 | None = None,
    ) -> tuple[Int32, Int64]:
        """Put freed groups again.

        Args:
          device: [B, G] where a group stays; -1: it is freed. Pinned groups stay where they are pinned.
          parameters: [B, 5] as in `PARAMETERS`.
          order: [B] numbers of `ORDERS`.
          bias: [B, G, D] ps by which a device is preferred, or None.

        Returns:
          devices [B, G], and [B, 2] the makespan and the time of all transfers as the scheduler reckons.
        """
        given = np.ascontiguousarray(device, dtype=np.int32)
        if len(self.pinned):
            given = given.copy()
            given[:, self.pinned] = self.problem.pinned[self.pinned]
        counted = np.rint(1_000 * np.clip(parameters[:, :4], 0, _MOST)).astype(np.int64)
        room = np.clip(parameters[:, 4:], 0, _MOST) * np.minimum(self.places.capacity, 2**50)
        return self.places.native.repair(
            given,
            room.astype(np.int64),
            counted,
            np.ascontiguousarray(order, dtype=np.int32),
            np.zeros(0) if bias is None else np.ascontiguousarray(bias),
            self.threads,
        )

    def reckon(self, device: npt.NDArray[np.integer[Any]]) -> Int64:
        """[B, 2] makespan and time of transfers of whole placements [B, G], without an evaluation."""
        count = len(device)
        return self.repair(device, np.tile(EXACT, (count, 1)), np.full(count, 2))[1]


@dataclass(frozen=True)
class FusionMode:
    """Fusion keys, and whether they hold within devices alone."""

    name: str
    keys: Float64
    within: bool


def fusion_modes(problem: GraphOptimization) -> list[FusionMode]:
    """The base's fusion where it is not decided; else what follows the devices first."""
    if "fusion" not in problem.tasks:
        return [FusionMode("base", np.zeros(0), False)]
    fixed = fixed_keys(problem.nodes)
    apart = np.where(leaves(problem, np.arange(problem.groups)), 0.0, fixed)
    return [
        FusionMode("within devices", fixed, True),
        FusionMode("fixed", fixed, False),
        FusionMode("cost model", problem.cost_model_keys(), False),
        FusionMode("within groups", apart, False),
    ]


def leaves(problem: GraphOptimization, device: npt.NDArray[Any]) -> Bool:
    """[..., n] whether an op has a reader on another device, of devices [..., G]."""
    source, reader = problem.edges
    flat = device.reshape(-1, device.shape[-1])
    found = np.zeros((len(flat), problem.nodes), dtype=bool)
    far = flat[:, problem.node_group[source]] != flat[:, problem.node_group[reader]]
    rows, edges = np.nonzero(far)
    found[rows, source[edges]] = True
    return found.reshape(*device.shape[:-1], problem.nodes)


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


HINTS = ("base", "single", "round-robin", "m-topo", "heft", "heft-ahead", "m-etf", "m-etf-ahead")
_AHEAD = (True, 30)
"""Transfers wait for each other, and 30 % of a group's later transfers count."""


def hinted_devices(problem: GraphOptimization) -> Int32:
    """[hints, G] a device for each group by constructive rules, in the order of `HINTS`; nothing is evaluated."""
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


def partitions(problem: GraphOptimization) -> Int32:
    """[2 or 0, G] METIS with equal time and with equal memory per part; none without the package."""
    try:
        found = list(Metis().place(Places(problem, problem.base_clusters)))
    except MissingPackage:
        found = []
    return np.array(found, dtype=np.int32).reshape(-1, problem.groups)
