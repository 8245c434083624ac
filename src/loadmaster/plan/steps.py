"""What a plan runs, as columns: which ops run as one, in which order, what they read and write (`Steps`),
and which residency or home serves them (`Accesses`).

A step is an op, or all ops of a fused group; views are no steps. A step is known by its *rank*: 0 is
the step with the smallest position in the plan's order, 1 the next. Tensors are roots: what an op does
to a view it does to its root.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import distinct
from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Plan
from loadmaster.program.program import PERSISTENT, Program, TensorKind, TieKind

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

AT_HOME = -1
"""In place of a row of the plan's residencies: no residency, but the home of a device."""
_NEVER = 2**63 - 1
_MOST_PAIRS = 2**20
"""Rows that `match_equal` makes at once."""


@dataclass(frozen=True)
class Steps:
    """Columns of S steps, and of the ops and tensors that they stand for."""

    op: Int64
    """[S] its smallest op, by which timelines know it"""
    position: Int64
    """[S] the smallest position of its ops"""
    device: Int64
    """[S]"""
    members: Int64
    """[S] how many ops run as one"""
    of_op: Int64
    """[n_ops] the rank of an op's step; -1: a view"""
    position_of: Int64
    """[n_ops] the position of an op in the plan's order"""
    at_or_before: Int64
    """[n_ops] by position: the rank of the last op up to there that is no view; -1: none"""
    at_or_after: Int64
    """[n_ops] by position: the rank of the first op from there on that is no view; S: none"""
    writer: Int64
    """[T] the rank of the step that writes a root; -1: none"""
    read_step: Int64
    read_tensor: Int64
    """[reads] every root that a step reads from outside, once, by rank"""
    write_step: Int64
    write_tensor: Int64
    """[writes] every root that a step writes and that leaves it, once, by rank"""

    def __len__(self) -> int:
        return len(self.op)


def find_steps(program: Program, plan: Plan) -> Steps:
    """The steps of a plan whose order is a permutation of the ops."""
    n = program.n_ops
    order = np.arange(n) if plan.order is None else plan.order.astype(np.int64)
    position_of = np.empty(n, dtype=np.int64)
    position_of[order] = np.arange(n)
    runs = order[~program.op_view[order]]
    fusion = np.full(n, -1) if plan.fusion is None else plan.fusion.astype(np.int64)
    first = rank = np.arange(len(runs))
    if (fusion[runs] >= 0).any():
        group = np.where(fusion[runs] >= 0, fusion[runs], 2**32 + runs)
        _, first, of_run = np.unique(group, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[of_run]
    of_op = np.full(n, -1, dtype=np.int64)
    of_op[runs] = rank
    op = np.full(len(first), n, dtype=np.int64)
    np.minimum.at(op, rank, runs)
    device = np.zeros(n, dtype=np.int64) if plan.device is None else plan.device.astype(np.int64)
    members = np.bincount(rank, minlength=len(op)).astype(np.int64)
    writer = _writers(program, of_op)
    reads, writes = _accesses(program, of_op, members, writer)
    return Steps(
        op,
        position_of[runs[np.sort(first)]],
        device[op],
        members,
        of_op,
        position_of,
        *_nearest_steps(of_op[order], len(op)),
        writer,
        *reads,
        *writes,
    )


def _nearest_steps(rank: Int64, count: int) -> tuple[Int64, Int64]:
    """[positions] the last rank up to each position (or -1), and the first one from it on (or `count`);
    `rank` is -1 where a view stands."""
    n, real = len(rank), rank >= 0
    before = np.maximum.accumulate(np.where(real, np.arange(n), -1))
    after = np.minimum.accumulate(np.where(real, np.arange(n), n)[::-1])[::-1]
    return np.append(rank, -1)[before], np.append(rank, count)[after]


def _writers(program: Program, of_op: Int64) -> Int64:
    """[T] by root: the step that writes the root itself; else the first one that writes a view of it."""
    real = ~program.op_view[program.write_op]
    tensor, step = program.write_tensor[real], of_op[program.write_op[real]]
    root = program.tensor_alias[tensor]
    writer = np.full(program.n_tensors, -1, dtype=np.int64)
    writer[root[::-1]] = step[::-1]
    writer[tensor[tensor == root]] = step[tensor == root]
    return writer


_Access = tuple[Int64, Int64]
"""Columns (rank, root)."""


def _accesses(program: Program, of_op: Int64, members: Int64, writer: Int64) -> tuple[_Access, _Access]:
    """What steps read and write. What a fused group makes for itself alone is neither."""
    root = program.tensor_alias.astype(np.int64)
    found = []
    for op, tensor in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor)):
        real = ~program.op_view[op]
        found.append((of_op[op[real]], root[tensor[real]]))
    (read_step, read), (write_step, written) = found
    leaves = np.zeros(program.n_tensors, dtype=np.bool_)
    leaves[root[program.tensor_kind == TensorKind.OUTPUT]] = True
    leaves[root[program.tie_target[program.tie_kind != TieKind.DONATED]]] = True
    leaves[read[writer[read] != read_step]] = True
    tensors = max(1, program.n_tensors)
    read_kept = members[read_step] == 1
    fused = np.flatnonzero(~read_kept)
    own = np.flatnonzero(members[write_step] > 1)
    inside = np.isin(read_step[fused] * tensors + read[fused], write_step[own] * tensors + written[own])
    read_kept[fused] = ~inside
    write_kept = (members[write_step] == 1) | leaves[written]
    return (
        _once(read_step[read_kept], read[read_kept], tensors),
        _once(write_step[write_kept], written[write_kept], tensors),
    )


