"""Plans as ExecuTorch's arenas, and ExecuTorch's own placements as plans.

An ExecuTorch program can say one memory and one offset a tensor, and the order. What was written is read
back as a plan, and run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.auto import allocate
from loadmaster.allocation.buffers import Buffers
from loadmaster.clock import now
from loadmaster.errors import BadMachine, Refused, require
from loadmaster.export.plans import NotExported
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import HOME, NO_OFFSET, Plan, Residency, lifetimes, static_plan
from loadmaster.program.importers.executorch.importer import (
    ALIGNMENT,
    INPUTS,
    NO_TENSOR,
    SEED,
    Lowered,
    Recorded,
    banked,
    greedy,
    record,
)
from loadmaster.program.program import GIVEN, Program
from loadmaster.simulate.simulator import get_simulator
from loadmaster.units import UNLIMITED, shorten

Int64 = npt.NDArray[np.int64]
PACK_SECONDS = 5.0


def order_of(program: Program, plan: Plan) -> list[int]:
    """The ops in the order they run, the copy of the inputs first."""
    order = list(range(program.n_ops)) if plan.order is None else plan.order.tolist()
    if INPUTS in program.op_name and order[0] != (first := program.op_name.index(INPUTS)):
        order = [first, *(op for op in order if op != first)]
    return order


def find_planned_tensors(program: Program, order: list[int]) -> npt.NDArray[np.bool_]:
    """[T] the tensors that memory is planned for: owners of storage that an op fills."""
    first, last = lifetimes(program, np.array(order, dtype=np.int32))
    given = np.isin(program.tensor_kind, [int(kind) for kind in GIVEN])
    roots = program.tensor_alias == np.arange(program.n_tensors)
    return np.asarray(roots & ~given & (last >= first))


def make_placement(program: Program, memory: Int64, offset: Int64, order: list[int]) -> Plan:
    """The plan that keeps every tensor in one place for its whole life in this order."""
    first, last = lifetimes(program, np.array(order, dtype=np.int32))
    rows = [
        Residency(t, int(memory[t]), int(offset[t]), order[int(first[t])], order[int(last[t])])
        for t in np.flatnonzero(find_planned_tensors(program, order)).tolist()
    ]
    moved = order != list(range(program.n_ops))
    return Plan.of(residencies=rows, order=order if moved else None)


def pack(
    program: Program, machine: Machine, memory: Int64, order: list[int], seconds: float = PACK_SECONDS
) -> Int64 | None:
    """[T] offsets of the least height in each memory, or None if one is too small."""
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    first, last = lifetimes(program, np.array(order, dtype=np.int32))
    here = find_planned_tensors(program, order)
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


def reduce_plan(program: Program, machine: Machine, plan: Plan) -> Plan:
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
    here = find_planned_tensors(program, order)
    memory = np.where(here, machine.home[0], -1).astype(np.int64)
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    count = np.bincount([row.tensor for row in plan.residency_rows], minlength=program.n_tensors)
    for row in plan.residency_rows:
        if here[row.tensor] and count[row.tensor] == 1 and row.memory in machine.reach[0]:
            memory[row.tensor], offset[row.tensor] = row.memory, row.offset
    open_memories = np.unique(memory[here & (offset == NO_OFFSET)])
    if len(open_memories):
        found = pack(program, machine, memory, order)
        if found is None:
            raise Refused(
                f"no offsets were found for '{program.name}' on '{machine.name}'",
                object=program.name,
                remedy="give more room in the slowest memory",
            )
        anew = here & np.isin(memory, open_memories)
        offset[anew] = found[anew]
    return make_placement(program, memory, offset, order)


CONSTANTS = 0
"""The arena of constants; planned ones start at 1."""


@dataclass(frozen=True)
class Placed:
    """A placement that ExecuTorch's own planner made."""

    recorded: Recorded
    plan: Plan
    bytes: int
    """Of all arenas."""


def number_arenas(machine: Machine, given: Mapping[str, int]) -> dict[int, int]:
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


def place_greedy(lowered: Lowered, machine: Machine) -> Placed:
    """ExecuTorch's default: one arena, in the slowest memory."""
    home = machine.home[0]
    return _placement(record(lowered, greedy), machine, {1: home})


def place_banked(lowered: Lowered, machine: Machine, arenas: Mapping[int, int]) -> Placed:
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
    plan = static_plan(program, machine, memory, offset, in_loops=True)
    sizes = get_program(recorded.own).non_const_buffer_sizes
    return Placed(recorded, plan, int(sum(sizes)))


def get_program(own: Any) -> Any:
    """The one method of an ExecuTorch program."""
    return own.executorch_program.execution_plan[0]


