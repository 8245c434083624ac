"""What GO sees of plans and of changes to them, and its two small networks: one ranks placements before they are
evaluated, one ranks the small changes that annealing may try.

All numbers are ratios (to the plan's time, to a memory's capacity), so that they mean the same on every graph
and machine, and none depends on how devices are numbered: a change is described by sums and extremes over
groups and devices. Placements are seen as the decoder reckons them. Small changes are judged in microseconds: what is
said of them is read from tables of the plan in hand as it was run, which are made once for many. Shapes: S steps,
G groups, D devices, E pairs of groups, n nodes, K candidates or changes, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster._core import GraphClimb
from loadmaster.arrays import Bool, Float32, Float64, Int32, Int64
from loadmaster.errors import LoadmasterError
from loadmaster.graph.decoder import EXACT, Decoder
from loadmaster.graph.moves import Changes
from loadmaster.graph.placers import Places
from loadmaster.graph.problem import GraphOptimization

SHARPNESS = 50.0
"""How fast a step counts less as critical with its slack, in parts of the time."""
BLOCK = 96
"""Rows of a product of matrices: a library that shares larger ones among threads takes longer to do so than they take."""
BINS = 64
"""Of time, in which it is told how busy a device is."""


class GraphView:
    """What does not depend on a plan: steps, groups and what they exchange."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, problem = decoder, decoder.problem
        self.groups, self.devices = problem.groups, problem.devices
        _, group, time, edges = decoder.places.table
        self.step_group = group.astype(np.int64)
        self.step_time = np.where(time < 0, np.iinfo(np.int64).max, time).min(axis=1, initial=2**60) * 1.0
        self.work = decoder.work
        self.bytes = decoder.places.bytes.astype(np.float64)
        capacity = decoder.places.capacity[np.array(problem.machine.home)]
        self.capacity: Float64 = np.maximum(1.0, capacity.astype(np.float64))
        a, b = self.step_group[edges[0]], self.step_group[edges[1]]
        self.crossing = np.flatnonzero(a != b)
        self.source, self.reader = edges[0][self.crossing], edges[1][self.crossing]
        self.move = edges[2][self.crossing].astype(np.float64)
        pairs, self.pair_of = np.unique(
            a[self.crossing] * self.groups + b[self.crossing], return_inverse=True
        )
        self.first, self.second = pairs // max(1, self.groups), pairs % max(1, self.groups)
        """[E] pairs of groups of which the second reads the first's results."""
        self.pair_move = sum_by(self.pair_of, self.move, len(pairs))

    @cached_property
    def node_edges(self) -> tuple[Int64, Int64, Float64]:
        """(producers, readers, ps of a transfer between them) of nodes, whatever is fused."""
        problem = self.decoder.problem
        step, _, _, edges = Places(problem, np.arange(problem.program.n_ops, dtype=np.int32)).table
        node = np.zeros(problem.nodes, dtype=np.int64)
        node[step[problem.node_op]] = np.arange(problem.nodes)
        return node[edges[0]], node[edges[1]], edges[2].astype(np.float64)

    def by_device(self, device: Int32, amount: Float64) -> Float64:
        """[K, D] sums of amounts [G] over the groups of each device, of devices [K, G]."""
        found = np.stack([(device == d) @ amount for d in range(self.devices)], axis=1)
        return np.asarray(found, dtype=np.float64)