def _once(step: Int64, tensor: Int64, tensors: int) -> _Access:
    """Each pair once, by step, in the order in which its ops name them."""
    if (step[1:] < step[:-1]).any():
        order = np.argsort(step, kind="stable")
        step, tensor = step[order], tensor[order]
    pairs = step * tensors + tensor
    ordered = np.sort(pairs)
    if (ordered[1:] == ordered[:-1]).any():
        kept = np.sort(np.unique(pairs, return_index=True)[1])
        step, tensor = step[kept], tensor[kept]
    return step, tensor


def match_equal(left: Int64, right: Int64) -> Iterator[tuple[Int64, Int64]]:
    """(rows of `left`, rows of `right`) of all pairs with equal values, by row of `left`, then of
    `right`; in portions, so that a million pairs are in memory at once and not all of them."""
    order = np.argsort(right, kind="stable")
    begin = np.searchsorted(right[order], left, side="left")
    count = np.searchsorted(right[order], left, side="right") - begin
    until = np.cumsum(count)
    low = 0
    while low < len(left):
        done = int(until[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(until, done + _MOST_PAIRS, side="right")))
        each = count[low:high]
        within = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
        yield np.repeat(np.arange(low, high), each), order[np.repeat(begin[low:high], each) + within]
        low = high


@dataclass(frozen=True)
class Transfers:
    """Tensors that go from their home to another one because a step there reads them, by tensor, then
    by device."""

    tensor: Int64
    device: Int64
    """The first device with that home."""
    step: Int64
    """The first rank that waits for it."""
    needed_by: Int64
    """The smallest op that waits for it."""


