"""`Steps`: what a plan runs, as columns: which ops run as one, in which order, what they read and write.

A step is an op, or all ops of a fused group; views are no steps. A step is known by its *rank*: 0 is
the step with the smallest position in the plan's order, 1 the next. Tensors are roots: what an op does
to a view it does to its root.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program, TensorKind, TieKind

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_MOST_PAIRS = 2**20
"""Rows that `equal_pairs` makes at once."""


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
    inside = np.isin(read_step * tensors + read, write_step * tensors + written)
    read_kept = (members[read_step] == 1) | ~inside
    write_kept = (members[write_step] == 1) | leaves[written]
    return (
        _once(read_step[read_kept], read[read_kept], tensors),
        _once(write_step[write_kept], written[write_kept], tensors),
    )


def _once(step: Int64, tensor: Int64, tensors: int) -> _Access:
    """Each pair once, by step, in the order in which its ops name them."""
    order = np.argsort(step, kind="stable")
    _, first = np.unique(step[order] * tensors + tensor[order], return_index=True)
    kept = order[np.sort(first)]
    return step[kept], tensor[kept]


def equal_pairs(left: Int64, right: Int64) -> Iterator[tuple[Int64, Int64]]:
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
