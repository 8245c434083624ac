"""`Plan`: the decisions, by op and tensor index. What is not decided has a stated default.

| field | default |
| --- | --- |
| device | device 0 runs every op |
| order, queue | program order, run exactly so |
| fusion | no op is fused |
| residencies | a tensor lives in its home: the last memory of the device that makes it |
| copies | none |
| transfers | booked when a tensor is made, by tensor, then by destination |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.program.program import PERSISTENT, Program, TensorKind, TieKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

QUEUES = ("order", "ready", "fifo", "priority")
"""How a device picks its next op. 'order': the plan's order, waiting when it must. The others
never wait while an op is ready: 'ready' takes the first in the plan's order, 'fifo' the one
that became ready first, 'priority' the largest priority."""
TIES = ("fifo", "critical_path")
"""Among equal priorities: the one ready first, or the longest path to the end, then fifo."""

NO_OFFSET = -1
BEFORE = -1
"""As an op: before the program starts."""
WHOLE = -1
"""As a byte range: the whole tensor."""


MOST_BYTE = 2**61 - 1
"""The largest offset and the largest end of a byte range: with a size added, the simulator's integers
still hold it. Plan files, the simulators and the checker have this one limit."""


class Residency(NamedTuple):
    """`tensor` occupies `memory` from op `first` to op `last`, both included.

    `first = BEFORE`: it is there before the program starts and stays to the end (a weight in
    its place between runs). `offset = NO_OFFSET`: somewhere; only its bytes count.
    """

    tensor: int
    memory: int
    offset: int
    first: int
    last: int


class Copy(NamedTuple):
    """Bytes [low, high) of `tensor` go from `source` to `target`: issued when op `issued_after`
    has ended (or `BEFORE`), done before op `needed_by` starts (n_ops: before the end)."""

    tensor: int
    source: int
    target: int
    issued_after: int
    needed_by: int
    low: int = WHOLE
    high: int = WHOLE


class Transfer(NamedTuple):
    """A tensor's way to another device."""

    tensor: int
    device: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Decisions for one program on one machine. Tables are int64, one row per entry."""

    device: Int32 | None = None
    """[n_ops]"""
    order: Int32 | None = None
    """[n_ops] op indices in the order they run"""
    queue: str = "order"
    priority: npt.NDArray[np.float64] | None = None
    """[n_ops], for the queue 'priority'; a fused group has its largest"""
    tie: str = "fifo"
    fusion: Int32 | None = None
    """[n_ops] group of each op, or -1: alone"""
    residencies: Int64 | None = None
    """[r, 5], columns as in `Residency`"""
    copies: Int64 | None = None
    """[c, 7], columns as in `Copy`"""
    transfers: Int64 | None = None
    """[x, 2], columns as in `Transfer`: each engine serves them in this order"""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @classmethod
    def of(
        cls,
        *,
        residencies: Iterable[Residency | tuple[int, ...]] = (),
        copies: Iterable[Copy | tuple[int, ...]] = (),
        transfers: Iterable[Transfer | tuple[int, ...]] | None = None,
        device: npt.ArrayLike | None = None,
        order: npt.ArrayLike | None = None,
        fusion: npt.ArrayLike | None = None,
        priority: npt.ArrayLike | None = None,
        queue: str = "order",
        tie: str = "fifo",
    ) -> Plan:
        """A plan from plain lists."""

        def column(values: npt.ArrayLike | None) -> Int32 | None:
            return None if values is None else np.array(values, dtype=np.int32)

        full = [(*row, *(WHOLE,) * (7 - len(row))) for row in copies]
        return cls(
            device=column(device),
            order=column(order),
            queue=queue,
            priority=None if priority is None else np.array(priority, dtype=np.float64),
            tie=tie,
            fusion=column(fusion),
            residencies=_table(list(residencies), 5),
            copies=_table(full, 7),
            transfers=None if transfers is None else _rows(list(transfers), 2),
        )

    def changed(self, **decisions: Any) -> Plan:
        """The same plan with some decisions replaced."""
        return replace(self, **decisions)

    @cached_property
    def residency_rows(self) -> list[Residency]:
        """The residencies, one by one."""
        rows = [] if self.residencies is None else self.residencies.tolist()
        return [Residency(*row) for row in rows]

    @cached_property
    def copy_rows(self) -> list[Copy]:
        """The copies, one by one."""
        rows = [] if self.copies is None else self.copies.tolist()
        return [Copy(*row) for row in rows]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the decisions."""
        digest = hashlib.sha256(b"loadmaster plan 1")
        for field in fields(self):
            value = getattr(self, field.name)
            digest.update(field.name.encode())
            if isinstance(value, np.ndarray):
                digest.update(repr(value.shape).encode())
                digest.update(value.astype(value.dtype.newbyteorder("<")).tobytes())
            else:
                digest.update(repr(value).encode())
        return digest.hexdigest()