class Accesses:
    """Which memory serves every access of a plan's steps, and what has to be there for it.

    Raises `BadPlan` where a plan has numbers that mean nothing. A plan that `check` refuses for other
    reasons is described as it is.
    """

    def __init__(self, program: Program, machine: Machine, plan: Plan) -> None:
        _refuse_unreadable(program, machine, plan)
        self.program, self.machine, self.plan = program, machine, plan
        self.steps: Steps = find_steps(program, plan)
        self.root: Int64 = program.tensor_alias.astype(np.int64)
        self.is_root: Bool = self.root == np.arange(program.n_tensors)
        self.home: Int64 = np.array(machine.home, dtype=np.int64)
        self.residency_table = np.zeros((0, 5), np.int64) if plan.residencies is None else plan.residencies
        self.copy_table = np.zeros((0, 7), np.int64) if plan.copies is None else plan.copies

    @cached_property
    def windows(self) -> tuple[Int64, Int64]:
        """[residencies] the first and the last rank that each holds its bytes; first above last: none"""
        first, last = self.residency_table[:, 3], self.residency_table[:, 4]
        steps, before = self.steps, first == BEFORE
        return (
            np.where(before, -1, steps.at_or_after[steps.position_of[first]]),
            np.where(before, len(steps) - 1, steps.at_or_before[steps.position_of[last]]),
        )

    @cached_property
    def copy_ranks(self) -> tuple[Int64, Int64]:
        """[copies] the rank whose end issues it (-1: before the program), and the rank that waits for it
        (the number of steps: the end)"""
        steps, (issued_after, needed_by) = self.steps, self.copy_table[:, 3:5].T
        position = np.append(steps.position_of, [0])
        issued = np.append(steps.at_or_before, [-1])[position[issued_after]]
        needed = np.append(steps.at_or_after, [len(steps)])[position[needed_by]]
        return (
            np.where(issued_after == BEFORE, -1, issued),
            np.where(needed_by == self.program.n_ops, len(steps), needed),
        )

    def find_serving(self, step: Int64, tensor: Int64) -> tuple[Int64, Int64]:
        """(memory, row of the residency or AT_HOME) that serve accesses of steps to tensors, both by row.

        Of the residencies that are there, the one in the fastest memory serves, the first where there
        are several; without any, the home of the step's device does.
        """
        table, memories = self.residency_table, len(self.machine.memories)
        nearness = np.full((len(self.machine.devices), memories), memories)
        for number, reached in enumerate(self.machine.reach):
            for rank, memory in reversed(list(enumerate(reached))):
                nearness[number, memory] = rank
        device, position = self.steps.device[step], self.steps.position[step]
        until = self.steps.position_of[table[:, 4]]
        best = np.full(len(step), _NEVER)
        for access, row in match_equal(tensor, table[:, 0]):
            near = nearness[device[access], table[row, 1]]
            now = position[access]
            there = (self._serves_from[row] <= now) & (now <= until[row]) & (near < memories)
            np.minimum.at(best, access[there], (near * len(table) + row)[there])
        row = np.where(best == _NEVER, AT_HOME, best % max(1, len(table)))
        return np.where(row == AT_HOME, self.home[device], np.append(table[:, 1], 0)[row]), row

    @cached_property
    def _serves_from(self) -> Int64:
        """[residencies] the position from which it serves: one that copies fill, when all are there"""
        table, copies, n = self.residency_table, self.copy_table, self.program.n_ops
        position = np.append(self.steps.position_of, [n, -1])  # of the end, and of BEFORE
        first, last = position[table[:, 3]], position[table[:, 4]]
        issued, needed = position[copies[:, 3]], position[copies[:, 4]]
        ready = np.append(self.steps.position, n)[self.copy_ranks[1]]
        found = first.copy()
        memories = len(self.machine.memories)
        keys = (table[:, 0] * memories + table[:, 1], copies[:, 0] * memories + copies[:, 2])
        for row, copy in match_equal(*keys):
            fills = (copies[copy, 4] != n) & (issued[copy] >= first[row] - 1) & (needed[copy] <= last[row])
            np.maximum.at(found, row[fills], ready[copy[fills]])
        return np.where(table[:, 3] == BEFORE, BEFORE, found)

    @cached_property
    def reads(self) -> tuple[Int64, Int64]:
        """[reads] as in `Steps`: the memory and the row that serve each"""
        return self.find_serving(self.steps.read_step, self.steps.read_tensor)

    @cached_property
    def writes(self) -> tuple[Int64, Int64]:
        """[writes] as in `Steps`: the memory and the row that serve each"""
        return self.find_serving(self.steps.write_step, self.steps.write_tensor)

    @cached_property
    def near(self) -> Int64:
        """[devices] the first device with the same home: what is at home for one is so for both"""
        return np.array([self.machine.home.index(memory) for memory in self.machine.home], dtype=np.int64)

    @cached_property
    def home_device(self) -> Int64:
        """[T] where a root lives: with the step that writes it, its group, or the first op that reads it"""
        program, steps = self.program, self.steps
        home = np.zeros(program.n_tensors, dtype=np.int64)
        reader = np.full(program.n_tensors, program.n_ops, dtype=np.int64)
        np.minimum.at(reader, steps.read_tensor, steps.op[steps.read_step])
        device = np.append(np.append(steps.device, 0)[steps.of_op], 0)
        home = np.where(reader < program.n_ops, device[reader], home)
        of_group = np.full(
            int(max(program.op_group.max(initial=-1), program.tensor_group.max(initial=-1))) + 2, -1
        )
        runs = np.flatnonzero(~program.op_view & (program.op_group >= 0))[::-1]
        of_group[program.op_group[runs]] = device[runs]
        grouped = np.where(self.is_persistent, of_group[program.tensor_group], -1)
        home = np.where(grouped >= 0, grouped, home)
        home = np.where(steps.writer >= 0, np.append(steps.device, 0)[steps.writer], home)
        return np.where(self.is_root, home, 0)

    @cached_property
    def transfers(self) -> Transfers:
        """All transfers between the homes of devices"""
        steps, (_, row) = self.steps, self.reads
        device = self.near[steps.device[steps.read_step]]
        away = self.near[self.home_device[steps.read_tensor]] != device
        given = self.program.tensor_kind[steps.read_tensor] == TensorKind.INPUT
        waits = np.flatnonzero(away & (row == AT_HOME) & ~given)
        devices = len(self.machine.devices)
        key, first, of_read = np.unique(
            steps.read_tensor[waits] * devices + device[waits], return_index=True, return_inverse=True
        )
        needed_by = np.full(len(key), self.program.n_ops, dtype=np.int64)
        np.minimum.at(needed_by, of_read, steps.op[steps.read_step[waits]])
        return Transfers(key // devices, key % devices, steps.read_step[waits[first]], needed_by)

    @cached_property
    def is_persistent(self) -> Bool:
        """[T] weights and state"""
        return np.isin(self.program.tensor_kind, [int(kind) for kind in PERSISTENT])


def _refuse_unreadable(program: Program, machine: Machine, plan: Plan) -> None:
    """Columns have one entry per op, the order is a permutation, and all numbers name something."""
    n = program.n_ops
    limits = {"device": (0, len(machine.devices)), "order": (0, n), "fusion": (-1, 2**31)}
    for name, (least, above) in limits.items():
        column = getattr(plan, name)
        if column is not None:
            inside = column.shape == (n,) and bool(((column >= least) & (column < above)).all())
            if not inside or (name == "order" and len(distinct(column)) != n):
                raise _unreadable(name)
    tensors, memories = (0, program.n_tensors), (0, len(machine.memories))
    rows = {
        "residencies": (tensors, memories, (NO_OFFSET, 2**62), (BEFORE, n), (0, n)),
        "copies": (tensors, memories, memories, (BEFORE, n), (0, n + 1)),
    }
    for name, ranges in rows.items():
        table = getattr(plan, name)
        if table is not None:
            low, high = np.array(ranges, dtype=np.int64).T
            known = table[:, : len(ranges)]
            if ((known < low) | (known >= high)).any():
                raise _unreadable(name)


def _unreadable(what: str) -> BadPlan:
    return BadPlan(
        f"'{what}' of the plan names what is not there",
        object=what,
        remedy="see what 'loadmaster check' says",
    )
