"""For tests of offload plans: a stack of transformer layers with measured times, and random problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from generate_game import random_game_program
from loadmaster.machine import Machine, load_machine
from loadmaster.offload.problem import Offload
from loadmaster.program.build import Builder
from loadmaster.program.program import Program

LAYER_BYTES = 605_000_000
PARTS = (1, 1, 1, 1, 4, 4)
"""Of a layer's weights: query, key, value, output, and the two of the feed-forward net."""


def stack(layers: int = 24, layer_ms: float = 182 / 24, act_bytes: int = 80_000_000) -> Program:
    """Each layer reads six weights one after the other; an op's time is its share of the layer's."""
    build = Builder("stack")
    value = build.tensor("x", bytes=act_bytes, kind="input")
    costs = []
    for layer in range(layers):
        for number, share in enumerate(PARTS):
            size = LAYER_BYTES * share // sum(PARTS)
            weight = build.tensor(f"w{layer}.{number}", bytes=size, kind="weight")
            kind = "output" if layer == layers - 1 and number == len(PARTS) - 1 else "activation"
            result = build.tensor(f"y{layer}.{number}", bytes=act_bytes, kind=kind)
            build.op(
                f"op{layer}.{number}",
                "matmul",
                reads=[value, weight],
                writes=[result],
                scope=f"layers/{layer}",
            )
            costs.append([layer_ms * 1e-3 * share / sum(PARTS)])
            value = result
    return build.build(costs=np.array(costs))


def gpu(capacity: int) -> Machine:
    return load_machine("h200").with_capacity("hbm", capacity)


def small_gpu(rng: np.random.Generator, capacity: int) -> Machine:
    """Copies take about as long as ops."""
    machine = load_machine("h200")
    memory = replace(machine.memories[0], alignment=int(rng.choice([1, 4])), capacity=capacity)
    links = tuple(
        replace(link, bandwidth=int(rng.choice([10**11, 10**12])), latency=int(rng.integers(0, 5)))
        for link in machine.links
    )
    return replace(machine, memories=(memory, machine.memories[1]), links=links)


def random_offload(seed: int, ops: tuple[int, int] = (4, 24)) -> Offload | None:
    """A problem whose memory is too small, or None: nothing to offload."""
    rng = np.random.default_rng(seed)
    program = without_ties(random_game_program(rng, ops))
    if not program.n_ops:
        return None
    machine = small_gpu(rng, 2**40)
    roomy = Offload(program, machine)
    most = max(roomy.least, roomy.model.needed)
    capacity = int(rng.integers(roomy.least, most + 1)) // 4 * 4 + 4
    return Offload(program, machine.with_capacity("hbm", capacity))


def without_ties(program: Program) -> Program:
    """Every op makes its own results, as in captured programs."""
    none = np.zeros(0, dtype=np.int32)
    return replace(
        program,
        tie_kind=none.astype(np.int8),
        tie_source=none,
        tie_target=none,
        tie_at=none,
        tensor_fast=np.ones(program.n_tensors, dtype=bool),
    )


def problems(count: int, first: int = 0) -> list[Offload]:
    found = [random_offload(seed) for seed in range(first, first + count)]
    return [problem for problem in found if problem is not None]
