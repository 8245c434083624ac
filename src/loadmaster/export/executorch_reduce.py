"""What an ExecuTorch program can say of a plan: one memory and one offset a tensor, and the order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.errors import Refused
from loadmaster.export.rules import NotExported
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import NO_OFFSET, Plan, Residency
from loadmaster.plan.static import lifetimes
from loadmaster.problems.buffers import Buffers
from loadmaster.program.importers.executorch.importer import INPUTS
from loadmaster.program.importers.executorch.lower import ALIGNMENT
from loadmaster.program.program import GIVEN, Program
from loadmaster.solvers.allocate import allocate

Int64 = npt.NDArray[np.int64]
PACK_SECONDS = 5.0


def order_of(program: Program, plan: Plan) -> list[int]:
    """The ops in the order they run, the copy of the inputs first."""
    order = list(range(program.n_ops)) if plan.order is None else plan.order.tolist()
    if INPUTS in program.op_name and order[0] != (first := program.op_name.index(INPUTS)):
        order = [first, *(op for op in order if op != first)]
    return order


def planned_tensors(program: Program, order: list[int]) -> npt.NDArray[np.bool_]:
    """[T] the tensors that memory is planned for: owners of storage that an op fills."""
    first, last = lifetimes(program, np.array(order, dtype=np.int32))
    given = np.isin(program.tensor_kind, [int(kind) for kind in GIVEN])
    roots = program.tensor_alias == np.arange(program.n_tensors)
    return np.asarray(roots & ~given & (last >= first))


def placement(program: Program, memory: Int64, offset: Int64, order: list[int]) -> Plan:
    """The plan that keeps every tensor in one place for its whole life in this order."""
    first, last = lifetimes(program, np.array(order, dtype=np.int32))
    rows = [
        Residency(t, int(memory[t]), int(offset[t]), order[int(first[t])], order[int(last[t])])
        for t in np.flatnonzero(planned_tensors(program, order)).tolist()
    ]
    moved = order != list(range(program.n_ops))
    return Plan.of(residencies=rows, order=order if moved else None)


def packed(
    program: Program, machine: Machine, memory: Int64, order: list[int], seconds: float = PACK_SECONDS
) -> Int64 | None:
    """[T] offsets of the least height in each memory, or None if one is too small."""
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    first, last = lifetimes(program, np.array(order, dtype=np.int32))
    here = planned_tensors(program, order)
    for number in machine.reach[0]:
        there = machine.memories[number]
        held = np.flatnonzero(here & (memory == number))
        if not len(held):
            continue
        size = -(-program.storage_bytes[held] // there.alignment) * there.alignment
        buffers = Buffers.of(
            first[held].tolist(), (last[held] + 1).tolist(), size.tolist(), alignment=there.alignment
        )
        found = allocate(buffers, seconds=seconds)
        if found.decision is None or int(found.value or 0) > there.capacity:
            return None
        offset[held] = np.asarray(found.decision, dtype=np.int64)
    return offset


def reduced(program: Program, machine: Machine, plan: Plan) -> Plan:
    """The plan without what a program can't say: a tensor that moves stays in the slowest memory; one
    device, no copies, no fusion. Where an offset is missing, its memory is packed anew."""
    for number in machine.reach[0]:
        there = machine.memories[number]
        if there.alignment % ALIGNMENT:
            raise NotExported(
                f"memory '{there.name}' has an alignment of {there.alignment}",
                object=there.name,
                number=there.alignment,
                remedy=f"give it a multiple of {ALIGNMENT}",
            )
    order = order_of(program, plan)
    here = planned_tensors(program, order)
    memory = np.where(here, machine.home[0], -1).astype(np.int64)
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    stays = np.bincount([row.tensor for row in plan.residency_rows], minlength=program.n_tensors)
    for row in plan.residency_rows:
        if here[row.tensor] and stays[row.tensor] == 1 and row.memory in machine.reach[0]:
            memory[row.tensor], offset[row.tensor] = row.memory, row.offset
    open_memories = np.unique(memory[here & (offset == NO_OFFSET)])
    if len(open_memories):
        found = packed(program, machine, memory, order)
        if found is None:
            raise Refused(
                f"no offsets were found for '{program.name}' on '{machine.name}'",
                object=program.name,
                remedy="give more room in the slowest memory",
            )
        anew = here & np.isin(memory, open_memories)
        offset[anew] = found[anew]
    return placement(program, memory, offset, order)