class PlanView:
    """A plan in hand as the decoder reckons it: who is critical, who is busy when, what is cut."""

    def __init__(self, graph: GraphView, device: Int32) -> None:
        self.graph, self.device = graph, device
        places = graph.decoder.places
        outlook = np.rint(1_000 * np.array(EXACT[:4])).astype(np.int64)
        start, end, latest = places.native.timeline(
            np.ascontiguousarray(device, dtype=np.int32), np.minimum(places.capacity, 2**50), outlook
        )
        self.time = max(1.0, float(end.max(initial=1)))
        slack = np.minimum(1.0, (latest - end) / self.time)
        critical = np.exp(-SHARPNESS * slack)
        self.start, self.end = start / self.time, end / self.time
        groups, step_group = graph.groups, graph.step_group
        self.critical = sum_by(step_group, graph.step_time * critical, groups) / self.time
        """[G] critical work."""
        self.slack = np.ones(groups)
        np.minimum.at(self.slack, step_group, slack)
        both = np.minimum(critical[graph.source], critical[graph.reader])
        self.pair_move = graph.pair_move / self.time
        self.pair_critical = sum_by(graph.pair_of, graph.move * both, len(graph.first)) / self.time
        self.cut: Bool = device[graph.first] != device[graph.second]
        self.work = graph.work / self.time
        self.load = graph.by_device(device[None], self.work)[0]
        self.held = graph.by_device(device[None], graph.bytes)[0] / graph.capacity

    @cached_property
    def beside(self) -> Float64:
        """[G, D] the work of a group, by how busy each device is when its steps run."""
        graph = self.graph
        bins = np.clip((self.start * BINS).astype(np.int64), 0, BINS - 1)
        busy = np.zeros((graph.devices, BINS))
        np.add.at(busy, (self.device[graph.step_group], bins), graph.step_time)
        busy = np.minimum(busy * BINS / self.time, 2.0)
        weight = graph.step_time / self.time
        return np.stack(
            [sum_by(graph.step_group, weight * busy[d, bins], graph.groups) for d in range(graph.devices)],
            axis=1,
        )

    @cached_property
    def reckoned(self) -> Int64:
        """[2] makespan and time of transfers."""
        return np.asarray(self.graph.decoder.reckon(self.device[None])[0], dtype=np.int64)


FEATURES = 31


def make_features(plan: PlanView, device: Int32) -> Float32:
    """[K, F] of placements [K, G] beside a plan's."""
    graph, count = plan.graph, len(device)
    here = plan.device
    changed: Bool = device != here
    cut = device[:, graph.first] != device[:, graph.second]
    new, gone = cut & ~plan.cut, ~cut & plan.cut
    load = graph.by_device(device, plan.work)
    held = graph.by_device(device, graph.bytes) / graph.capacity
    reckoned = graph.decoder.reckon(device).astype(np.float64)
    before = np.maximum(1.0, plan.reckoned.astype(np.float64))
    groups = np.arange(graph.groups)
    there = plan.beside[groups[None], device] - plan.beside[groups, here]
    moved, critical = changed @ plan.work, changed @ plan.critical
    ones = np.ones(count)
    columns = (
        20 * np.log(np.maximum(1.0, reckoned[:, 0]) / before[0]),
        20 * (load.max(axis=1) - plan.load.max()),
        2 * load.max(axis=1),
        5 * (held.max(axis=1) - plan.held.max()),
        held.max(axis=1),
        (held > 1).sum(axis=1),
        signed_log((reckoned[:, 1] - plan.reckoned[1]) / plan.time),
        np.log1p(changed.sum(axis=1)),
        signed_log(moved),
        signed_log(critical),
        critical / np.maximum(1e-9, moved),
        10 * np.where(changed, plan.slack, 1.0).min(axis=1, initial=1.0),
        signed_log(new @ plan.pair_move),
        signed_log(gone @ plan.pair_move),
        signed_log(new @ plan.pair_critical),
        signed_log(gone @ plan.pair_critical),
        signed_log(new @ plan.pair_move - gone @ plan.pair_move),
        signed_log(new @ plan.pair_critical - gone @ plan.pair_critical),
        np.log1p(new.sum(axis=1)),
        np.log1p(gone.sum(axis=1)),
        (new.sum(axis=1) - gone.sum(axis=1)) / np.maximum(1, changed.sum(axis=1)),
        signed_log((changed * there).sum(axis=1)),
        signed_log(changed @ plan.beside[groups, here]),
        signed_log((load**2).sum(axis=1) - (plan.load**2).sum()),
        ones * np.log2(graph.devices),
        ones * np.log(max(1, graph.groups)) / 2,
        ones * 2 * plan.load.max(),
        ones * plan.held.max(),
        ones * np.log1p(10 * plan.cut.mean() if len(plan.cut) else 0.0),
        ones * signed_log(np.atleast_1d(plan.pair_move[plan.cut].sum())),
        ones * np.log(plan.load.sum() / max(1e-9, graph.devices * plan.load.max())),
    )
    rows = np.stack(columns, axis=1)
    clipped: Float32 = np.clip(np.nan_to_num(rows), -10, 10).astype(np.float32)
    return clipped


CHANGE_FEATURES = 53


