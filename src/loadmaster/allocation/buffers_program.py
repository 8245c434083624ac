"""Buffers as a Program, and a Program as buffers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.buffers import Buffers
from loadmaster.errors import Refused
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import NO_OFFSET, lifetimes, lifetimes_in_loops
from loadmaster.program.build import clean_name
from loadmaster.program.hazards import places
from loadmaster.program.program import PERSISTENT, Labels, Program, TensorKind
from loadmaster.program.validate import validate
from loadmaster.search.pins import BadPin, Pins

Int64 = npt.NDArray[np.int64]


def buffers_as_program(buffers: Buffers, name: str) -> Program:
    """One op per stretch of time in which the same buffers are alive; one tensor per piece.

    A piece is written by the first op of its life and read by the last. Columns are made at once:
    a million buffers would take minutes through the builder.
    """
    pieces = buffers.pieces
    times = np.unique(np.concatenate([pieces.lower, pieces.upper]))
    first = np.searchsorted(times, pieces.lower)
    last = np.searchsorted(times, pieces.upper) - 1
    ops, count = max(0, len(times) - 1), len(pieces.buffer)
    size = pieces.high - pieces.low
    read_start, read_tensor = _rows(last, ops)
    write_start, write_tensor = _rows(first, ops)
    zeros = np.zeros(ops, dtype=np.int64)
    nothing = np.full(ops, -1, dtype=np.int32)
    same = np.zeros(ops, dtype=np.int32)
    return validate(
        Program(
            name=clean_name(name),
            order_source="schedule",
            op_name=tuple(f"t{time}" for time in times[:-1].tolist()),
            op_kind=Labels(("step",) if ops else (), same),
            op_dtype=Labels(("u8",) if ops else (), same),
            op_scope=Labels(("",) if ops else (), same),
            op_attributes=Labels(("",) if ops else (), same),
            op_flops=np.zeros((ops, 3), dtype=np.int64),
            op_other_bytes=zeros,
            op_backward=np.zeros(ops, dtype=np.bool_),
            op_view=np.zeros(ops, dtype=np.bool_),
            op_loop=nothing,
            op_group=nothing.copy(),
            op_source=np.full(ops, -1, dtype=np.int64),
            loop_parent=np.empty(0, dtype=np.int32),
            loop_trips=np.empty(0, dtype=np.int64),
            tensor_name=_piece_names(buffers),
            tensor_bytes=size,
            tensor_dtype=Labels(("u8",) if count else (), np.zeros(count, dtype=np.int32)),
            tensor_kind=np.full(count, TensorKind.ACTIVATION, dtype=np.int8),
            tensor_shape_start=np.arange(count + 1, dtype=np.int64),
            tensor_shape=size,
            tensor_group=np.full(count, -1, dtype=np.int32),
            tensor_fast=np.ones(count, dtype=np.bool_),
            tensor_alias=np.arange(count, dtype=np.int32),
            read_start=read_start,
            read_tensor=read_tensor,
            read_bytes=size[read_tensor],
            write_start=write_start,
            write_tensor=write_tensor,
            write_bytes=size[write_tensor],
            tie_kind=np.empty(0, dtype=np.int8),
            tie_source=np.empty(0, dtype=np.int32),
            tie_target=np.empty(0, dtype=np.int32),
            tie_at=np.empty(0, dtype=np.int32),
        )
    )


def _rows(op: Int64, ops: int) -> tuple[Int64, npt.NDArray[np.int32]]:
    counts = np.bincount(op, minlength=ops)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.argsort(op, kind="stable").astype(
        np.int32
    )


def _piece_names(buffers: Buffers) -> tuple[str, ...]:
    names: list[str] = []
    seen: dict[int, int] = {}
    for buffer in buffers.pieces.buffer.tolist():
        seen[buffer] = seen.get(buffer, 0) + 1
        name = clean_name(buffers.ids[buffer])
        names.append(name if seen[buffer] == 1 else f"{name}#{seen[buffer]}")
    return (
        tuple(names)
        if len(set(names)) == len(names)
        else tuple(f"{i}:{name}" for i, name in enumerate(names))
    )


def program_as_buffers(
    program: Program, machine: Machine, memory: int, order: npt.NDArray[np.int32] | None = None
) -> tuple[Buffers, list[list[int]]]:
    """The buffers that a program needs in one memory, weights and state left out, in program order
    or (a program without loops) in another.

    Tensors that share one place (in-place updates, loop-carried values) are one buffer. Returns the
    roots of each buffer too.
    """
    first, last = lifetimes_in_loops(program) if order is None else lifetimes(program, order)
    place = places(program)
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    roots = np.flatnonzero((program.tensor_alias == np.arange(program.n_tensors)) & (last >= first))
    persistent_places = set(place[roots[kept[roots]]].tolist())
    members: dict[int, list[int]] = {}
    for root in roots.tolist():
        if place[root] not in persistent_places:
            members.setdefault(int(place[root]), []).append(root)
    groups = list(members.values())
    align = machine.memories[memory].alignment
    sizes = [max(int(program.storage_bytes[root]) for root in group) for group in groups]
    accessed = np.zeros(program.n_tensors, dtype=np.float64)
    for tensors, count in (
        (program.read_tensor, program.read_bytes),
        (program.write_tensor, program.write_bytes),
    ):
        np.add.at(accessed, program.tensor_alias[tensors], count)
    buffers = Buffers.of(
        [min(int(first[root]) for root in group) for group in groups],
        [max(int(last[root]) for root in group) + 1 for group in groups],
        [-(-size // align) * align for size in sizes],
        ids=[program.tensor_name[group[0]] for group in groups],
        alignment=align,
        worth=[float(sum(accessed[root] for root in group)) for group in groups],
    )
    return buffers, groups


def pinned_buffers(
    buffers: Buffers, roots: list[list[int]], program: Program, machine: Machine, pins: Pins
) -> Buffers:
    """The buffers of `program_as_buffers` with the offsets that are pinned."""
    row_of = {root: b for b, group in enumerate(roots) for root in group}
    home, pinned = machine.home[0], buffers.pinned.copy()
    for tensor, (memory, offset) in pins.memory.items():
        name, there = program.tensor_name[tensor], machine.memories[memory].name
        if (tensor in row_of) != (memory == home) or (memory != home and offset != NO_OFFSET):
            where = machine.memories[home].name
            raise BadPin(
                f"tensor '{name}' can't be pinned to '{there}' here: '{where}' has everything but the "
                "weights, and the weights have no offsets",
                object=name,
                number=there,
                remedy="give --problem mapping to choose memories",
            )
        if memory == home and offset != NO_OFFSET:
            pinned[row_of[tensor]] = offset
    changed = buffers.changed(pinned=pinned)
    _check_apart(changed, machine.memories[home].capacity)
    return changed


def _check_apart(buffers: Buffers, capacity: int) -> None:
    """Pins that no placement can keep are named at once."""
    fixed = np.flatnonzero(buffers.pinned >= 0).tolist()
    end = buffers.pinned + buffers.size
    for number, a in enumerate(fixed):
        if end[a] > capacity:
            raise Refused(
                f"the pin of '{buffers.ids[a]}' ends at {end[a]:,} and the memory at {capacity:,}",
                object=buffers.ids[a],
                number=int(end[a]),
                remedy="pin it lower",
            )
        for b in fixed[:number]:
            together = buffers.lower[a] < buffers.upper[b] and buffers.lower[b] < buffers.upper[a]
            if together and buffers.pinned[a] < end[b] and buffers.pinned[b] < end[a]:
                raise Refused(
                    f"the pins of '{buffers.ids[b]}' and '{buffers.ids[a]}' overlap: both are alive at "
                    f"time {max(buffers.lower[a], buffers.lower[b])}",
                    object=buffers.ids[a],
                    number=int(buffers.pinned[a]),
                    remedy="move one of them",
                )
