"""Plans as ExecuTorch's arenas, and ExecuTorch's own placements as plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.errors import BadMachine
from loadmaster.export.rules import NotExported
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import NO_OFFSET, Plan
from loadmaster.plan.static import HOME, static_plan
from loadmaster.program.importers.executorch.importer import NO_TENSOR, Recorded, record
from loadmaster.program.importers.executorch.lower import ALIGNMENT, Lowered, banked, greedy
from loadmaster.program.program import Program
from loadmaster.units import UNLIMITED, shorten

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