def arena_bytes(program: Program, plan: Plan, arenas: Mapping[int, int]) -> list[int]:
    """The size of every arena that a plan needs, arena 0 (constants) being empty."""
    sizes = [0] * (max(arenas.values()) + 1)
    for row in plan.residency_rows:
        end = row.offset + round_up(int(program.storage_bytes[row.tensor]))
        sizes[arenas[row.memory]] = max(sizes[arenas[row.memory]], end)
    return sizes


def round_up(size: int) -> int:
    """Bytes as ExecuTorch counts them."""
    return -(-size // ALIGNMENT) * ALIGNMENT


EAGER_TOLERANCE = 1e-4
"""Relative, to the largest number of an output: the runtime's kernels add up in another order."""


def read_back(own: Any, recorded: Recorded, order: list[int], arenas: Mapping[int, int]) -> Plan:
    """The placement that a finished program holds, found by its instructions.

    Instruction k is the k-th op in `order`; the places of its results are its last arguments.
    """
    method, program = get_program(own), recorded.program
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
    return make_placement(program, memory, offset, order)


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


def run_eager(lowered: Lowered, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of the module itself."""
    torch = require("torch", "torch")
    pytree = require("torch.utils._pytree", "torch")
    _, shape = pytree.tree_flatten((lowered.args, lowered.kwargs))
    args, kwargs = pytree.tree_unflatten(list(inputs), shape)
    with torch.no_grad():
        outputs = pytree.tree_leaves(lowered.module(*args, **kwargs))
    return [output for output in outputs if hasattr(output, "clone")]


def measure_difference(a: Sequence[Any], b: Sequence[Any]) -> float:
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


# A placement for an ExecuTorch program: one memory for every tensor that its planner sees.
#
# The mapping problem decides the results of an op together; here each is decided alone, and the
# bytes of all arenas together can be limited, for example to what ExecuTorch's default takes.

KEPT = 8
"""Best maps that are kept until offsets are found for one of them."""


def improve_plan(
    program: Program,
    machine: Machine,
    starts: list[Plan],
    *,
    most_bytes: int | None = None,
    seconds: float = 10.0,
    kicks: int | None = None,
    seed: int = 0,
) -> Plan | None:
    """The best plan that a local search finds from plans in program order; None if none fits.

    Steepest descent over moves of one tensor, then a kick: a tensor is put into a faster memory and
    whoever is in its way there is put out. Every plan keeps to the capacities and to `most_bytes`.
    It ends after so many seconds, or so many kicks of each search.
    """
    random = np.random.default_rng(seed)
    search = _Search(program, machine, None, random)
    maps = [search.memories(start) for start in starts]
    if most_bytes is None:
        search.run(maps, seconds, kicks)
    else:  # what is best without the limit often keeps to it, or nearly
        search.run(maps, seconds / 2, kicks)
        maps = [memory for _, memory in search.best] + maps
        search = _Search(program, machine, most_bytes, random)
        search.run(maps, seconds / 2, kicks)
    order = list(range(program.n_ops))
    for _, memory in search.best:
        offset = pack(program, machine, memory, order)
        if offset is None:
            continue
        plan = make_placement(program, memory, offset, order)
        if most_bytes is None or search.bytes_of(plan) <= most_bytes:
            return plan
    return None


class _Search:
    def __init__(
        self, program: Program, machine: Machine, most_bytes: int | None, random: np.random.Generator
    ) -> None:
        self.program, self.random, self._most = program, random, most_bytes
        self._simulator = get_simulator(program, machine)
        self._reach = list(machine.reach[0])
        self._home = machine.home[0]
        order = list(range(program.n_ops))
        self._tensors = np.flatnonzero(find_planned_tensors(program, order))
        self._first, self._last = lifetimes(program)
        size = program.storage_bytes
        align = {m: machine.memories[m].alignment for m in self._reach}
        self._size = {m: -(-size // align[m]) * align[m] for m in self._reach}
        fixed = int(program.storage_bytes[program.tensor_kind <= 1].sum())
        room = {m: machine.memories[m].capacity for m in self._reach}
        self._room = {**room, self._home: room[self._home] - fixed}
        self.best: list[tuple[int, Int64]] = []

    def run(self, starts: list[Int64], seconds: float, kicks: int | None) -> None:
        """Descend from every start, then kick and descend until the time, or the kicks, are over."""
        end = now() + seconds
        for start in starts:
            self.descend(self.fit(start), end)
        for _ in itertools.count() if kicks is None else range(kicks):
            if not self.best or now() >= end:
                break
            _, memory = self.best[int(self.random.integers(min(2, len(self.best))))]
            self.descend(self.kick(memory), end)

    def memories(self, plan: Plan) -> Int64:
        """[T] the memory of every tensor in a plan, the slowest where nothing is said."""
        memory = np.full(self.program.n_tensors, -1, dtype=np.int64)
        memory[self._tensors] = self._home
        for row in plan.residency_rows:
            memory[row.tensor] = row.memory if memory[row.tensor] >= 0 else -1
        return memory

    def bytes_of(self, plan: Plan) -> int:
        tops: dict[int, int] = {}
        for row in plan.residency_rows:
            size = -(-int(self.program.storage_bytes[row.tensor]) // ALIGNMENT) * ALIGNMENT
            tops[row.memory] = max(tops.get(row.memory, 0), row.offset + size)
        return sum(tops.values())

    def fit(self, memory: Int64) -> Int64:
        """The map with tensors sent to the slowest memory, largest first, until it fits."""
        memory = memory.copy()
        fast = [t for t in self._tensors.tolist() if memory[t] != self._home]
        for tensor in sorted(fast, key=lambda t: -int(self._size[self._home][t])):
            if self._fits(self._live(memory)):
                break
            memory[tensor] = self._home
        return memory

    def descend(self, memory: Int64, end: float) -> None:
        """Take the best move of one tensor again and again, and keep what it ends at."""
        live = self._live(memory)
        value = int(self._times(memory[None])[0])
        if not self._fits(live):
            return
        while now() < end:
            moves = list(self._moves(memory, live))
            if not moves:
                break
            batch = np.repeat(memory[None], len(moves), axis=0)
            for row, (tensor, target) in enumerate(moves):
                batch[row, tensor] = target
            times = self._times(batch)
            best = int(np.argmin(times))
            if times[best] >= value:
                break
            value, memory = int(times[best]), batch[best]
            live = self._live(memory)
        self._keep(value, memory)

    def kick(self, memory: Int64) -> Int64:
        """The map with some tensors put into a faster memory and what is in their way put out."""
        memory = memory.copy()
        for tensor in self.random.choice(self._tensors, size=min(3, len(self._tensors))).tolist():
            target = self._reach[int(self.random.integers(len(self._reach)))]
            before, memory[tensor] = memory.copy(), target
            there = np.flatnonzero(
                (memory == target) & (self._last >= self._first[tensor]) & (self._first <= self._last[tensor])
            )
            for other in self.random.permutation(there[there != tensor]).tolist():
                if self._fits(self._live(memory)):
                    break
                memory[other] = self._home
            if not self._fits(self._live(memory)):
                memory = before
        return memory

    def _moves(self, memory: Int64, live: dict[int, Int64]) -> Iterator[tuple[int, int]]:
        tops = {m: int(profile.max(initial=0)) for m, profile in live.items()}
        for tensor in self._tensors.tolist():
            source, life = int(memory[tensor]), slice(self._first[tensor], self._last[tensor] + 1)
            for target in self._reach:
                if target == source:
                    continue
                grown = max(tops[target], int(live[target][life].max()) + int(self._size[target][tensor]))
                if grown > self._room[target]:
                    continue
                if self._most is not None and sum(tops.values()) - tops[target] + grown > self._most:
                    # It may still do: what it leaves may shrink.
                    left = live[source].copy()
                    left[life] -= self._size[source][tensor]
                    others = sum(tops.values()) - tops[target] - tops[source]
                    if others + grown + int(left.max(initial=0)) > self._most:
                        continue
                yield tensor, target

    def _live(self, memory: Int64) -> dict[int, Int64]:
        """[ops] bytes alive in each memory."""
        profiles = {}
        for number in self._reach:
            change = np.zeros(self.program.n_ops + 1, dtype=np.int64)
            held = self._tensors[memory[self._tensors] == number]
            np.add.at(change, self._first[held], self._size[number][held])
            np.subtract.at(change, self._last[held] + 1, self._size[number][held])
            profiles[number] = np.cumsum(change[:-1])
        return profiles

    def _fits(self, live: dict[int, Int64]) -> bool:
        tops = {m: int(profile.max(initial=0)) for m, profile in live.items()}
        inside = all(top <= self._room[m] for m, top in tops.items())
        return inside and (self._most is None or sum(tops.values()) <= self._most)

    def _times(self, memories: Int64) -> Int64:
        return self._simulator.run_static(memories.astype(np.int8))[0]

    def _keep(self, value: int, memory: Int64) -> None:
        if all(not np.array_equal(memory, other) for _, other in self.best):
            self.best.append((value, memory))
            self.best.sort(key=lambda item: item[0])
            del self.best[KEPT:]
