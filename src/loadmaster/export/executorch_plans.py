"""Plans as ExecuTorch's arenas, and ExecuTorch's own placements as plans.

An ExecuTorch program can say one memory and one offset a tensor, and the order. What was written is read
back as a plan, and run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.auto import allocate
from loadmaster.allocation.buffers import Buffers
from loadmaster.errors import BadMachine, Refused, require
from loadmaster.export.plans import NotExported
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import HOME, NO_OFFSET, Plan, Residency, lifetimes, static_plan
from loadmaster.program.importers.executorch.importer import INPUTS, NO_TENSOR, Recorded, record
from loadmaster.program.importers.executorch.lower import ALIGNMENT, SEED, Lowered, banked, greedy
from loadmaster.program.program import GIVEN, Program
from loadmaster.units import UNLIMITED, shorten

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
    count = np.bincount([row.tensor for row in plan.residency_rows], minlength=program.n_tensors)
    for row in plan.residency_rows:
        if here[row.tensor] and count[row.tensor] == 1 and row.memory in machine.reach[0]:
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


CONSTANTS = 0
"""The arena of constants; planned ones start at 1."""


@dataclass(frozen=True)
class Placed:
    """A placement that ExecuTorch's own planner made."""

    recorded: Recorded
    plan: Plan
    bytes: int
    """Of all arenas."""


def arena_numbers(machine: Machine, given: Mapping[str, int]) -> dict[int, int]:
    """Memory -> number of its arena: as given, else as the machine's file says, else slowest first."""
    names = [machine.memories[memory].name for memory in machine.reach[0]]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise BadMachine(
            f"machine '{machine.name}' has no memory '{unknown[0]}'",
            object=unknown[0],
            remedy=f"use one of {', '.join(names)}",
        )
    default = {name: number for number, name in enumerate(reversed(names), 1)}
    numbers = default | _stated(machine) | dict(given)
    used = [numbers[name] for name in names]
    wrong = [number for number in used if number <= CONSTANTS or used.count(number) > 1]
    if wrong:
        raise NotExported(
            f"arena {wrong[0]} can't be given",
            object="--mem-id",
            number=wrong[0],
            remedy="number the memories differently, from 1 up: 0 holds the constants",
        )
    return dict(zip(machine.reach[0], used, strict=True))


def _stated(machine: Machine) -> dict[str, int]:
    """What `[export.executorch] mem_id = { sram = 2 }` of the machine's file says."""
    stated = machine.export.get("executorch", {}).get("mem_id", {})
    if not isinstance(stated, dict) or not all(type(each) is int for each in stated.values()):
        raise NotExported(
            f"machine '{machine.name}' has mem_id {shorten(stated)}",
            object=machine.name,
            remedy="write mem_id = { sram = 2 } below [export.executorch]",
        )
    return stated


def greedy_placement(lowered: Lowered, machine: Machine) -> Placed:
    """ExecuTorch's default: one arena, in the slowest memory."""
    home = machine.home[0]
    return _placement(record(lowered, greedy), machine, {1: home})


def banked_placement(lowered: Lowered, machine: Machine, arenas: Mapping[int, int]) -> Placed:
    """Its planner for several arenas, with the machine's memories as banks, fastest first."""
    banks = [
        (machine.memories[m].name, min(machine.memories[m].capacity, UNLIMITED), arenas[m])
        for m in machine.reach[0]
    ]
    memory_of = {arena: memory for memory, arena in arenas.items()}
    return _placement(record(lowered, banked(banks)), machine, memory_of)


def _placement(recorded: Recorded, machine: Machine, memory_of: Mapping[int, int]) -> Placed:
    program = recorded.program
    memory = np.full(program.n_tensors, HOME, dtype=np.int64)
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    for spec, tensor in recorded.tensor_of.items():
        if tensor != NO_TENSOR:
            memory[tensor], offset[tensor] = memory_of[int(spec.mem_id)], int(spec.mem_offset)
    plan = static_plan(program, machine, memory.tolist(), offset.tolist(), in_loops=True)
    sizes = planned_program(recorded.own).non_const_buffer_sizes
    return Placed(recorded, plan, int(sum(sizes)))


def planned_program(own: Any) -> Any:
    """The one method of an ExecuTorch program."""
    return own.executorch_program.execution_plan[0]