class RunView:
    """A plan as it was run: who is critical, who waited, what is moved."""

    def __init__(self, graph: GraphView, climb: GraphClimb, vector: Float64) -> None:
        self.graph, self.vector = graph, vector
        problem = graph.decoder.problem
        found = climb.timeline()
        groups, devices = graph.groups, graph.devices
        group, device = found["group"].astype(np.int64), found["device"].astype(np.int64)
        time = max(1.0, float(found["end"].max(initial=1)))
        self.step = found["step"]
        self.start = found["start"] / time
        self.work: Float64 = found["end"] / time - self.start
        self.slack: Float64 = np.clip((found["latest"] - found["end"]) / time, 0.0, 1.0)
        self.critical = np.exp(-SHARPNESS * self.slack)
        self.waited: Float64 = np.maximum(0.0, self.start - found["ready"] / time)
        """[S] from the last of what a step reads to its start."""
        order = np.lexsort((found["start"], device))
        follows = device[order[1:]] == device[order[:-1]]
        self.before = np.full(len(group), -1)
        self.before[order[1:][follows]] = order[:-1][follows]
        """[S] the step before it on its device, or -1."""

        self.here = problem.split(vector)[1].astype(np.int64)
        self.group_work = sum_by(group, self.work, groups)
        self.group_critical = sum_by(group, self.work * self.critical, groups)
        self.group_waited = sum_by(group, self.waited * self.critical, groups)
        self.group_slack = np.ones(groups)
        np.minimum.at(self.group_slack, group, self.slack)
        move = graph.pair_move / time
        first, second = graph.first, graph.second
        near = sum_by(first * devices + self.here[second], move, groups * devices)
        near += sum_by(second * devices + self.here[first], move, groups * devices)
        self.near = near.reshape(groups, devices)
        """[G, D] transfers with groups of a device, were they apart."""
        source, reader = found["move_from"], found["move_reader"]
        known = (source >= 0) & (reader >= 0)
        source, reader = source[known], reader[known]
        moved = ((found["move_end"] - found["move_start"]) / time)[known]
        late = np.clip((found["move_latest"] - found["move_end"]) / time, 0.0, 1.0)[known]
        urgent = moved * np.exp(-SHARPNESS * late)
        self.into = sum_by(group[reader] * devices + device[source], urgent, groups * devices)
        self.into = self.into.reshape(groups, devices)
        """[G, D] critical transfers from a device, and in `out` to it."""
        self.out = sum_by(group[source] * devices + device[reader], urgent, groups * devices)
        self.out = self.out.reshape(groups, devices)
        self.moved, self.urgent = float(moved.sum()), float(urgent.sum())

        self.load = sum_by(device, self.work, devices)
        self.critical_load = sum_by(device, self.work * self.critical, devices)
        self.held = sum_by(self.here, graph.bytes, devices) / graph.capacity
        bins = np.clip((self.start * BINS).astype(np.int64), 0, BINS - 1)
        busy = sum_by(device * BINS + bins, self.work, devices * BINS).reshape(devices, BINS)
        busy = np.minimum(busy * BINS, 2.0)
        self.beside = np.stack(
            [sum_by(group, self.work * busy[d, bins], groups) for d in range(devices)], axis=1
        )
        """[G, D] the work of a group, by how busy each device is when its steps run."""
        self.through, self.early, self.urge, self.short = self._paths(group, device, time)
        self.freed = self._freed(group, order, found["ready"] / time)

    def _freed(self, group: Int64, order: Int64, ready: Float64) -> Float64:
        """[G] were a group away: by how much earlier the critical steps behind its own could start on the device. `order`:
        steps by device and start."""
        last = np.append((group[order[1:]] != group[order[:-1]]) | (self.before[order[1:]] < 0), True)
        first = np.append(True, last[:-1])  # of each stretch of steps of one group
        before, behind = self.before[order[first]], np.append(order[1:], -1)[last]
        own = order[last]
        follows = np.flatnonzero((behind >= 0) & (self.before[behind] == own))
        before, behind = before[follows], behind[follows]
        end = np.where(before >= 0, self.start[before] + self.work[before], 0.0)
        sooner = np.maximum(0.0, self.start[behind] - np.maximum(ready[behind], end))
        return sum_by(group[own[follows]], sooner * self.critical[behind], self.graph.groups)

    def _paths(self, group: Int64, device: Int64, time: float) -> tuple[Float64, Float64, Float64, Float64]:
        """[G, D] were a group alone on another device: by how much the longest path through its steps exceeds the time;
        how much later they could start; how much too late their results would be there; and the work that finds no
        idle time between these."""
        graph, steps, devices = self.graph, len(group), self.graph.devices
        source, reader, move = graph.node_edges
        source, reader = self.step[source], self.step[reader]
        apart = source != reader
        source, reader, move = source[apart], reader[apart], move[apart] / time
        alone = np.where(group[source] == group[reader], 0.0, move)[:, None]
        end = self.start + self.work
        latest = end + self.slack  # ends
        every = np.arange(devices)
        arrives = end[source, None] + alone * (device[source, None] != every) - self.start[reader, None]
        needed = end[source, None] + alone * (device[reader, None] != every)
        needed -= (latest - self.work)[reader, None]
        early = largest_by(reader, arrives, np.repeat(-self.start[:, None], devices, axis=1))
        urge = largest_by(source, needed, np.repeat(end[:, None] - 1.0, devices, axis=1))
        short = np.zeros((steps, devices))
        for d in range(devices):
            own = np.flatnonzero(device == d)
            own = own[np.argsort(self.start[own], kind="stable")]
            ends = np.cumsum(self.work[own])
            when = np.stack([self.start[own], end[own]], axis=1).ravel()
            busy = np.stack([ends - self.work[own], ends], axis=1).ravel()
            begin, until = self.start + early[:, d], end - urge[:, d]
            until = np.maximum(begin, until)
            idle = until - begin
            if len(own):
                idle = idle - np.interp(until, when, busy) + np.interp(begin, when, busy)
            short[:, d] = np.maximum(0.0, self.work - idle)
        count = graph.groups
        lowest = np.full((count, devices), -1.0)
        return (
            largest_by(group, early + urge, lowest),
            largest_by(group, early, lowest),
            largest_by(group, urge, lowest),
            np.stack([sum_by(group, short[:, d], count) for d in range(devices)], axis=1),
        )

    @cached_property
    def step_key(self) -> Float64:
        """[S] the largest schedule key of a step's ops."""
        found = np.zeros(len(self.work))
        np.maximum.at(found, self.step, self.vector[self.graph.decoder.problem.part("schedule")])
        return found


