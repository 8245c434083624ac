"""Small Mapping problems: random ones for tests of agreement, and one that leaves much to decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from generate import RATES, Rng, _device, _rate, chance, pick, random_program, whole
from loadmaster.machine.machine import Device, Machine, Memory, Rules
from loadmaster.mapping.problem import Mapping
from loadmaster.program.build import Builder
from loadmaster.program.program import CANNOT_RUN, COMPUTED, Program


def random_mapping(rng: Rng, max_ops: int = 14) -> tuple[Program, Machine]:
    """A program and a machine of one device with two to four memories that it may be mapped to."""
    machine = random_map_machine(rng)
    program = random_program(rng, max_ops, 1 if chance(rng, 0.2) else None)
    if program.costs is not None:
        costs = np.where(program.costs == CANNOT_RUN, COMPUTED, program.costs)
        program = replace(program, costs=costs)
    return program, machine


def random_map_machine(rng: Rng) -> Machine:
    """Fast memories that hold a part of a random program, and one that holds all of it."""
    rates = pick(rng, RATES)
    memories = [
        Memory(
            f"mem{number}",
            capacity=whole(rng, 0, pick(rng, (20, 60, 600))),
            read=_rate(rng, rates),
            write=_rate(rng, rates),
            latency=whole(rng, 1, 5) if chance(rng, 0.3) else 0,
            alignment=pick(rng, (1, 1, 4, 8)),
        )
        for number in range(whole(rng, 2, 4))
    ]
    memories[-1] = replace(memories[-1], capacity=2**40)
    order = rng.permutation(len(memories) - 1).tolist()  # its numbers are not its positions
    reach = tuple(memories[number].name for number in (*order, len(memories) - 1))
    rules = Rules(
        ports=pick(rng, ("serial", "parallel")),
        overlap=pick(rng, (0, 0, 50_000, 333_333, 1_000_000)),
        copies=pick(rng, ("free", "idle")),
    )
    device = _device(rng, "dev", reach, rates, False)
    return Machine("random", (device,), tuple(memories), (), rules)


def random_maps(rng: Rng, problem: Mapping, count: int) -> np.ndarray:
    """Maps of all kinds: even ones, lopsided ones, all in one memory."""
    memories = problem.slowest + 1
    shares = rng.dirichlet(np.full(memories, pick(rng, (0.1, 1.0))), size=count)
    maps = [rng.choice(memories, size=2 * problem.nodes, p=share) for share in shares]
    even = [np.full(2 * problem.nodes, memory) for memory in range(memories)]
    return np.array([*even, *maps], dtype=np.int8)[-count:]


def layers(count: int = 12) -> Program:
    """A chain of layers with weights, each adding what came three layers before."""
    build = Builder("layers")
    given = build.tensor("x", bytes=96, kind="input")
    results = [given]
    for i in range(count):
        kind = "output" if i == count - 1 else "activation"
        weight = build.tensor(f"w{i}", bytes=40 + 37 * (i % 5), kind="weight")
        results.append(build.tensor(f"t{i}", bytes=64 + 24 * (i % 4), kind=kind))
        reads = sorted({results[i], results[max(0, i - 3)]})
        build.op(f"op{i}", "matmul", reads=[*reads, weight], writes=[results[-1]], matrix=900 + 31 * i)
    return build.build()


def three_memories(ports: str = "serial", overlap: int = 0) -> Machine:
    """Small, middle and large: `layers` does not fit in the first two."""
    memories = (
        Memory("small", 320, 10**12, 10**12, alignment=16),
        Memory("middle", 700, 25 * 10**10, 2 * 10**11, alignment=16),
        Memory("large", 10**6, 3 * 10**10, 3 * 10**10, latency=50, alignment=16),
    )
    device = Device(
        "dev", ("small", "middle", "large"), {"matrix": {"*": 10**12}, "vector": {"*": 10**12}}, 100
    )
    return Machine("three", (device,), memories, (), Rules(ports=ports, overlap=overlap))
