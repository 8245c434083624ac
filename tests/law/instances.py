"""Small and nasty: programs of 1 to 6 ops, and machines whose memories just fit them, or just do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from generate import Rng, chance, pick, random_machine, random_program, whole
from generate_game import random_game_machine, random_game_program
from generate_mapping import random_map_machine
from generate_order import random_straight
from loadmaster.allocation.buffers import Buffers, Gap
from loadmaster.errors import BadProgram, LoadmasterError
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.plan.plan import NO_OFFSET, Plan
from loadmaster.program.build import Builder
from loadmaster.program.program import CANNOT_RUN, Program
from loadmaster.program.validate import validate
from loadmaster.search.pins import Pins
from loadmaster.simulate.simulator import get_simulator

MOST_OPS = 6
MOST_TENSORS = 10


def small_program(rng: Rng, *, devices: int = 1, loops: bool = True, ties: bool = True) -> Program:
    """Everything that a program may have. It is drawn anew until it is valid."""
    while True:
        try:
            program = _drawn(rng, devices)
            if not ties:
                program = without_ties(program)
            small = program.n_ops <= MOST_OPS + 2 and 1 <= program.n_tensors <= MOST_TENSORS
            if small and not program.op_view.all() and (loops or not program.n_loops):
                return validate(_spiced(rng, program))
        except BadProgram:
            continue


def _drawn(rng: Rng, devices: int) -> Program:
    how = rng.random()
    if how < 0.05:
        return tiny_program(rng)
    if how < 0.2:
        return random_straight(rng, whole(rng, 1, MOST_OPS))
    if how < 0.55:
        program = random_game_program(rng, (1, MOST_OPS - 1))
        return program if devices == 1 else replace(program, costs=None)
    return random_program(rng, MOST_OPS, devices if chance(rng, 0.2) else None)


def tiny_program(rng: Rng) -> Program:
    """One op that reads little and makes much, or the other way round."""
    build, sizes = Builder("tiny"), (0, 1, 8, 64, 1024)
    x = build.tensor("x", bytes=pick(rng, sizes), kind=pick(rng, ("input", "weight", "state")))
    build.tensor("unread", bytes=pick(rng, sizes), kind=pick(rng, ("input", "weight", "state")))
    y = build.tensor("y", bytes=pick(rng, sizes), kind=pick(rng, ("output", "activation")))
    build.op("f", "add", reads=[x] * whole(rng, 0, 2), writes=[y], vector=whole(rng, 0, 8))
    return build.build()


def without_ties(program: Program) -> Program:
    """Every op makes its own results, and everything may be in fast memory."""
    none = np.zeros(0, dtype=np.int32)
    return replace(
        program,
        tie_kind=none.astype(np.int8),
        tie_source=none,
        tie_target=none,
        tie_at=none,
        tensor_fast=np.ones(program.n_tensors, dtype=bool),
    )


def _spiced(rng: Rng, program: Program) -> Program:
    """Empty tensors that are read, reads of more bytes than there are, other bytes, ops that can't run."""
    size, read = program.tensor_bytes.copy(), program.read_bytes.copy()
    other, costs = program.op_other_bytes.copy(), program.costs
    if chance(rng, 0.15):
        size[program.tensor_alias == whole(rng, 0, program.n_tensors - 1)] = 0
    if len(read) and chance(rng, 0.2):
        read[whole(rng, 0, len(read) - 1)] += whole(rng, 1, 40)
    if chance(rng, 0.1):
        other[whole(rng, 0, program.n_ops - 1)] = whole(rng, 1, 60)
    if chance(rng, 0.15):
        factor = pick(rng, (3, 64))
        size, read, other = size * factor, read * factor, other * factor
    if costs is not None and costs.shape[1] > 1 and chance(rng, 0.3):
        costs = costs.copy()
        costs[whole(rng, 0, program.n_ops - 1), whole(rng, 0, costs.shape[1] - 1)] = CANNOT_RUN
    return replace(program, tensor_bytes=size, read_bytes=read, op_other_bytes=other, costs=costs)


