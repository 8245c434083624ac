"""Programs and machines that EGRL's policy is trained on: thousands of them, each made from its number.

What is held out was chosen before any training and is never made here:

- models: ResNet, BERT, ShuffleNet and Llama of every size and source (the cells that results are given on);
- machines: the families nnp-i, tpu-v4i and ethos-u;
- importers: every model that comes from an ONNX or a TFLite file.

A case is a program (of the zoo at another batch, a random transformer, a random convolutional net, a random
graph) and a machine (a known device's rates per kind of op, scaled at random; two to four memories of random
capacities, bandwidths, latencies and rules). Cases in which nothing can be gained are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.learn.training import Own
from loadmaster.machine import load_machine
from loadmaster.machine.machine import Machine, Memory
from loadmaster.mapping.problem import Mapping
from loadmaster.program.program import Program
from loadmaster.program.zoo import load_workload
from loadmaster.program.zoo.random_graphs import synthetic_graph
from loadmaster.program.zoo.random_nets import random_convnet, random_transformer, scale_batch
from loadmaster.simulate.costs import compute_times

HELD_OUT_MODELS = ("resnet", "bert", "shufflenet", "llama")
HELD_OUT_MACHINES = ("nnp-i", "tpu-v4i", "ethos-u")
HELD_OUT_IMPORTERS = ("onnx", "tflite")
ZOO = (
    "alexnet-inf",
    "alexnet-train",
    "alphatensor-net",
    "diffusion-unet",
    "gpt-decode",
    "gpt-prefill",
    "inception-v3",
    "mixer-b16",
    "moe-4",
    "transformer-2-train",
    "transformer-6",
    "vit-b16",
    "wavenet",
)
FAMILIES = ("layered", "branch_join", "cells", "wavefront")
"""Of random graphs; the others are held out."""
DEVICES = ("imxrt1170", "h200", "p100x2", "v100nv-x4", "k80x2")
"""Whose rates per kind of op machines start from."""
MOST_ENTRIES = 700
MOST_OWN, OWN_TRIES = 5_000, 20
"""Entries of a user's own program, and tries after which nothing can be gained there."""
LEAST_GAIN = 0.02
"""By which the best known map must beat all in the slowest memory."""

Rng = np.random.Generator


def make_case(number: int, seed: int = 0, own: Own = ()) -> Mapping:
    """The case of a number: the same one everywhere. With programs of one's `own` every second case is one
    of them, at another batch and with other capacities."""
    rng = np.random.default_rng([seed, number])
    for tries in itertools.count():
        try:
            if own and number % 2 and tries < OWN_TRIES:
                program, machine = _vary(rng, *own[int(rng.integers(len(own)))])
            else:
                program = _random_program(rng)
                machine = _random_machine(rng, program)
            problem = Mapping(program, machine)
        except LoadmasterError:
            continue  # a machine too small for this program, for example
        most = MOST_OWN if own and number % 2 else MOST_ENTRIES
        if 8 <= int(problem.live.sum()) <= most and _can_gain(problem):
            return problem
    raise AssertionError("random cases never end")


def _vary(rng: Rng, program: Program, machine: Machine) -> tuple[Program, Machine]:
    scaled = scale_batch(program, float(rng.choice([0.25, 0.5, 1, 1, 2, 4])))
    memories = tuple(
        replace(memory, capacity=max(memory.alignment, int(memory.capacity * _log_uniform(rng, 0.5, 2))))
        for memory in machine.memories
    )
    return scaled, replace(machine, memories=memories, text="")


def _can_gain(problem: Mapping) -> bool:
    """Whether greedy by density gains something, and is not plainly optimal."""
    from loadmaster.mapping.decoder import Decoder

    decoder = Decoder(problem)
    greedy = decoder.decode(np.zeros((1, *decoder.shape)), threads=1)
    slow, dense = problem.rectify(np.stack([problem.all_slowest(), greedy[0]]), threads=1)[0].tolist()
    best = min(dense, problem.compiler_ps)
    return bool(slow >= (1 + LEAST_GAIN) * best and best > 1.003 * problem.bound().value)


def _random_program(rng: Rng) -> Program:
    makers: Sequence[tuple[float, Callable[[Rng], Program]]] = (
        (0.35, _zoo_program),
        (0.30, random_transformer),
        (0.25, random_convnet),
        (0.10, _random_graph),
    )
    chosen = rng.choice(len(makers), p=[share for share, _ in makers])
    return makers[int(chosen)][1](rng)


@lru_cache(maxsize=len(ZOO))
def _workload(name: str) -> Program:
    return load_workload(name)


def _zoo_program(rng: Rng) -> Program:
    factor = float(rng.choice([0.125, 0.25, 0.5, 1, 1, 2, 4, 8]))
    return scale_batch(_workload(str(rng.choice(ZOO))), factor)


def _random_graph(rng: Rng) -> Program:
    return synthetic_graph(str(rng.choice(FAMILIES)), int(rng.integers(2**31)))


def _random_machine(rng: Rng, program: Program) -> Machine:
    """A device of `DEVICES` with rates scaled by kind, before memories that make this program interesting:
    from nearly bound by compute to waiting for memory alone, with room for a little to a third of it."""
    base = load_machine(str(rng.choice(DEVICES))).with_reach("all")
    device = base.devices[0]
    rates = {
        unit: {kind: max(1, int(rate * factor)) for kind, rate in by_type.items()}
        for unit, by_type in device.rates.items()
        for factor in [float(np.exp(0.7 * rng.normal()))]
    }
    device = replace(device, rates=rates, launch=int(device.launch * rng.choice([0, 0, 1])))
    one = replace(base, devices=(device,))
    compute = float(compute_times(program, one)[0][:, 0] @ program.op_repeat.astype(np.float64)) / 1e12
    moved = float(program.read_bytes @ program.op_repeat[program.read_op])
    moved += float(program.write_bytes @ program.op_repeat[program.write_op])
    slowest = moved / max(1e-12, compute) * _log_uniform(rng, 0.01, 2)
    count = int(rng.choice([2, 3, 4], p=[0.3, 0.6, 0.1]))
    fastest = slowest * _log_uniform(rng, 4, 120)
    steps = np.sort(rng.uniform(0.25, 0.75, count - 2))
    bandwidth = [fastest * (slowest / fastest) ** step for step in (0.0, *steps, 1.0)]
    live = float(program.storage_bytes[program.is_root].sum())
    capacity = [live * _log_uniform(rng, 0.004, 0.3)]
    for _ in range(count - 2):
        capacity.append(capacity[-1] * _log_uniform(rng, 1.5, 12))
    capacity.append(live * 1000)
    latency = int(rng.choice([0, 0, 100_000])) if compute > 1e-3 else 0
    memories = tuple(
        Memory(
            f"m{number}",
            int(size) + 64,
            int(rate) + 1,
            int(rate * rng.choice([1, 1, 0.5])) + 1,
            latency if number == count - 1 else 0,
            64,
        )
        for number, (size, rate) in enumerate(zip(capacity, bandwidth, strict=True))
    )
    rules = replace(
        base.rules,
        ports="parallel" if rng.random() < 0.2 else "serial",
        overlap=int(rng.choice([0, 0, 0, 100_000, 500_000])),
        reach="all",
    )
    names = tuple(memory.name for memory in memories)
    device = replace(device, memories=names)
    return Machine("random", (device,), memories, rules=rules)


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
