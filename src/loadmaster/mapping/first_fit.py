"""A memory per tensor by first fit in program order: the frozen `compiler` baseline of Mapping.

Pass 1 gives each activation the fastest memory in which it fits over its whole life; pass 2
does the same for weights, but sparse tables (less than half of their bytes are read) stay in
the slowest memory. It stands in for a chip's own compiler, whose rules are not public, and is
never tuned.
"""

from __future__ import annotations

import numpy as np

from loadmaster.allocation.pack import pack
from loadmaster.arrays import Bool, Int64
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import HOME, Plan, lifetimes_in_loops, static_plan
from loadmaster.program.program import Program, TensorKind


def first_fit(program: Program, machine: Machine) -> Plan:
    """The whole plan, with offsets: weights from offset 0, activations above them."""
    memory = first_fit_memories(program, machine)
    offsets, _ = pack(program, machine, memory)
    return static_plan(program, machine, memory, offsets, in_loops=True)


def first_fit_memories(program: Program, machine: Machine) -> Int64:
    """[T] the memory of each root on the machine's first device, or HOME where it is not decided."""
    memories = machine.reach[0]
    first, last = lifetimes_in_loops(program)
    live = np.zeros((len(machine.memories), program.n_ops), dtype=np.int64)
    chosen = np.full(program.n_tensors, HOME, dtype=np.int64)
    # Inputs are not decided: they live in the slowest memory and count there.
    roots = np.flatnonzero(program.is_root & (last >= first))
    kept = program.is_persistent
    given = program.tensor_kind == TensorKind.INPUT
    by_producer = roots[np.argsort(program.producer[roots], kind="stable")]
    by_reader = roots[np.argsort(_first_reader(program)[roots], kind="stable")]
    sparse = sparse_tables(program)
    slow = (given | sparse | ~program.tensor_fast).tolist()
    align = np.array([memory.alignment for memory in machine.memories])
    size = (-(-program.storage_bytes[:, None] // align) * align).tolist()
    capacity = [memory.capacity for memory in machine.memories]
    begin, end = first.tolist(), (last + 1).tolist()
    passed = by_producer[~kept[by_producer]]
    for tensor in (*passed[given[passed]].tolist(), *passed[~given[passed]].tolist()):
        span = slice(begin[tensor], end[tensor])
        for number in memories[-1:] if slow[tensor] else memories:
            fits = live[number, span].max(initial=0) + size[tensor][number] <= capacity[number]
            if fits or number == memories[-1]:  # what fits nowhere stays in the slowest, and is reported
                live[number, span] += size[tensor][number]
                chosen[tensor] = HOME if given[tensor] else number
                break
    # Weights are there all the time: they lie beside the most that activations ever take.
    held = live.max(axis=1, initial=0).tolist()
    for tensor in by_reader[kept[by_reader]].tolist():
        for number in memories[-1:] if slow[tensor] else memories:
            if held[number] + size[tensor][number] <= capacity[number] or number == memories[-1]:
                held[number] += size[tensor][number]
                chosen[tensor] = number
                break
    return chosen


def _first_reader(program: Program) -> Int64:
    reader = np.full(program.n_tensors, program.n_ops, dtype=np.int64)
    np.minimum.at(reader, program.tensor_alias[program.read_tensor], program.read_op)
    return reader


def sparse_tables(program: Program) -> Bool:
    """[T] weights and state of which no access reads half."""
    read = np.zeros(program.n_tensors, dtype=np.int64)
    np.maximum.at(read, program.tensor_alias[program.read_tensor], program.read_bytes)
    viewed = np.zeros(program.n_tensors, dtype=np.bool_)  # a view's readers read the root
    viewed[program.tensor_alias[program.tensor_alias != np.arange(program.n_tensors)]] = True
    kept = program.is_persistent
    return kept & (2 * read < program.storage_bytes) & ~viewed