def change_features(run: RunView, changes: Changes) -> Float32:
    """[K, F] of changes of the plan."""
    rows, index, source, value = changes
    count = len(rows) - 1
    problem = run.graph.decoder.problem
    row = np.repeat(np.arange(count), np.diff(rows))
    new = np.where(source >= 0, run.vector[np.maximum(source, 0)] + value, value)
    found = np.zeros((count, CHANGE_FEATURES))

    def part(name: str) -> tuple[Int64, Int64, Float64]:
        """(rows, entries, new values) of the changes of a part."""
        at = problem.part(name)
        own = np.flatnonzero((index >= at.start) & (index < at.stop))
        return row[own], index[own] - at.start, new[own]

    _describe_devices(found[:, :28], run, *part("device"))
    _describe_keys(found[:, 28:42], run, problem, *part("schedule"))
    _describe_fusion(found[:, 42:45], run, problem, *part("fusion"))
    graph = run.graph
    found[:, 45:] = (
        np.log2(graph.devices),
        np.log(max(1, graph.groups)) / 2,
        2 * run.load.max(),
        _log_of(run.urgent),
        _log_of(run.moved),
        run.load.sum() / max(1e-9, graph.devices * run.load.max()),
        run.held.max(),
        2 * run.critical_load.sum(),
    )
    clipped: Float32 = np.clip(np.nan_to_num(found), -10, 10).astype(np.float32)
    return clipped


def _describe_devices(found: Float64, run: RunView, row: Int64, group: Int64, new: Float64) -> None:
    """What groups leave and what they would meet."""
    count, devices = len(found), run.graph.devices
    there, here = new.astype(np.int64) % devices, run.here[group]
    moves = np.flatnonzero(there != here)
    if not len(moves):
        found[:, 3] = 10.0
        return
    row, group, there, here = row[moves], group[moves], there[moves], here[moves]

    def total(amount: Float64) -> Float64:
        return sum_by(row, amount, count)

    def most(amount: Float64, least: float = 0.0) -> Float64:
        found = np.full(count, least)
        np.maximum.at(found, row, amount)
        return found

    slack = np.ones(count)
    np.minimum.at(slack, row, run.group_slack[group])
    work, critical = total(run.group_work[group]), total(run.group_critical[group])
    left, met = total(run.near[group, here]), total(run.near[group, there])
    beside = run.beside[group, here]
    bytes_there = run.graph.bytes[group] / run.graph.capacity[there]
    columns = (
        np.log1p(total(np.ones(len(row)))),
        signed_log(work),
        signed_log(critical),
        10 * slack,
        signed_log(total(run.group_waited[group])),
        signed_log(left),
        signed_log(met),
        signed_log(left - met),
        signed_log(total(run.into[group].sum(axis=1))),
        signed_log(total(run.into[group, there])),
        signed_log(total(run.out[group].sum(axis=1))),
        signed_log(total(run.out[group, there])),
        signed_log(total(run.beside[group, there] - beside)),
        signed_log(total(beside)),
        2 * most(run.load[there]),
        2 * most(run.load[here]),
        2 * most(run.critical_load[there]),
        2 * most(run.critical_load[here]),
        most(run.held[there] + bytes_there),
        critical / np.maximum(1e-9, work),
        signed_log(most(run.through[group, there], -1.0)),
        signed_log(most(run.through[group, there] - run.through[group, here], -1.0)),
        signed_log(most(run.early[group, there], -1.0)),
        signed_log(most(run.urge[group, there], -1.0)),
        signed_log(total(run.short[group, there])),
        signed_log(total(np.maximum(0.0, run.through[group, there]))),
        signed_log(most(run.through[group, there] + run.short[group, there], -1.0)),
        signed_log(total(run.freed[group])),
    )
    found[:] = np.stack(columns, axis=1)