def _rows(rows: list[Any], width: int) -> Int64:
    try:
        return np.array(rows, dtype=np.int64).reshape(len(rows), width)
    except OverflowError:
        raise BadPlan(
            "the plan has a number beyond 2^63",
            object="plan",
            remedy=f"offsets and byte ranges end at {MOST_BYTE}",
        ) from None


def _table(rows: list[Any], width: int) -> Int64 | None:
    return _rows(rows, width) if rows else None


HOME = -1
"""As a memory: undecided, so its home."""


def lifetimes(
    program: Program, order: npt.NDArray[np.int32] | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(first op, last op) at which each root must be somewhere; weights and state: all ops. With an
    order of the ops, the positions in it.

    Views count as their root; outputs live to the end; inputs from the start. A root that
    nobody touches has last < first.
    """
    n, root = program.n_ops, program.tensor_alias
    at = np.zeros(n + 1, dtype=np.int64)  # the last one: no op makes it, it is there at the start
    at[slice(n) if order is None else order] = np.arange(n)
    first = at[program.producer]
    last = np.full(program.n_tensors, -1, dtype=np.int64)
    for tensors, ops in ((program.write_tensor, program.write_op), (program.read_tensor, program.read_op)):
        real = ~program.op_view[ops]
        np.maximum.at(last, root[tensors[real]], at[ops[real]])
    outputs = root[program.tensor_kind == TensorKind.OUTPUT]
    last[outputs[program.tensor_kind[outputs] != TensorKind.INPUT]] = n - 1
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    first[kept], last[kept] = 0, n - 1
    return first, last


def lifetimes_in_loops(program: Program) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`lifetimes`, and what a loop carries stays to the loop's last op: the next iteration finds
    it there."""
    first, last = lifetimes(program)
    carried = np.flatnonzero(program.tie_kind == TieKind.CARRIED)
    if len(carried):
        end = np.full(program.n_loops + 1, -1, dtype=np.int64)  # the last one: outside every loop
        np.maximum.at(end, program.op_loop, np.arange(program.n_ops))
        for loop in range(program.n_loops - 1, -1, -1):  # parents come before their loops
            end[program.loop_parent[loop]] = max(end[program.loop_parent[loop]], end[loop])
        for tensors in (program.tie_source, program.tie_target):
            root = program.tensor_alias[tensors[carried]]
            # An input that a loop starts with is used, though no op may read it under its own name.
            used = (last[root] >= first[root]) | (program.tensor_kind[root] == TensorKind.INPUT)
            np.maximum.at(last, root[used], end[program.tie_at[carried[used]]])
    return first, last


def static_plan(
    program: Program,
    machine: Machine,
    memory: npt.ArrayLike,
    offset: npt.ArrayLike | None = None,
    *,
    in_loops: bool = False,
) -> Plan:
    """The plan that keeps root t in `memory[t]` (or at home) for its whole life, in program order.

    Weights and state are in place before the program starts. Inputs stay at home. `in_loops`: lives
    are those of `lifetimes_in_loops`, which the checker wants of what a loop carries.
    """
    first, last = lifetimes_in_loops(program) if in_loops else lifetimes(program)
    chosen, kind = np.asarray(memory, dtype=np.int64), program.tensor_kind
    kept = (chosen >= 0) & program.is_root & (kind != TensorKind.INPUT) & (last >= first)
    tensor = np.flatnonzero(kept)
    persistent = np.isin(kind[tensor], [int(each) for each in PERSISTENT])
    where = np.full(len(tensor), NO_OFFSET) if offset is None else np.asarray(offset, dtype=np.int64)[tensor]
    begin = np.where(persistent, BEFORE, first[tensor])
    rows = np.stack([tensor, chosen[tensor], where, begin, last[tensor]], axis=1)
    return Plan(residencies=rows if len(rows) else None)
