"""One small case for every registered solver: a problem with a bound that is out of reach where a
search should go on, options that make networks quick, and a number of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from generate_graph import random_graph
from generate_mapping import layers, three_memories
from generate_order import random_straight
from loadmaster.allocation.buffers_csv import parse_buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.graph import GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.problem import Offload
from loadmaster.order.problem import PeakOrder
from loadmaster.program.models import load_model
from loadmaster.program.zoo.synthetic import synthetic
from loadmaster.search.problem import Problem
from loadmaster.search.registry import kinds, make_labelled, solver_labels
from loadmaster.search.solver import Solver
from offload_stack import LAYER_BYTES, gpu, stack

LEARNING: dict[str, Any] = {"width": 8, "heads": 2, "depth": 0, "batch": 4, "burn_in": 8}
EVOLVING = LEARNING | {"population": 6, "boltzmann": 0.34}
PLAYING: dict[str, Any] = {
    "init": "scratch",
    "width": 16,
    "channels": 2,
    "grid_blocks": 0,
    "dynamics_blocks": 1,
    "prediction_blocks": 1,
    "bins": 11,
    "games": 8,
    "eval_games": 4,
    "eval_every": 2,
    "replay_games": 100,
}
TEACHING = {"simulations": 4, "eval_simulations": 4, "batch": 8, "updates": 2, "unroll": 2}
GO: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "inner": 16,
    "layers": 1,
    "rounds": 1,
    "segment": 16,
    "samples": 6,
    "epochs": 2,
    "minibatch": 1,
}
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("mapping", "paper"): EVOLVING,
    ("mapping", "ea"): EVOLVING,
    ("mapping", "pg"): LEARNING,
    ("malloc-game", "paper"): PLAYING | TEACHING,
    ("malloc-game", "paper-prod"): PLAYING | TEACHING,
    ("malloc-game", "policy-only"): PLAYING,
    ("graph", "paper"): GO,
    ("order", "anneal"): {"length": 400},
    ("order", "random-best"): {"orders": 400},
}
"""Networks that are too small to be good, and quick."""
LEARNED = {
    ("mapping", "paper"),
    ("mapping", "ea"),
    ("mapping", "pg"),
    ("malloc-game", "paper"),
    ("malloc-game", "paper-prod"),
    ("malloc-game", "policy-only"),
    ("graph", "paper"),
}
"""They are compiled, which takes seconds."""
FEW, SOME, MANY = 45, 150, 260
MEASURED = {("offload", "refined")}
"""They time plans on a device: what is done again need not be the same again."""


COMPLETE = {"auto", "exact", "large", "cp-sat"}
"""They end when they have a proof, not when evaluations are spent."""


def allocation(name: str) -> Allocation:
    """24 buffers; with alignments the bound is out of reach, so that a search goes on."""
    rng = np.random.default_rng(5)
    rows = ["id,lower,upper,size,alignment"]
    for i in range(24):
        start = int(rng.integers(0, 20))
        end, size = start + int(rng.integers(1, 9)), int(rng.integers(1, 40))
        rows.append(f"b{i},{start},{end},{size},{1 if name in COMPLETE else (1, 8, 32)[i % 3]}")
    return Allocation(parse_buffers("\n".join([*rows, ""]), "test.csv"), None, "test")


def mapping() -> Mapping:
    return Mapping(layers(), three_memories())


def game(name: str) -> MallocGame:
    """Small enough for exact solvers; a production placement is known of real programs alone."""
    if name == "production":
        return MallocGame(load_model("alexnet-inf"), load_machine("tpu-v4i-16m"))
    number = 4 if name in ("exhaustive", "cp-sat") else 36
    return MallocGame(synthetic(number), load_machine("tpu-v4i:cmem=1MiB"))


def offload() -> Offload:
    """Half of the layers are streamed, which can be hidden just so."""
    return Offload(stack(layers=8), gpu(4 * LAYER_BYTES + 4 * 80_000_000))


def graph() -> GraphOptimization:
    program, machine = random_graph(np.random.default_rng(181), 24)
    return GraphOptimization(program, machine)


def order() -> PeakOrder:
    return PeakOrder(random_straight(np.random.default_rng(11), 24))


@dataclass(frozen=True)
class Case:
    """One solver on one problem."""

    kind: str
    name: str
    evaluations: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def learned(self) -> bool:
        return (self.kind, self.name) in LEARNED

    def solver(self) -> Solver:
        return make_labelled(self.kind, self.name, self.options)

    def problem(self) -> Problem:
        makers: dict[str, Callable[[], Problem]] = {
            "allocation": lambda: allocation(self.name),
            "mapping": mapping,
            "malloc-game": lambda: game(self.name),
            "offload": offload,
            "graph": graph,
            "order": order,
        }
        return makers[self.kind]()

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


CASES = [
    Case(
        kind,
        name,
        FEW if (kind, name) in LEARNED else SOME if kind == "offload" else MANY,
        OPTIONS.get((kind, name), {}),
    )
    for kind in kinds()
    for name in solver_labels(kind)
    if (kind, name) not in MEASURED
]
