"""Random graphs with a machine that is short of memory: what agents train on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.machine import Machine, load_machine
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.program.zoo.graphs import FAMILIES, synthetic_graph
from loadmaster.simulate import simulate

SHARES = (0.4, 1.2)
"""Of what the whole graph needs on one device, a device holds a share between these."""


def synthetic_case(family: str, seed: int, machine: str | Machine = "p100x4") -> tuple[Program, Machine]:
    """A graph, and the machine with the capacities drawn for it: always the same."""
    program = synthetic_graph(family, seed)
    whole = load_machine(machine) if isinstance(machine, str) else machine
    rng = np.random.default_rng([31_000, list(FAMILIES).index(family), seed])
    peak = int(simulate(program, whole).memory_peak[whole.home[0]])
    drawn = rng.uniform(*SHARES) * peak
    capacity = min(max(drawn, _least(program, len(whole.devices))), SHARES[1] * peak)
    memories = [
        replace(memory, capacity=int(capacity)) if number in whole.home else memory
        for number, memory in enumerate(whole.memories)
    ]
    name = f"{whole.name}:{family}-{seed}"
    return program, replace(whole, name=name, memories=tuple(memories), text="")


def _least(program: Program, devices: int) -> float:
    """Less proves that no plan exists: an even share of what is kept, and the largest op."""
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    used = np.zeros(program.n_ops, dtype=np.int64)
    np.add.at(used, program.read_op, program.tensor_bytes[program.read_tensor])
    np.add.at(used, program.write_op, program.tensor_bytes[program.write_tensor])
    share = int(program.tensor_bytes[kept].sum()) / devices
    return 1.05 * (share + int(used.max(initial=0)))
