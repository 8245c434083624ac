"""No plan is faster than this, and sometimes: no plan fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loadmaster.arrays import Int32, Int64
from loadmaster.program.hazards import overwrite_waits, place_bytes, places, root_writers
from loadmaster.program.program import Program
from loadmaster.search.problem import Bound
from loadmaster.simulate.costs import compute_times
from loadmaster.units import show_bytes

if TYPE_CHECKING:
    from loadmaster.graph.problem import GraphOptimization


_TURNS = 40
_MOST_WEIGHT = 1 << 10
_MOST_WEIGHED = np.int64(1 << 50)
"""Longer times count as this much, so that products stay exact."""


def find_edges(program: Program, node_op: Int32) -> Int32:
    """[2, E] pairs (producer, reader) of nodes; views are seen through."""
    number = np.full(program.n_ops, -1, dtype=np.int64)
    number[node_op] = np.arange(len(node_op))
    maker = root_writers(program)[program.tensor_alias[program.read_tensor]]
    reader = program.read_op
    real = (maker >= 0) & ~program.op_view[reader] & (maker != reader)
    pairs = number[maker[real]] * max(1, len(node_op)) + number[reader[real]]
    unique = np.unique(pairs)
    return np.stack(np.divmod(unique, max(1, len(node_op)))).astype(np.int32)


def time_bound(problem: GraphOptimization) -> Bound:
    """The larger of the critical path and the work, of least costs."""
    cost, step = least_costs(problem)
    path = _critical_path(problem, cost.min(axis=1), step)
    work = shared_work(cost)
    if "placement" not in problem.tasks:
        work = max(work, _given_work(problem, cost, step))
    return Bound(path, "critical path") if path >= work else Bound(work, "work")


def shared_work(cost: Int64) -> int:
    """No assignment of steps, not even of parts of them, has a smaller largest load.

    With any weights of the devices, the sum over steps of the least weight x time, over the sum of
    the weights, is such a bound (the dual of the assignment's linear program). Equal weights are right
    for equal devices; for others, weights grow where that assignment has more than its share to do.
    """
    devices = cost.shape[1]
    capped = np.minimum(cost, _MOST_WEIGHED)
    best = _weighed_work(capped, np.ones(devices, dtype=np.int64))
    if len(cost) == 0 or (capped == capped[:, :1]).all():
        return best
    times, weight = capped.astype(np.float64), np.ones(devices)
    for turn in range(_TURNS):
        chosen = (times * weight).argmin(axis=1)
        load = np.bincount(chosen, times[np.arange(len(cost)), chosen], devices)
        weight *= np.exp((load / max(1.0, load.sum()) - 1 / devices) / (1 + turn / 8))
        whole = np.maximum(1, np.round(weight / weight.max() * _MOST_WEIGHT)).astype(np.int64)
        best = max(best, _weighed_work(capped, whole))
    return best


def _weighed_work(cost: Int64, weight: Int64) -> int:
    total = sum((cost * weight).min(axis=1, initial=2**62).tolist())
    return int(-(-total // int(weight.sum())))


def least_costs(problem: GraphOptimization, clusters: Int32 | None = None) -> tuple[Int64, Int32]:
    """([steps, D] least time of each step on each device, [n] the step of each node); with
    `clusters`, as if that fusion were given.

    Fusion given: the clusters' own times. Fusion decided: what may be fused counts its compute
    alone, everything else its own time. A device that can't run it costs what the worst does.
    """
    program, nodes = problem.program, problem.node_op
    repeat = program.op_repeat[nodes][:, None]
    if "fusion" in problem.tasks and clusters is None:
        compute, _ = compute_times(program, problem.machine)
        free = problem.touched[nodes].astype(bool)[:, None]
        cost = np.where(free, compute[nodes], problem.durations)
        cost = np.where(problem.durations < 0, np.int64(2**61), cost)
        return _times(cost, repeat), np.arange(len(nodes), dtype=np.int32)
    if clusters is None:
        clusters = problem.fuse(problem.split(problem.vector())[0])
    label = np.where(clusters >= 0, clusters, np.arange(program.n_ops))[nodes]
    _, first, step = np.unique(label, return_index=True, return_inverse=True)
    cost = problem.step_durations(clusters)[nodes[first]]
    cost = np.where(cost < 0, np.int64(2**61), cost)
    return _times(cost, repeat[first]), step.astype(np.int32)


def _times(cost: Int64, repeat: Int64) -> Int64:
    most = np.int64(2**61) // np.maximum(repeat, 1)
    return np.minimum(cost, most) * repeat


def _critical_path(problem: GraphOptimization, cost: Int64, step: Int32) -> int:
    """Longest path over steps; steps need not be in program order, so they are sorted first."""
    node = np.full(problem.program.n_ops, -1, dtype=np.int64)
    node[problem.node_op] = np.arange(problem.nodes)
    edges = np.concatenate([problem.edges, node[overwrite_waits(problem.program)]], axis=1)
    first, second = step[edges[0]], step[edges[1]]
    cross = first != second
    pairs = np.unique(first[cross].astype(np.int64) * max(1, len(cost)) + second[cross])
    before, after = np.divmod(pairs, max(1, len(cost)))
    start = np.searchsorted(before, np.arange(len(cost) + 1)).tolist()
    waits = np.bincount(after, minlength=len(cost)).tolist()
    ends, readers, own = [0] * len(cost), after.tolist(), cost.tolist()
    ready = [number for number, count in enumerate(waits) if count == 0]
    longest = 0
    while ready:
        number = ready.pop()
        end = ends[number] + own[number]
        longest = max(longest, end)
        for reader in readers[start[number] : start[number + 1]]:
            ends[reader] = max(ends[reader], end)
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    return min(longest, 2**62)


def _given_work(problem: GraphOptimization, cost: Int64, step: Int32) -> int:
    """The most that one device has to do, where devices are given."""
    device = problem.split(problem.vector())[1][problem.node_group]
    where = np.full(len(cost), -1, dtype=np.int64)
    where[step] = device  # members of a cluster are on one device
    busy = [
        int(cost[where == d, d].astype(object).sum()) if np.any(where == d) else 0
        for d in range(problem.devices)
    ]
    return max(busy, default=0)


def prove_no_fit(problem: GraphOptimization) -> str | None:
    """Persistent bytes against all homes; each step's inputs and results against the largest."""
    program, machine = problem.program, problem.machine
    homes = {machine.home[device] for device in range(problem.devices)}
    capacity = {home: machine.memories[home].capacity for home in homes}
    place = places(program)[program.tensor_alias]
    size = place_bytes(program)
    kept = np.unique(place[program.is_persistent])
    persistent, room = int(size[kept].sum()), sum(capacity.values())
    if persistent > room:
        return (
            f"weights and moments take {show_bytes(persistent)} and all devices together have "
            f"{show_bytes(room)}"
        )
    largest = max(capacity.values())
    # Ops that are steps of their own in every plan; clusters may keep results to themselves.
    alone = problem.touched == 0 if "fusion" in problem.tasks else problem.base_clusters < 0
    for op in np.flatnonzero(alone & ~program.op_view).tolist():
        used = place[np.concatenate([program.reads(op), program.writes(op)])]
        needed = int(size[np.unique(used)].sum())
        if needed > largest:
            return (
                f"op {op} '{program.op_name[op]}' needs {show_bytes(needed)} at once and the "
                f"largest device has {show_bytes(largest)}"
            )
    return None
