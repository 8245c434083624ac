"""No plan is faster than this, and sometimes: no plan fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster import _core
from loadmaster.arrays import Int32, Int64, distinct
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
_MOST_PART = np.int64(1 << 58)
"""Longer parts of a time count as this much, so that sums stay exact."""
_UNABLE = np.int64(1 << 61)
_CANNOT_RUN = 2


def find_edges(program: Program, node_op: Int32) -> Int32:
    """[2, E] pairs (producer, reader) of nodes; views are seen through."""
    number = np.full(program.n_ops, -1, dtype=np.int64)
    number[node_op] = np.arange(len(node_op))
    maker = root_writers(program)[program.tensor_alias[program.read_tensor]]
    reader = program.read_op
    real = (maker >= 0) & ~program.op_view[reader] & (maker != reader)
    pairs = number[maker[real]] * max(1, len(node_op)) + number[reader[real]]
    unique = distinct(pairs)
    return np.stack(np.divmod(unique, max(1, len(node_op)))).astype(np.int32)


def time_bound(problem: GraphOptimization) -> Bound:
    """The largest of three times that no plan beats: the critical path, the work shared by all
    devices, and heads of a chain of steps, by the work between any two of them.

    *Fusion given.* Steps and their times are known, each the least over devices.

    *Fusion decided* (`_core.Fusion.forced`). Clusters are as `GraphOptimization.outside` and `check`
    allow, connected or not:

    1. The steps of a plan make no circle, so a cluster that holds two ops holds all ops on every path
       between them. An edge whose ends share no cluster (one is a barrier, they are in two loops, the
       reader may not read that result inside) is *cut*; then no cluster holds an op before it together
       with one behind it. Ops parted like this are *apart*.
    2. A result that is kept, or read by a barrier or by an op apart from its maker, leaves its cluster.
       Results that leave one cluster have one loop size, so makers of results that leave with two sizes
       are apart too, and one that makes both kinds is alone. This is repeated while it finds more.
    3. Every cluster writes what leaves it. It reads every tensor that a member needs and no member
       makes, once. Each write is paid for by its op. Each read is paid for by one op among those that
       may share it, and again by later ones that are apart from the last that paid: these are pairwise
       apart. What the members of a cluster pay for is then never more than it reads and writes.
    4. A step takes launch + max(c + o m, m + o c), with c, m the sums of its members' compute and memory
       times and o the share that is not hidden: at least the sum over members by either measure. A
       path's stretch between two cut edges takes at least one launch and the larger of its two sums.

    *Chain* (`_core.least_time`). Let u and v be steps of one op, u before v. A step with a member that
    comes after u and before v runs between the end of u and the start of v. So that time is at least
    the sum of what members between them take (the larger of both measures, and a launch for each 64 of
    them), divided by the number of devices; and at least the sum of all steps of one placement group
    between them, because one device runs these.

    *Moves* (also `_core.least_time`). By one measure the members of a step fit one after another into
    its time. So every plan is also a schedule of single nodes: each on a device, after what it waits for,
    and behind a transfer from there where that is another device. Say u runs on A and v on B. On every path
    from u to a node that is not on A, something leaves A: the node starts no sooner after u than the
    largest, over what it waits for, of the lesser of two times: it was still on A and is moved now, or
    it was not. Within a group nothing is moved. Likewise from the end of a node that is not on B to v.
    So a time between u and v is enough only if, for A = B or else for A ≠ B: every group between them
    (and every other node) has a device on which its way there, its work and its way back fit; groups
    with one such device alone fit there one after another; and all fit on A, B and the others, which
    have nothing to do before the first way there ends and after the last way back begins. The least
    such time is found by bisection, as more time never hurts.
    """
    columns, costs = _timed(problem)
    path, chain, _ = _core.least_time(columns)
    work = max(shared_work(cost) for cost in costs)
    if "placement" not in problem.tasks:
        work = max(work, _given_work(problem, *least_costs(problem)))
    best = max(path, work, chain)
    if best == path:
        return Bound(path, "critical path")
    return Bound(work, "work") if best == work else Bound(chain, "work between steps of a chain")


def _timed(problem: GraphOptimization) -> tuple[dict[str, Any], list[Int64]]:
    """(columns of `_core.least_time`, [nodes, D] times of the nodes by each measure)."""
    if "fusion" in problem.tasks:
        forced = problem.forced
        group = np.where(forced["alone"] != 0, problem.op_group, -1)
        columns = {name: forced[name] for name in ("prev_start", "prev", "cut")}
        compute, memory, launch = _least_parts(problem, forced)
        place = np.arange(len(compute))
    else:
        compute, step = least_costs(problem)
        rank, columns = _step_order(problem, len(compute), step)
        place = np.full(problem.program.n_ops, -1)
        place[problem.node_op] = rank[step]
        # Of a cluster the first op with a hard group decides, else its first.
        leads = np.lexsort((np.arange(len(step)), problem.hard[problem.node_op] < 0))[::-1]
        group = np.empty(len(compute), dtype=np.int64)
        group[rank[step[leads]]] = problem.node_group[leads]
        compute = memory = compute[np.argsort(rank)]
        launch = np.zeros_like(compute)
        forced = {"alone": np.ones(len(compute), dtype=np.int8)}
    columns |= {
        "move": _moves(problem, place, columns["prev_start"], columns["prev"]),
        "single": forced["alone"],
        "compute": compute.min(axis=1),
        "memory": memory.min(axis=1),
        "launch": launch.min(axis=1),
        "group": group.astype(np.int32),
        "devices": problem.devices,
    }
    return columns, [compute, memory]


def _least_parts(problem: GraphOptimization, forced: dict[str, Any]) -> tuple[Int64, Int64, Int64]:
    """[n_ops, D] ps of compute, of memory, and to launch: what the step of each op takes on its account.
    An op that is alone takes its own time, by both measures."""
    program, machine = problem.program, problem.machine
    compute, named = compute_times(program, machine)
    memory = np.zeros_like(compute)
    launch = np.zeros_like(compute)
    other = program.op_other_bytes
    for number, device in enumerate(machine.devices):
        home = machine.memories[machine.home[number]]
        accesses = forced["reads"] + forced["writes"] + (other > 0)
        parts = [_at_least(forced["read"], home.read), _at_least(other, home.read)]
        parts += [_at_least(forced["write"], home.write), np.minimum(accesses * home.latency, _MOST_PART)]
        # What the cost table names waits for no memory and no launch, if its whole cluster is named.
        memory[:, number] = np.where(named[:, number] == 0, sum(parts), 0)
        launch[:, number] = np.where(named[:, number] == 0, device.launch, 0)
    compute = np.minimum(compute, _MOST_PART)
    by_compute = compute + _share(memory, machine.rules.overlap)
    by_memory = memory + _share(compute, machine.rules.overlap)
    own = problem.step_durations(np.full(program.n_ops, -1, dtype=np.int32))
    alone = forced["alone"].astype(bool)[:, None]
    found = []
    for part, single in ((by_compute, own), (by_memory, own), (launch, np.zeros_like(own))):
        part = np.where(named == _CANNOT_RUN, _UNABLE, np.where(alone, single, part))
        part[program.op_view] = 0
        found.append(_times(part, program.op_repeat[:, None]))
    return found[0], found[1], found[2]


def _moves(problem: GraphOptimization, place: Int64, start: Int64, prev: Int32) -> Int64:
    """[prev] ps that the largest tensor between two nodes takes over the fastest link, if they are on
    two devices; `place`: the node of each op. 0 for what only waits, or where devices share a memory."""
    program, machine = problem.program, problem.machine
    homes = [machine.home[device] for device in range(problem.devices)]
    found = np.zeros(len(prev), dtype=np.int64)
    if len(set(homes)) < len(homes) or not len(prev):
        return found
    least = np.full(program.n_tensors, _UNABLE)
    for ends, number in machine.link_between.items():
        if ends[0] in homes and ends[1] in homes and ends[0] != ends[1]:
            link = machine.links[number]
            size = np.ascontiguousarray(program.storage_bytes)
            once = _core.ceil_times(size, np.full(len(size), link.bandwidth, dtype=np.int64))
            least = np.minimum(least, np.minimum(once, _MOST_PART) + min(link.latency, int(_MOST_PART)))
    root = program.tensor_alias[program.read_tensor]
    maker, reader = root_writers(program)[root], program.read_op
    real = (maker >= 0) & ~program.op_view[reader]
    root, maker, reader = root[real], maker[real], reader[real]
    nodes = len(start) - 1
    of_read = place[maker] * nodes + place[reader]
    of_edge = prev.astype(np.int64) * nodes + np.repeat(np.arange(nodes), np.diff(start))
    order = np.argsort(of_edge)
    at = np.minimum(np.searchsorted(of_edge, of_read, sorter=order), len(order) - 1)
    known = of_edge[order[at]] == of_read
    time = _times(np.maximum(least[root], 1), program.op_repeat[maker])
    np.maximum.at(found, order[at[known]], time[known])
    return found


def _at_least(size: Int64, rate: int) -> Int64:
    """ps of bytes, rounded down: parts of one access are rounded up together."""
    up = _core.ceil_times(np.ascontiguousarray(size), np.full(len(size), rate, dtype=np.int64))
    return np.minimum(np.maximum(up - 1, 0), _MOST_PART)


def _share(times: Int64, millionths: int) -> Int64:
    whole, rest = np.divmod(times, 10**6)
    return np.asarray(whole * millionths + rest * millionths // 10**6)


def _step_order(problem: GraphOptimization, steps: int, step: Int32) -> tuple[Int64, dict[str, Any]]:
    """([steps] place of each in an order that keeps to all edges, edges of the steps in that order).
    Steps need not be in program order."""
    node = np.full(problem.program.n_ops, -1, dtype=np.int64)
    node[problem.node_op] = np.arange(problem.nodes)
    edges = np.concatenate([problem.edges, node[overwrite_waits(problem.program)]], axis=1)
    first, second = step[edges[0]].astype(np.int64), step[edges[1]].astype(np.int64)
    cross = first != second
    before, after = np.divmod(distinct(first[cross] * max(1, steps) + second[cross]), max(1, steps))
    start = np.searchsorted(before, np.arange(steps + 1)).tolist()
    waits, readers = np.bincount(after, minlength=steps).tolist(), after.tolist()
    ready = [number for number, count in enumerate(waits) if count == 0]
    rank = np.zeros(steps, dtype=np.int64)
    for place, number in enumerate(ready):  # grows
        rank[number] = place
        for reader in readers[start[number] : start[number + 1]]:
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    order = np.lexsort((rank[before], rank[after]))
    counts = np.bincount(rank[after], minlength=steps)
    return rank, {
        "prev_start": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "prev": rank[before][order].astype(np.int32),
        "cut": np.ones(len(order), dtype=np.int8),
    }


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

    Fusion given: the clusters' own times. Fusion decided: what an op's step takes on its account, by the
    measure with the larger sum. A device that can't run it costs what the worst does.
    """
    program, nodes = problem.program, problem.node_op
    if "fusion" in problem.tasks and clusters is None:
        compute, memory, _ = _least_parts(problem, problem.forced)
        larger = max(
            compute[nodes], memory[nodes], key=lambda cost: float(cost.min(axis=1, initial=_UNABLE).sum())
        )
        return larger, np.arange(len(nodes), dtype=np.int32)
    if clusters is None:
        clusters = problem.fuse(problem.split(problem.vector())[0])
    label = np.where(clusters >= 0, clusters, np.arange(program.n_ops))[nodes]
    _, first, step = np.unique(label, return_index=True, return_inverse=True)
    cost = problem.step_durations(clusters)[nodes[first]]
    cost = np.where(cost < 0, _UNABLE, cost)
    return _times(cost, program.op_repeat[nodes[first]][:, None]), step.astype(np.int32)