def tight(rng: Rng, program: Program, machine: Machine, memory: int) -> Machine:
    """The machine with a memory of about the size of some of the program's tensors together."""
    sizes = program.storage_bytes[program.tensor_alias == np.arange(program.n_tensors)]
    chosen = sizes[rng.random(len(sizes)) < 0.5]
    about = machine.memories[memory]
    step = about.alignment
    room = int((-(-chosen // step) * step).sum()) if chance(rng, 0.8) else int(chosen.sum())
    capacity = max(0, room + pick(rng, (0, 0, 0, -1, 1, step)))
    return machine.with_capacity(about.name, capacity)


def just_enough(rng: Rng, program: Program, machine: Machine) -> Machine:
    """The machine whose home holds what the plan that decides nothing needs, and no byte more."""
    home = machine.home[0]
    alone = replace(machine, devices=machine.devices[:1], text="")
    try:
        peak = int(get_simulator(program, alone).run(Plan()).memory_peak[home])
    except LoadmasterError:
        return machine
    return machine.with_capacity(machine.memories[home].name, peak + pick(rng, (0, 0, 1, 8)))


def game_instance(rng: Rng) -> tuple[Program, Machine]:
    """One device, a fast and a slow memory."""
    machine = _contrast(rng) if chance(rng, 0.15) else random_game_machine(rng)
    program = small_program(rng)
    if chance(rng, 0.5):
        machine = tight(rng, program, machine, machine.reach[0][0])
    if chance(rng, 0.2):
        machine = just_enough(rng, program, machine)
    return program, machine


def _contrast(rng: Rng) -> Machine:
    """A fast memory that is a thousand times as fast as the slow one and the links."""
    rules = Rules(copies=pick(rng, ("free", "idle")), ports=pick(rng, ("serial", "parallel")))
    engines = pick(rng, ((("in",), ("out",)), ((), ()), (("bus",), ("bus",))))
    device = Device("core", ("fast", "slow"), {"vector": {"*": 10**12}, "matrix": {"*": 10**12}})
    return Machine(
        "contrast",
        (device,),
        (Memory("fast", 4096, 10**12, 10**12), Memory("slow", 2**30, 10**9, 10**9)),
        (Link("slow", "fast", 10**9, 0, engines[0]), Link("fast", "slow", 10**9, 0, engines[1])),
        rules,
    )


def offload_instance(rng: Rng) -> tuple[Program, Machine]:
    """A device that works in its first memory alone; copies run beside the ops."""
    program = small_program(rng, ties=False)
    machine = _contrast(rng) if chance(rng, 0.15) else random_game_machine(rng)
    fast, slow = machine.memories[0], machine.memories[-1]
    rate, latency = pick(rng, (10**12, 25 * 10**10)), pick(rng, (0, 0, 3))
    engines = pick(rng, ((("in",), ("out",)), (("bus",), ("bus",)), ((), ())))
    links = (
        Link(slow.name, fast.name, rate, latency, engines[0]),
        Link(fast.name, slow.name, rate, latency, engines[1]),
    )
    device = replace(machine.devices[0], memories=(fast.name, slow.name))
    rules = replace(machine.rules, copies="free", reach=pick(rng, ("first", "first", "all")))
    machine = replace(machine, devices=(device,), memories=(fast, slow), links=links, rules=rules)
    if chance(rng, 0.85):
        machine = tight(rng, program, machine, 0)
    else:
        machine = machine.with_capacity(fast.name, 2**30)
    return program, machine


def map_instance(rng: Rng) -> tuple[Program, Machine]:
    """One device (now and then a second that runs nothing) over two to four memories."""
    program, machine = small_program(rng), random_map_machine(rng)
    while len(machine.memories) > 3:
        machine = random_map_machine(rng)
    if chance(rng, 0.5):
        machine = tight(rng, program, machine, machine.reach[0][0])
    if chance(rng, 0.3):
        machine = just_enough(rng, program, machine)
    if chance(rng, 0.3):
        names = [memory.name for memory in machine.memories]
        links = tuple(Link(a, b, 10**12, 0, ("bus",)) for a in names for b in names if a != b)
        machine = replace(machine, links=links)
    if program.costs is None and machine.rules.copies == "free" and chance(rng, 0.1):
        machine = replace(machine, devices=(*machine.devices, replace(machine.devices[0], name="other")))
    return program, machine


def graph_instance(rng: Rng) -> tuple[Program, Machine]:
    """One to three devices."""
    machine = random_machine(rng)
    while machine.rules.copies == "idle" or len(machine.devices) > 3:
        machine = random_machine(rng)
    if chance(rng, 0.7):
        machine = replace(
            machine,
            memories=tuple(
                replace(memory, capacity=max(memory.capacity, 400)) for memory in machine.memories
            ),
        )
    return small_program(rng, devices=len(machine.devices)), machine


def order_instance(rng: Rng) -> tuple[Program, Machine | None]:
    """A program without loops, on a machine with a home that has room for it, or on none."""
    program = small_program(rng, loops=False)
    if chance(rng, 0.4):
        return program, None
    machine = random_map_machine(rng)
    if chance(rng, 0.4):
        machine = just_enough(rng, program, machine)
    return program, replace(machine, rules=replace(machine.rules, copies="free"))


def arena_instance(rng: Rng) -> tuple[Program, Machine]:
    """A program of which everything but the weights lies in one memory."""
    program = small_program(rng)
    memory = Memory("sram", 2**40, 10**12, 10**12, alignment=pick(rng, (1, 1, 4, 8)))
    memories, reach = (memory,), ("sram",)
    if chance(rng, 0.5):
        memories, reach = (memory, Memory("flash", 2**62, 10**11, 10**11)), ("flash", "sram")
    device = Device("core", reach, {"vector": {"*": 10**12}, "matrix": {"*": 10**12}})
    machine = Machine("arena", (device,), memories)
    return program, just_enough(rng, program, machine) if chance(rng, 0.3) else machine


def small_buffers(rng: Rng) -> Buffers:
    """Up to seven buffers, with gaps, alignments, pins and pairs that are kept apart."""
    n = whole(rng, 1, 7)
    lower = rng.integers(0, 6, n)
    upper = lower + rng.integers(1, 5, n)
    size = rng.integers(0, 9, n)
    alignment = rng.choice([1, 1, 1, 2, 4], n)
    gaps = {}
    for b in range(n):
        if upper[b] - lower[b] >= 3 and chance(rng, 0.3):
            low, high = sorted(rng.integers(0, size[b] + 1, 2).tolist()) if chance(rng, 0.5) else (0, 0)
            gaps[b] = [Gap(int(lower[b]) + 1, int(lower[b]) + 2, low, high)]
    pinned = np.full(n, -1)
    if chance(rng, 0.2):
        pinned[0] = int(alignment[0]) * whole(rng, 0, 4)
    apart = [(0, 1)] if n > 1 and chance(rng, 0.2) else []
    return Buffers.of(lower, upper, size, alignment=alignment, pinned=pinned, gaps=gaps, apart=apart)


def memory_pins(rng: Rng, program: Program, machine: Machine, *, home_alone: bool = False) -> Pins:
    """Mostly none; else a tensor or two, some at an offset."""
    if not chance(rng, 0.15):
        return Pins()
    found = {}
    for _ in range(whole(rng, 1, 2)):
        tensor, memory = whole(rng, 0, program.n_tensors - 1), pick(rng, machine.reach[0])
        offset = machine.memories[memory].alignment * whole(rng, 0, 3)
        where = (memory, offset if chance(rng, 0.3) else NO_OFFSET)
        if program.tensor_alias[tensor] == tensor:
            found[tensor] = (machine.home[0], NO_OFFSET) if home_alone else where
    return Pins(memory=found)


def device_pins(rng: Rng, program: Program, machine: Machine) -> Pins:
    """Mostly none; else an op that is no view."""
    if not chance(rng, 0.15):
        return Pins()
    op = pick(rng, np.flatnonzero(~program.op_view).tolist())
    return Pins(device={op: whole(rng, 0, len(machine.devices) - 1)})