def _describe_keys(
    found: Float64, run: RunView, problem: GraphOptimization, row: Int64, node: Int64, new: Float64
) -> None:
    """Of the first key that changes: its step, and the step before it on the device."""
    if not len(row):
        return
    size = np.bincount(row, minlength=len(found))
    rows, first = np.unique(row, return_index=True)
    step, old = run.step[node[first]], run.vector[problem.part("schedule")][node[first]]
    key = np.clip(new[first], 0.0, 1.0)
    up = key - old
    before = run.before[step]
    has = before >= 0
    columns = (
        np.ones(len(rows)),
        10 * run.slack[step],
        signed_log(run.work[step]),
        signed_log(run.waited[step]),
        signed_log(run.waited[step] * run.critical[step]),
        old,
        key,
        np.sign(up),
        np.sign(up) * np.log1p(1e4 * np.abs(up)) / 4,
        np.where(has, 10 * run.slack[before], -1.0),
        np.where(has, signed_log(run.work[before]), 0.0),
        np.log1p(size[rows]),
        np.where(has, np.sign(key - run.step_key[before]), 0.0),
        np.where(has, np.sign(old - run.step_key[before]), 0.0),
    )
    found[rows] = np.stack(columns, axis=1)


def _describe_fusion(
    found: Float64, run: RunView, problem: GraphOptimization, row: Int64, node: Int64, new: Float64
) -> None:
    """How many keys change, and how critical their steps are."""
    if not len(row):
        return
    differs = (new != run.vector[problem.part("fusion")][node]).astype(np.float64)
    step = run.step[node]
    found[:, 0] = np.bincount(row, minlength=len(found)) > 0
    found[:, 1] = np.log1p(sum_by(row, differs, len(found)))
    found[:, 2] = signed_log(sum_by(row, run.work[step] * run.critical[step] * differs, len(found)))


def _log_of(amount: float) -> float:
    return float(signed_log(np.array([amount]))[0])


def take_changes(changes: Changes, chosen: Int64) -> Changes:
    """Some proposals, in that order."""
    rows, index, source, value = changes
    size = np.diff(rows)[chosen]
    ends = np.cumsum(size)
    at = np.repeat(rows[chosen] - (ends - size), size) + np.arange(int(size.sum()))
    return np.concatenate([[0], ends]).astype(np.int64), index[at], source[at], value[at]


def join_changes(first: Changes, second: Changes) -> Changes:
    """One set of proposals behind another."""
    rows = np.concatenate([first[0], first[0][-1] + second[0][1:]])
    return (
        rows,
        np.concatenate([first[1], second[1]]),
        np.concatenate([first[2], second[2]]),
        np.concatenate([first[3], second[3]]),
    )


def single_moves(problem: GraphOptimization, here: Int64, chosen: Int64) -> Changes:
    """Single groups to other devices; of the numbers [K] below G * (D - 1): the group, and how far it goes."""
    group, further = np.divmod(chosen, problem.devices - 1)
    device = (here[group] + 1 + further) % problem.devices
    index = group + problem.part("device").start
    none = np.full(len(chosen), -1, dtype=np.int64)
    return np.arange(len(chosen) + 1), index.astype(np.int64), none, device.astype(np.float64)


def signed_log(amount: Float64) -> Float64:
    """Signed logarithm: amounts are parts of the time, of which thousandths matter."""
    return np.asarray(np.sign(amount) * np.log1p(1e3 * np.abs(amount)), dtype=np.float64)