def arena_bytes(program: Program, plan: Plan, arenas: Mapping[int, int]) -> list[int]:
    """The size of every arena that a plan needs, arena 0 (constants) being empty."""
    sizes = [0] * (max(arenas.values()) + 1)
    for row in plan.residency_rows:
        end = row.offset + rounded(int(program.storage_bytes[row.tensor]))
        sizes[arenas[row.memory]] = max(sizes[arenas[row.memory]], end)
    return sizes


def rounded(size: int) -> int:
    """Bytes as ExecuTorch counts them."""
    return -(-size // ALIGNMENT) * ALIGNMENT


EAGER_TOLERANCE = 1e-4
"""Relative, to the largest number of an output: the runtime's kernels add up in another order."""


def read_back(own: Any, recorded: Recorded, order: list[int], arenas: Mapping[int, int]) -> Plan:
    """The placement that a finished program holds, found by its instructions.

    Instruction k is the k-th op in `order`; the places of its results are its last arguments.
    """
    method, program = planned_program(own), recorded.program
    memory_of = {arena: memory for memory, arena in arenas.items()}
    memory = np.full(program.n_tensors, HOME, dtype=np.int64)
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    ops = [op for op in order if not program.op_view[op] and program.op_name[op] != INPUTS]
    calls = [step.instr_args for chain in method.chains for step in chain.instructions]
    if len(calls) != len(ops):
        raise NotExported(
            f"the program has {len(calls)} instructions for {len(ops)} ops",
            object=program.name,
            number=len(calls),
            remedy="report the model: it can't be verified",
        )
    found = [
        (recorded.results[op], _results(method, call, len(recorded.results[op])))
        for op, call in zip(ops, calls, strict=True)
    ]
    if INPUTS in program.op_name:
        planned = [index for index in method.inputs if hasattr(method.values[index].val, "sizes")]
        found.append((recorded.results[program.op_name.index(INPUTS)], planned))
    for specs, indices in found:
        for spec, index in zip(specs, indices, strict=True):
            tensor = recorded.tensor_of[spec]
            if tensor != NO_TENSOR:
                place = method.values[index].val.allocation_info
                memory[tensor] = memory_of.get(int(place.memory_id), HOME)
                offset[tensor] = int(place.memory_offset_low) + (int(place.memory_offset_high) << 32)
    return placement(program, memory, offset, order)


def _results(method: Any, call: Any, count: int) -> list[int]:
    """The values that an instruction writes: before the last argument, which names them all again."""
    arguments = list(call.args)
    flat: list[int] = []
    for index in reversed(arguments[:-1]):
        value = method.values[index].val
        flat = [
            *(list(value.items) if hasattr(value, "items") and not hasattr(value, "sizes") else [index]),
            *flat,
        ]
        if len(flat) >= count:
            break
    return flat[-count:] if count else []


def run(own: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a program in ExecuTorch's runtime."""
    runtime = require("executorch.runtime", "executorch").Runtime.get()
    method = runtime.load_program(bytes(own.buffer)).load_method("forward")
    return [output.clone() for output in method.execute(list(inputs)) if hasattr(output, "clone")]


def sample_inputs(lowered: Lowered) -> list[Any]:
    """Inputs like the example's: new random numbers where it has numbers, the same indices."""
    torch = require("torch", "torch")
    pytree = require("torch.utils._pytree", "torch")
    generator = torch.Generator().manual_seed(SEED)
    flat = pytree.tree_leaves((lowered.args, lowered.kwargs))
    return [
        torch.randn(x.shape, generator=generator, dtype=x.dtype)
        if hasattr(x, "is_floating_point") and x.is_floating_point()
        else x
        for x in flat
    ]


def eager(lowered: Lowered, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of the module itself."""
    torch = require("torch", "torch")
    pytree = require("torch.utils._pytree", "torch")
    _, shape = pytree.tree_flatten((lowered.args, lowered.kwargs))
    args, kwargs = pytree.tree_unflatten(list(inputs), shape)
    with torch.no_grad():
        outputs = pytree.tree_leaves(lowered.module(*args, **kwargs))
    return [output for output in outputs if hasattr(output, "clone")]


def difference(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The largest difference of two lists of outputs, relative to the largest number of each."""
    torch = require("torch", "torch")
    if len(a) != len(b):
        return float("inf")
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:
            return float("inf")
        if x.numel():
            x, y = x.to(torch.float64), y.to(torch.float64)
            gap = float((x - y).abs().max() / y.abs().max().clamp_min(1e-30))
            worst = max(worst, gap if gap == gap else float("inf"))
    return worst
