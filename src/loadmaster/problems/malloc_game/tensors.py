"""Which tensors a game decides about, and what it costs to move them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.machine.machine import Machine
from loadmaster.program.hazards import places
from loadmaster.program.program import GIVEN, Program, TensorKind, TieKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]

NEVER = -1
"""As the time of a copy: there is no link."""


@dataclass(frozen=True, eq=False)
class Tensors:
    """B tensors, by row."""

    root: Int32
    """[B] its number in the program"""
    of_root: Int32
    """[T] its row, or -1: not decided"""
    size: Int64
    """[B] bytes it takes in fast memory: of its place, aligned"""
    copy_in: Int64
    """[B] picoseconds of a copy from slow to fast with nothing beside it; NEVER: no link"""
    copy_out: Int64
    given: Int8
    """[B] no step writes it: slow memory has it from the start"""
    output: Int8
    """[B] slow memory must have it at the end"""
    over: Int32
    """[B] the tensor that its producing step overwrites with it in place, or -1"""
    carried: Int32
    """[B] the group of tensors that loops carry in one place, or -1"""

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """What the native core reads."""
        return {
            "tensor_size": self.size,
            "tensor_in": self.copy_in,
            "tensor_out": self.copy_out,
            "tensor_given": self.given,
            "tensor_output": self.output,
            "tensor_over": self.over,
            "tensor_carried": self.carried,
        }


def find_tensors(program: Program, machine: Machine, fast: int) -> Tensors:
    """The roots that some step accesses, that fit, and that may leave slow memory."""
    root, place = program.tensor_alias, places(program)
    place_of = place[root]
    memory = machine.memories[fast]
    place_size = np.zeros(program.n_tensors, dtype=np.int64)
    np.maximum.at(place_size, place_of, program.storage_bytes)
    size = -(-place_size[place_of] // memory.alignment) * memory.alignment
    barred = _barred_places(program, place_of)
    decided = _accessed(program) & (root == np.arange(program.n_tensors))
    decided &= ~barred[place_of] & (size <= memory.capacity) & (program.storage_bytes > 0)
    rows = np.flatnonzero(decided).astype(np.int32)
    of_root = np.full(program.n_tensors, -1, dtype=np.int32)
    of_root[rows] = np.arange(len(rows))
    output = np.zeros(program.n_tensors, dtype=np.int8)
    output[root[program.tensor_kind == TensorKind.OUTPUT]] = 1
    home = machine.memories[machine.home[0]]
    over, carried = _ties(program, of_root, place_of)
    return Tensors(
        root=rows,
        of_root=of_root,
        size=size[rows],
        copy_in=_copy_times(program, machine, rows, machine.home[0], fast, home.read),
        copy_out=_copy_times(program, machine, rows, fast, machine.home[0], home.write),
        given=np.isin(program.tensor_kind[rows], [int(kind) for kind in GIVEN]).astype(np.int8),
        output=output[rows],
        over=over,
        carried=carried,
    )


def _accessed(program: Program) -> npt.NDArray[np.bool_]:
    """[T] whether a step reads or writes the root."""
    found = np.zeros(program.n_tensors, dtype=bool)
    for op, tensor in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor)):
        found[program.tensor_alias[tensor[~program.op_view[op]]]] = True
    return found


def _barred_places(program: Program, place_of: Int32) -> npt.NDArray[np.bool_]:
    """[T] places with a tensor that must stay in slow memory: all tensors of a place share a fate."""
    root = program.tensor_alias
    barred = np.zeros(program.n_tensors, dtype=bool)
    barred[place_of[~program.tensor_fast | (program.storage_bytes == 0)]] = True
    # A step that reads what it writes has no moment at which to decide about it.
    written = set(zip(program.write_op.tolist(), root[program.write_tensor].tolist(), strict=True))
    for op, tensor in zip(program.read_op.tolist(), root[program.read_tensor].tolist(), strict=True):
        if (op, tensor) in written and not program.op_view[op]:
            barred[place_of[tensor]] = True
    # Two results over one tensor, or one result over two: nobody could say who is continued. Nor is
    # a tensor continued by an op that writes over it without reading it.
    inplace = program.tie_kind == TieKind.INPLACE
    reads = set(zip(program.read_op.tolist(), root[program.read_tensor].tolist(), strict=True))
    for op, tensor in zip(
        program.tie_at[inplace].tolist(), root[program.tie_source[inplace]].tolist(), strict=True
    ):
        if (op, tensor) not in reads:
            barred[place_of[tensor]] = True
    for ends in (program.tie_source[inplace], program.tie_target[inplace]):
        roots, counts = np.unique(root[ends], return_counts=True)
        barred[place_of[roots[counts > 1]]] = True
    # What a loop carries from or to a tensor that nobody accesses has no step at which it enters.
    carried, accessed = program.tie_kind == TieKind.CARRIED, _accessed(program)
    for ends in (root[program.tie_source[carried]], root[program.tie_target[carried]]):
        barred[place_of[ends[~accessed[ends]]]] = True
    # A given tensor that comes back as an output under a view is the caller's own memory.
    views = (program.tensor_kind == TensorKind.OUTPUT) & (root != np.arange(program.n_tensors))
    given = np.isin(program.tensor_kind, [int(kind) for kind in GIVEN])
    barred[place_of[root[views & given[root]]]] = True
    return barred


def _ties(program: Program, of_root: Int32, place_of: Int32) -> tuple[Int32, Int32]:
    """(over[B], carried[B]) in rows."""
    rows = int(of_root.max(initial=-1)) + 1
    over = np.full(rows, -1, dtype=np.int32)
    carried = np.full(rows, -1, dtype=np.int32)
    root = program.tensor_alias
    reads = set(zip(program.read_op.tolist(), root[program.read_tensor].tolist(), strict=True))
    groups: dict[int, int] = {}
    for kind, source, target, at in zip(
        program.tie_kind.tolist(),
        root[program.tie_source].tolist(),
        root[program.tie_target].tolist(),
        program.tie_at.tolist(),
        strict=True,
    ):
        if of_root[source] < 0 or of_root[target] < 0 or source == target:
            continue
        if kind == TieKind.INPLACE and (at, source) in reads:
            over[of_root[target]] = of_root[source]
        elif kind == TieKind.CARRIED:
            groups.setdefault(int(place_of[source]), len(groups))
    for tensor in np.flatnonzero(of_root >= 0).tolist():
        carried[of_root[tensor]] = groups.get(int(place_of[tensor]), -1)
    return over, carried


def _copy_times(
    program: Program, machine: Machine, rows: Int32, source: int, target: int, slow_rate: int
) -> Int64:
    link = machine.link_between.get((source, target))
    if link is None:
        return np.full(len(rows), NEVER, dtype=np.int64)
    about = machine.links[link]
    idle = machine.rules.copies == "idle"
    rate = min(about.bandwidth, slow_rate) if idle else about.bandwidth
    size = np.ascontiguousarray(program.storage_bytes[rows])
    times: Int64 = _core.ceil_times(size, np.full(len(rows), rate, dtype=np.int64))
    return np.maximum(1, times + about.latency)