def sum_by(index: npt.NDArray[np.integer], values: Float64, count: int) -> Float64:
    """[count] sums of the values of each index."""
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


def largest_by(index: Int64, values: Float64, least: Float64) -> Float64:
    """[count, D] the largest of the values [K, D] of each index, and of `least` [count, D]."""
    if not len(index):
        return least
    order = np.argsort(index, kind="stable")
    index = index[order]
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    found = least.copy()
    found[index[starts]] = np.maximum(
        found[index[starts]], np.maximum.reduceat(values[order], starts, axis=0)
    )
    return found


PARTS = ("mean", "deviation", "enter", "enter_bias", "inner", "inner_bias", "leave", "leave_bias")


@dataclass(frozen=True)
class Network:
    """Two hidden layers over normalised features; the parameters of training are all but the first two."""

    mean: Float32
    deviation: Float32
    """[F]"""
    enter: Float32
    enter_bias: Float32
    inner: Float32
    inner_bias: Float32
    leave: Float32
    leave_bias: Float32

    def __call__(self, features: Float32) -> Float32:
        """[..., outputs] of features [..., F]."""
        flat = features.reshape(-1, features.shape[-1])
        blocks = -(-len(flat) // BLOCK)
        x: Float32 = np.zeros((blocks * BLOCK, flat.shape[1]), dtype=np.float32)
        x[: len(flat)] = (flat - self.mean) / self.deviation
        x = x.reshape(blocks, BLOCK, -1)
        x = silu(x @ self.enter + self.enter_bias)
        x = silu(x @ self.inner + self.inner_bias)
        found: Float32 = x @ self.leave + self.leave_bias
        found = found.reshape(blocks * BLOCK, -1)[: len(flat)]
        return found.reshape(*features.shape[:-1], -1)

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """By name."""
        return {f"{prefix}.{name}": getattr(self, name) for name in PARTS}


@dataclass(frozen=True)
class Shape:
    """Of a network."""

    features: int
    hidden: int
    outputs: int

    def make(self, seed: int, mean: Float32 | None = None, deviation: Float32 | None = None) -> Network:
        """One that has learned nothing."""
        rng = np.random.default_rng([seed, 4])

        def layer(inputs: int, outputs: int, scale: float = 1.0) -> Float32:
            drawn = rng.normal(size=(inputs, outputs)) * scale * np.sqrt(2 / inputs)
            return np.asarray(drawn, dtype=np.float32)

        def zeros(count: int) -> Float32:
            return np.zeros(count, dtype=np.float32)

        return Network(
            zeros(self.features) if mean is None else mean,
            zeros(self.features) + 1 if deviation is None else deviation,
            layer(self.features, self.hidden),
            zeros(self.hidden),
            layer(self.hidden, self.hidden),
            zeros(self.hidden),
            layer(self.hidden, self.outputs, 0.1),
            zeros(self.outputs),
        )

    def read(self, arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> Network:
        """The network of arrays by name; raises `LoadmasterError` where they are none."""
        like, parts = self.make(0), {}
        for name in PARTS:
            wanted, found = getattr(like, name).shape, arrays.get(f"{prefix}.{name}")
            if found is None or found.shape != wanted or not np.isfinite(found.astype(np.float64)).all():
                raise LoadmasterError(
                    f"it has no '{prefix}.{name}' of shape {wanted}",
                    object=name,
                    remedy="train it again with this version",
                )
            parts[name] = found.astype(np.float32)
        return Network(**parts)


MODES = 4
"""Fusions that a placement may be tried with, at most; see `fusion_modes`."""
RANKER = Shape(FEATURES, 64, MODES)
"""Outputs: by which a placement with each fusion is ranked."""
CHANGES = Shape(CHANGE_FEATURES, 64, 2)
"""Outputs: the logit that a change is for the better, and the signed root of the logarithm of what it gains."""


def rank(network: Network, features: Float32) -> Float64:
    """[K] by which changes are ranked: the logarithm of what is expected of the root of a gain."""
    logit, gain = network(features).astype(np.float64).T
    likely = -np.logaddexp(0.0, -logit)
    return np.asarray(likely + np.log(np.maximum(gain, 0.0) + 0.02), dtype=np.float64)


def silu(x: npt.NDArray[np.floating]) -> Float32:
    """x / (1 + exp(-x))"""
    return np.asarray(x / (1 + np.exp(-np.clip(x, -30, 30))), dtype=np.float32)
