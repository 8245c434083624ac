"""Graphs and machines that GO is trained on: thousands of them, each made from its number.

What is held out was chosen before any training and is never made here:

- models: AmoebaNet, Inception, Llama, Mamba, mixtures of experts and U-Nets, of every size and source;
- synthetic families: Watts-Strogatz, Barabási-Albert and stochastic blocks;
- machines: v100nv-x8 and h100x8.

A case is a program (a model of the zoo at another size, a small one at another batch, a random net, a random
graph) and a machine of 2 to 16 devices: a known device, links of random bandwidth and latency, and memories
that hold between a little less than the graph's share and all of it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.graph.problem import GraphOptimization
from loadmaster.learn.training import Own
from loadmaster.machine import Machine, load_machine
from loadmaster.machine.machine import Link, Memory
from loadmaster.program.models import load_model
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.program.zoo.random_graphs import FAMILIES, TEST_FAMILIES, TRAINING_FAMILIES, synthetic_graph
from loadmaster.program.zoo.random_nets import random_convnet, random_transformer, scale_batch
from loadmaster.simulate import simulate

HELD_OUT_MODELS = ("amoebanet", "inception", "llama", "mamba", "moe", "unet")
HELD_OUT_FAMILIES = tuple(TEST_FAMILIES)
HELD_OUT_MACHINES = ("v100nv-x8", "h100x8")
TRACED = (
    "rnnlm-2:steps=6",
    "rnnlm-2:steps=14",
    "rnnlm-2:steps=24",
    "rnnlm-4:steps=8",
    "rnnlm-4:layers=3,steps=10",
    "gnmt-2:steps=5",
    "gnmt-2:steps=9",
    "gnmt-4:layers=3,steps=5",
    "txl-2",
    "txl-2:segments=2",
    "txl-2:segments=3",
    "txl-4:layers=3",
    "txl-4:layers=6,segments=2",
    "wavenet-2x9",
    "wavenet-2x9:layers=5",
    "wavenet-2x9:layers=7",
    "wavenet-2x9:stacks=3,layers=6",
    "vit-l16:layers=3",
    "vit-l16:layers=6",
    "vit-l16:layers=9",
)
SMALL = (
    "alexnet-train",
    "alphatensor-net",
    "bert",
    "gpt-prefill",
    "mixer-b16",
    "resnet50",
    "resnet50-train",
    "transformer-2-train",
    "vit-b16",
    "wavenet",
)
"""Of the zoo for one device, with little to trace."""
DEVICES = ("p100x2", "p100nv-x8", "v100nv-x4", "a100-40x4", "k80x4")
"""Whose devices and links machines start from."""
COUNTS = (2, 2, 3, 4, 4, 4, 6, 8, 8, 12, 16)
FIRST_SEED = 1_000_000
"""Of synthetic graphs: smaller ones are for validation and tests."""
MOST_NODES, GROUPS = 5_000, (8, 1_200)
"""Of a case: larger ones cost more than they teach."""
SHARES = (0.4, 1.2)
"""Of what the whole graph needs on one device, a device holds a share between these."""

Rng = np.random.Generator


def make_case(number: int, seed: int = 0, own: Own = ()) -> GraphOptimization:
    """The case of a number: the same one everywhere. With programs of one's `own` every second case is one of
    them, with other capacities."""
    rng = np.random.default_rng([seed, number, 25])
    for _ in itertools.count():
        if own and number % 2:
            return GraphOptimization(*_vary(rng, *own[int(rng.integers(len(own)))]))
        program = _random_program(rng)
        try:
            problem = GraphOptimization(program, _random_machine(rng, program))
            small = problem.nodes <= MOST_NODES and GROUPS[0] <= problem.groups <= GROUPS[1]
            if small and problem.no_plan is None:
                return problem
        except LoadmasterError:
            continue  # an op that these devices can't run, for example
    raise AssertionError("random cases never end")


def _vary(rng: Rng, program: Program, machine: Machine) -> tuple[Program, Machine]:
    memories = tuple(
        replace(memory, capacity=max(memory.alignment, int(memory.capacity * rng.uniform(0.8, 1.5))))
        for memory in machine.memories
    )
    return program, replace(machine, memories=memories, text="")


def _random_program(rng: Rng) -> Program:
    kind = rng.random()
    if kind < 0.45:
        family = str(rng.choice(list(TRAINING_FAMILIES)))
        return synthetic_graph(family, FIRST_SEED + int(rng.integers(2**30)))
    if kind < 0.7:
        return _model(str(rng.choice(TRACED)))
    if kind < 0.85:
        return scale_batch(_model(str(rng.choice(SMALL))), float(rng.choice([0.5, 1, 2, 4, 8])))
    return random_transformer(rng) if kind < 0.93 else random_convnet(rng)


@lru_cache(maxsize=len(TRACED) + len(SMALL))
def _model(name: str) -> Program:
    return load_model(name)


def _random_machine(rng: Rng, program: Program) -> Machine:
    """So many of one device, all linked with each other; slower or faster links, and little memory."""
    base = load_machine(str(rng.choice(DEVICES)))
    device, memory, link = base.devices[0], base.memories[base.home[0]], base.links[0]
    count = int(rng.choice(COUNTS))
    bandwidth = max(1, int(link.bandwidth * np.exp(0.8 * rng.normal())))
    latency = int(link.latency * float(rng.choice([0.2, 1, 1, 3])))
    whole = replace(base, devices=(device,), memories=(memory,), links=(), text="")
    capacity = draw_capacity(rng, program, whole, count)
    memories = tuple(replace(memory, name=f"m{i}", capacity=capacity) for i in range(count))
    devices = tuple(replace(device, name=f"d{i}", memories=(f"m{i}",)) for i in range(count))
    links = tuple(
        Link(f"m{a}", f"m{b}", bandwidth, latency, (f"out{a}", f"in{b}"))
        for a in range(count)
        for b in range(count)
        if a != b
    )
    return replace(base, name=f"random-{count}", devices=devices, memories=memories, links=links, text="")


def draw_capacity(rng: Rng, program: Program, whole: Machine, devices: int) -> int:
    """Bytes of each device's memory: a share of what the program needs on one alone, but not so little that
    no plan can exist."""
    peak = int(simulate(program, whole).memory_peak[whole.home[0]])
    drawn = rng.uniform(*SHARES) * peak
    return int(min(max(drawn, _least(program, devices)), SHARES[1] * peak))


def _least(program: Program, devices: int) -> float:
    """Less proves that no plan exists: an even share of what is kept, and the largest op."""
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    used = np.zeros(program.n_ops, dtype=np.int64)
    np.add.at(used, program.read_op, program.tensor_bytes[program.read_tensor])
    np.add.at(used, program.write_op, program.tensor_bytes[program.write_tensor])
    share = int(program.tensor_bytes[kept].sum()) / devices
    return 1.05 * (share + int(used.max(initial=0)))


def synthetic_case(family: str, seed: int, machine: str | Machine = "p100x4") -> tuple[Program, Machine]:
    """A random graph, and a machine with the capacities drawn for it: always the same. For validation and
    tests; training's are made by `make_case`."""
    program = synthetic_graph(family, seed)
    whole = load_machine(machine) if isinstance(machine, str) else machine
    rng = np.random.default_rng([31_000, list(FAMILIES).index(family), seed])
    capacity = draw_capacity(rng, program, whole, len(whole.devices))
    memories: list[Memory] = [
        replace(memory, capacity=capacity) if number in whole.home else memory
        for number, memory in enumerate(whole.memories)
    ]
    name = f"{whole.name}:{family}-{seed}"
    return program, replace(whole, name=name, memories=tuple(memories), text="")
