"""What GO sees of a small change of the plan in hand: the plan as it was run, and what the change touches of it.

Annealing's proposals are judged in microseconds, so what is said of them is sums over tables of groups, devices and steps
that are made once per stretch. All numbers are parts of the plan's time or of a capacity; none depends on how devices are
numbered. Shapes: S steps, G groups, D devices, n nodes, K changes, F features.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from loadmaster._core import GraphClimb
from loadmaster.arrays import Float32, Float64, Int64
from loadmaster.graph.go.scores import BINS, SHARPNESS, GraphView, Shape, signed_log, sum_by
from loadmaster.graph.moves import Changes
from loadmaster.graph.problem import GraphOptimization

CHANGE_FEATURES = 45
CHANGES = Shape(CHANGE_FEATURES, 32, 2)
"""Outputs as the ranker's."""


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

    _describe_devices(found[:, :20], run, *part("device"))
    _describe_keys(found[:, 20:34], run, problem, *part("schedule"))
    _describe_fusion(found[:, 34:37], run, problem, *part("fusion"))
    graph = run.graph
    found[:, 37:] = (
        np.log2(graph.devices),
        np.log(max(1, graph.groups)) / 2,
        2 * run.load.max(),
        _log(run.urgent),
        _log(run.moved),
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

    def most(amount: Float64) -> Float64:
        found = np.zeros(count)
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


def _log(amount: float) -> float:
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
