"""Which graphs GO is trained on, on which machines, deciding what. Held-out graphs are not here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.problems.graph import TASKS, Base, GraphOptimization
from loadmaster.problems.synthetic import synthetic_case
from loadmaster.program.models import load_model
from loadmaster.program.zoo import MODELS
from loadmaster.program.zoo.graphs import TRAINING_FAMILIES

SPLITS = {
    "train": (
        (
            "rnnlm-2",
            "rnnlm-4",
            "gnmt-2",
            "txl-2",
            "txl-4",
            "inception-b32",
            "wavenet-2x9",
            "vit-l16",
            "llama",
        ),
        0,
    ),
    "validation": (("gnmt-4",), 10_000),
}
"""Workloads, and the first seed of the synthetic families; as in benchmarks/splits/go.toml."""
MACHINES = ("p100x2", "p100x4", "p100x8", "p100nv-x8", "v100nv-x4", "v100nv-x8", "a100-40x4", "h100x8")
PLACED = (("placement",), Base(fusion="none", schedule="fifo"))
JOINT = (TASKS, Base())
ALONE = ((("fusion",), Base()), (("schedule",), Base()))


@dataclass(frozen=True)
class Case:
    """One problem by its name: 'rnnlm-2@p100x4/joint' or 'cells:17@p100x4/placement'."""

    graph: str
    machine: str
    tasks: tuple[str, ...] = TASKS
    base: Base = JOINT[1]

    @property
    def name(self) -> str:
        return f"{self.graph}@{self.machine}/{'joint' if len(self.tasks) == 3 else '+'.join(self.tasks)}"

    def load(self) -> GraphOptimization:
        family, _, seed = self.graph.partition(":")
        if seed:
            program, machine = synthetic_case(family, int(seed), self.machine)
        else:
            program, machine = load_model(self.graph), load_machine(self.machine)
        return GraphOptimization(program, machine, tasks=self.tasks, base=self.base)


def cases_of(split: str, synthetic: int = 60, seed: int = 0) -> list[Case]:
    """Every workload of a split on every machine, placed alone and jointly; on its own machine fused
    and ordered alone too; and so many graphs of each synthetic family, each on one machine."""
    if split not in SPLITS:
        raise LoadmasterError(
            f"there is no split '{split}' to train on", object="split", remedy=f"use {' or '.join(SPLITS)}"
        )
    workloads, first = SPLITS[split]
    found = []
    for graph in workloads:
        own = MODELS[graph].machine
        machines = (own, *(name for name in MACHINES if name != own)) if split == "train" else (own,)
        found += [Case(graph, machine, *what) for machine in machines for what in (JOINT, PLACED)]
        found += [Case(graph, own, *what) for what in ALONE]
    rng = np.random.default_rng([seed, 77])
    for family in TRAINING_FAMILIES:
        for number in range(synthetic):
            what = JOINT if rng.random() < 0.6 else PLACED
            found.append(Case(f"{family}:{first + number}", str(rng.choice(MACHINES)), *what))
    return found
