"""A Mapping problem as plain arrays: what every node costs in which memories, and what must fit.

Everything is an integer (picoseconds, bytes) and agrees with the problem's own time exactly. Live
entries, pinned ones too, are numbered 0..E-1 here, memories 0..M-1 as in a map. `weights_bound` is
the lower bound that follows from these arrays with NumPy alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loadmaster import _core
from loadmaster.arrays import Bool, Float64, Int64, distinct
from loadmaster.machine.machine import Machine
from loadmaster.mapping.problem import Mapping
from loadmaster.search.problem import Bound
from loadmaster.simulate.costs import compute_times

TOO_LONG = 2**50
"""Picoseconds (19 minutes) in one map, from which on solvers' floating point is not exact."""


@dataclass(frozen=True)
class MappingModel:
    """N nodes, E live entries, M memories, A accesses, P places."""

    compute: Int64
    """[N]"""
    launch: Int64
    """[N] 0 where a cost table has the whole time."""
    repeat: Int64
    """[N] how often loops run a node."""
    fixed: Int64
    """[N] memory time of what is not decided, in memory M - 1."""
    access_start: Int64
    """[N + 1] the accesses of each node."""
    access_entry: Int64
    """[A] each entry once per node."""
    access_cost: Int64
    """[A, M] memory time of the node for that entry."""
    parallel: np.bool_
    """Memories serve a node side by side."""
    overlap: Int64
    """[N] millionths of the smaller of compute and memory time that are added to the larger."""
    capacity: Int64
    """[M]"""
    always: Int64
    """[E, M] bytes of an entry that count in every row."""
    piece_entry: Int64
    """[P] the entry of each place that is not always needed."""
    piece_first: Int64
    piece_last: Int64
    """[P] steps over which it is needed, both included."""
    piece_size: Int64
    """[P, M] its bytes."""
    pinned: Int64
    """[E] the memory that an entry must have, or -1."""

    @property
    def nodes(self) -> int:
        return len(self.compute)

    @property
    def entries(self) -> int:
        return len(self.always)

    @property
    def memories(self) -> int:
        return len(self.capacity)

    @cached_property
    def rows(self) -> list[tuple[Int64, Int64]]:
        """(entries that are alive together, their bytes [., M] beside `always`) of each capacity row; no row is
        part of another. Made when it is asked for: of long lives it is much larger than all else."""
        steps = _maximal_steps(self.piece_first, self.piece_last)
        low = np.searchsorted(steps, self.piece_first)
        count = np.searchsorted(steps, self.piece_last, side="right") - low
        piece = np.repeat(np.arange(len(count)), count)
        row = np.arange(len(piece)) + np.repeat(low - np.cumsum(count) + count, count)
        keys, where = np.unique(row * self.entries + self.piece_entry[piece], return_inverse=True)
        size = np.zeros((len(keys), self.memories), dtype=np.int64)
        np.add.at(size, where.ravel(), self.piece_size[piece])
        starts = np.searchsorted(keys, np.arange(max(1, len(steps)) + 1) * self.entries).tolist()
        return [(keys[a:b] % self.entries, size[a:b]) for a, b in itertools.pairwise(starts)]

    @property
    def access_node(self) -> Int64:
        """[A] the node of each access."""
        return np.repeat(np.arange(self.nodes), np.diff(self.access_start))

    @property
    def too_long(self) -> bool:
        """Whether the time of some map is beyond what solvers compute exactly."""
        memory = np.zeros(self.nodes)
        np.add.at(memory, self.access_node, self.access_cost.max(axis=1, initial=0).astype(np.float64))
        once = 2.0 * (memory + self.fixed + self.compute + self.launch)
        return bool((once * self.repeat).sum() >= TOO_LONG)

    def accesses(self, node: int) -> slice:
        """Where the accesses of a node are."""
        return slice(int(self.access_start[node]), int(self.access_start[node + 1]))

    def durations(self, node: int, chosen: Int64) -> Int64:
        """[B] time of one run of a node, for memories [B, k] of the entries it accesses."""
        here = self.accesses(node)
        cost = self.access_cost[here][np.arange(chosen.shape[1]), chosen]  # [B, k]
        if self.parallel:
            busy = np.zeros((len(chosen), self.memories), dtype=np.int64)
            busy[:, -1] = self.fixed[node]
            for k in range(chosen.shape[1]):
                np.add.at(busy, (np.arange(len(chosen)), chosen[:, k]), cost[:, k])
            memory = busy.max(axis=1)
        else:
            memory = cost.sum(axis=1) + self.fixed[node]
        return self.combined(node, memory)

    def combined(self, node: int, memory: Int64) -> Int64:
        """Time of one run of a node whose memory time is given."""
        compute, share = self.compute[node], self.overlap[node]
        millions, rest = np.divmod(np.minimum(compute, memory), 10**6)  # no product overflows
        extra = millions * share + -(-rest * share // 10**6)
        time: Int64 = np.maximum(1, np.maximum(compute, memory) + extra + self.launch[node])
        return time

    def time(self, chosen: Int64) -> Int64:
        """[B] time of maps [B, E], whether they fit or not."""
        total = np.zeros(len(chosen), dtype=np.int64)
        for node in range(self.nodes):
            entries = self.access_entry[self.accesses(node)]
            total += self.repeat[node] * self.durations(node, chosen[:, entries])
        return total

    def fits(self, chosen: Int64) -> Bool:
        """[B] whether maps [B, E] stay within the capacities."""
        fine = np.ones(len(chosen), dtype=np.bool_)
        for memory in range(self.memories - 1):
            there = chosen == memory
            base = there @ self.always[:, memory]
            for entries, size in self.rows:
                fine &= base + there[:, entries] @ size[:, memory] <= self.capacity[memory]
        return fine


def make_model(problem: Mapping, machine: Machine | None = None) -> MappingModel:
    """The arrays of a problem; with the rates of another description of its machine, if one is given."""
    program, entries, memories = problem.program, problem.entries, list(problem.memories)
    machine = machine or problem.machine
    device = replace(machine, devices=machine.devices[:1])
    live = np.flatnonzero(entries.live)
    number = np.full(2 * problem.nodes, -1, dtype=np.int64)
    number[live] = np.arange(len(live))
    compute, named = compute_times(program, device)
    in_table = named[entries.node_op, 0] == 1
    costs = _access_costs(problem, machine, in_table)
    fixed = np.where(
        in_table,
        0,
        _times(
            machine,
            memories[-1:],
            program.op_other_bytes[entries.node_op],
            np.zeros(problem.nodes, dtype=np.bool_),
        )[:, 0],
    )
    np.add.at(fixed, costs.node[costs.entry < 0], costs.cost[costs.entry < 0, -1])
    decided = costs.entry >= 0
    pairs, where = np.unique(
        np.stack([costs.node[decided], number[costs.entry[decided]]]), axis=1, return_inverse=True
    )
    access_cost = np.zeros((pairs.shape[1], len(memories)), dtype=np.int64)
    np.add.at(access_cost, where.ravel(), costs.cost[decided])
    entry = number[np.repeat(np.arange(2 * problem.nodes), np.diff(entries.piece_start))]
    always = np.zeros((len(live), len(memories)), dtype=np.int64)
    np.add.at(always, entry[entries.piece_always], entries.piece_size[entries.piece_always])
    loose = ~entries.piece_always
    return MappingModel(
        compute=np.minimum(compute[entries.node_op, 0], TOO_LONG),
        launch=np.where(in_table, 0, device.devices[0].launch),
        repeat=program.op_repeat[entries.node_op].astype(np.int64),
        fixed=fixed,
        access_start=np.searchsorted(pairs[0], np.arange(problem.nodes + 1)).astype(np.int64),
        access_entry=pairs[1],
        access_cost=access_cost,
        parallel=np.bool_(device.rules.ports == "parallel"),
        overlap=np.where(in_table, 0, device.rules.overlap),
        capacity=np.array([problem.machine.memories[m].capacity for m in memories], dtype=np.int64),
        always=always,
        piece_entry=entry[loose],
        piece_first=entries.piece_first[loose].astype(np.int64),
        piece_last=entries.piece_last[loose].astype(np.int64),
        piece_size=entries.piece_size[loose],
        pinned=problem.pinned[live].astype(np.int64),
    )


class _Accesses(NamedTuple):
    node: Int64
    entry: Int64
    """-1: not decided."""
    cost: Int64
    """[., M]"""


def _access_costs(problem: Mapping, machine: Machine, in_table: Bool) -> _Accesses:
    """Every read and write, one by one: each is rounded up on its own."""
    program, entries = problem.program, problem.entries
    op = np.concatenate([program.read_op, program.write_op])
    tensor = np.concatenate([program.read_tensor, program.write_tensor])
    size = np.concatenate([program.read_bytes, program.write_bytes])
    write = np.repeat([False, True], [len(program.read_op), len(program.write_op)])
    real = ~program.op_view[op]
    node = (np.cumsum(~program.op_view) - 1)[op[real]]
    cost = _times(machine, problem.memories, size[real], write[real])
    cost[in_table[node], 0] = 0  # the table has it: only slower memories add to it
    return _Accesses(node, entries.of_tensor[program.tensor_alias[tensor[real]]].astype(np.int64), cost)


def _times(machine: Machine, memories: Sequence[int], size: Int64, write: Bool) -> Int64:
    """[., memories] picoseconds of accesses."""
    columns = []
    for memory in (machine.memories[number] for number in memories):
        rate = np.where(write, memory.write, memory.read).astype(np.int64)
        time = _core.ceil_times(np.ascontiguousarray(size, dtype=np.int64), rate)
        columns.append(np.where(size > 0, np.minimum(time, TOO_LONG) + memory.latency, 0))
    return np.stack(columns, axis=1)


def _maximal_steps(first: Int64, last: Int64) -> Int64:
    """Steps whose set of live intervals is in no other's: where one ends after one has begun."""
    ends = distinct(last)
    begun = np.searchsorted(np.sort(first), ends, side="right")
    return ends[np.diff(begun, prepend=0) > 0]


ROUNDS, STEPS = 6, 40
"""Of the search for good prices: over all directions, and along one."""
MANY_NODES = 20_000
"""From so many on it is worth a sort to find those that are alike."""
SAFETY = 1e-9
"""Of floating point: sums of a million numbers are far more exact than this."""
_NEVER = 1e30


def weights_bound(problem: Mapping) -> Bound:
    """The problem's own bound, or the one of prices for room if it is higher.

    All weights in a memory fit it together. Let a byte of weights in memory m cost a price p_m: the
    time of a map plus the price of its weights, less the price of the whole memory, is never above
    its time. With prices fixed every node can choose for itself, so the least of that sum is quick to
    find; any prices give a bound, and good ones are searched for. Activations are taken to be where
    they cost least, and weights that several nodes read to be paid for by the first: both only lower
    the bound.
    """
    own = problem.bound()
    model = make_model(problem)
    if not problem.repeatable or model.parallel or model.too_long or not model.entries:
        return own
    time, size, count = _alike(*_node_choices(model))
    room = model.capacity[:-1].astype(np.float64)
    prices = np.zeros(len(room))

    def dual(at: Float64) -> float:
        paid = np.append(at, 0.0)
        return float((time + paid * size).min(axis=1) @ count - at @ room)

    # All together first: a price for one memory alone only drives weights into the next.
    heads = [np.arange(len(room)) <= last for last in range(len(room) - 1, -1, -1)]
    directions = [direction.astype(np.float64) for direction in (*heads, *np.eye(len(room)))]
    dearest = max((_highest_price(time, size, memory) for memory in range(len(room))), default=0.0)
    for _ in range(ROUNDS):
        for direction in directions:
            prices = _ascend(dual, prices, direction, dearest)
    found = int(dual(prices) * (1 - SAFETY)) - 1
    return max(own, Bound(found, "prices for room, activations left out"), key=lambda b: b.value)


def _node_choices(model: MappingModel) -> tuple[Float64, Float64]:
    """([N, M] time of each node by the memory of its own weights, [N, M] their bytes)."""
    node = model.access_node
    cost = model.access_cost.astype(np.float64)
    pinned = model.pinned[model.access_entry]
    barred = (pinned[:, None] >= 0) & (np.arange(model.memories) != pinned[:, None])
    cost[barred] = _NEVER
    own = _owned(model, node)
    memory = model.fixed.astype(np.float64)
    np.add.at(memory, node[~own], cost[~own].min(axis=1))
    by_choice = np.repeat(memory[:, None], model.memories, axis=1)
    by_choice[node[own]] += cost[own]
    size = np.zeros_like(by_choice)
    size[node[own]] = model.always[model.access_entry[own]]
    small = np.minimum(model.compute[:, None], by_choice)
    large = np.maximum(model.compute[:, None], by_choice)
    once = large + small * (model.overlap[:, None] / 10**6) + model.launch[:, None]
    return np.maximum(1.0, once) * model.repeat[:, None], size


def _alike(time: Float64, size: Float64) -> tuple[Float64, Float64, Float64]:
    """The nodes of a large program with each choice once, and how many have it: layers are alike."""
    count = np.ones(len(time))
    if len(time) > MANY_NODES:
        rows, times = np.unique(np.hstack([time, size]), axis=0, return_counts=True)
        time, size, count = *np.hsplit(rows, 2), times.astype(np.float64)
    return time, size, count


def _owned(model: MappingModel, node: Int64) -> Bool:
    """[A] accesses to weights by their first reader, at most one (the largest) for a node."""
    bytes_ = model.always[model.access_entry, -1]
    own = np.zeros(len(node), dtype=np.bool_)
    weights = np.flatnonzero(bytes_ > 0)
    _, first = np.unique(model.access_entry[weights], return_index=True)
    candidates = weights[first]  # accesses stand in the order of their nodes
    by_size = candidates[np.lexsort((-bytes_[candidates], node[candidates]))]
    _, largest = np.unique(node[by_size], return_index=True)
    own[by_size[largest]] = True
    return own


def _highest_price(time: Float64, size: Float64, memory: int) -> float:
    """A price at which no node gains from a byte of a memory."""
    held = size[:, memory] > 0
    worst = time[held].max(axis=1)
    gain = np.where(worst >= _NEVER, 0.0, worst - time[held, memory])
    return float((gain / size[held, memory]).max(initial=0.0))


def _ascend(dual: Callable[[Float64], float], prices: Float64, direction: Float64, most: float) -> Float64:
    """Better prices along one direction, by ternary search: the dual is concave."""
    low, high = -float(prices[direction > 0].min()), most  # no price is below 0
    for _ in range(STEPS):
        third = (high - low) / 3
        if dual(prices + (low + third) * direction) < dual(prices + (high - third) * direction):
            low += third
        else:
            high -= third
    best = np.maximum(0.0, prices + (low + high) / 2 * direction)
    return best if dual(best) > dual(prices) else prices