def _times(cost: Int64, repeat: Int64) -> Int64:
    most = _UNABLE // np.maximum(repeat, 1)
    return np.minimum(cost, most) * repeat


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
    kept = distinct(place[program.is_persistent])
    persistent, room = int(size[kept].sum()), sum(capacity.values())
    if persistent > room:
        return (
            f"weights and moments take {show_bytes(persistent)} and all devices together have "
            f"{show_bytes(room)}"
        )
    largest = max(capacity.values())
    # Ops that are steps of their own in every plan; clusters may keep results to themselves.
    alone = problem.touched == 0 if "fusion" in problem.tasks else problem.base_clusters < 0
    judged = alone & ~program.op_view
    used = [
        op[judged[op]].astype(np.int64) * program.n_tensors + place[tensor[judged[op]]]
        for op, tensor in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor))
    ]
    op, at = np.divmod(distinct(np.concatenate(used)), max(1, program.n_tensors))
    needed = np.zeros(program.n_ops, dtype=np.int64)
    np.add.at(needed, op, size[at])
    for first in np.flatnonzero(needed > largest)[:1].tolist():
        return (
            f"op {first} '{program.op_name[first]}' needs {show_bytes(int(needed[first]))} at once and the "
            f"largest device has {show_bytes(largest)}"
        )
    return None
