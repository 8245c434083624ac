"""The cells of the graph suite: which program on which devices, what is decided, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from loadmaster.bench.order import TRAINING
from loadmaster.machine import Machine, load_machine
from loadmaster.problems.graph import TASKS, Base, GraphOptimization
from loadmaster.problems.synthetic import synthetic_case
from loadmaster.program import Program
from loadmaster.program.models import load_model
from loadmaster.program.zoo import MODELS
from loadmaster.program.zoo.graphs import TEST_FAMILIES
from loadmaster.solvers.graph import CONSTRUCTIVE, FUSERS, LEARNED, PLACERS, SCHEDULERS, SEARCHES

MODERN = ("llama", "vit-l16", "unet", "moe")
WORKLOADS = (*TRAINING, *MODERN)
QUICK_SET = ("rnnlm-2", "gnmt-2", "txl-4", "inception-b32", "wavenet-2x9", "llama")
"""No held-out workload is among them: those to run with several seeds."""
BUDGET, LARGE_BUDGET, LARGE = 2_000, 500, 30_000
"""Evaluations, and those of graphs with more ops."""
SEEDED = ("anneal-seeded", "brkga-seeded")
"""Searches that begin with the plans of the constructive solvers: labelled, never called cold."""
ONCE = (*CONSTRUCTIVE, "cp-sat")
"""Run with the first seed alone."""
CLASSICAL = (*CONSTRUCTIVE, *SEARCHES, *SEEDED, "cp-sat")
"""The bar for learned agents."""
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "anneal-seeded": ("anneal", {"start": "seeds"}),
    "brkga-seeded": ("brkga", {"start": "seeds"}),
    "go+anneal-unlearned": ("go+anneal", {"prior": "seeds"}),
    "go+brkga-unlearned": ("go+brkga", {"prior": "seeds"}),
}
"""Name in the table -> solver and its options. `-unlearned`: the same search without the policy."""
SYNTHETIC_SEEDS = 5
_TRIED = (*SEARCHES, *SEEDED)

Loader = Callable[[], tuple[Program, Machine]]


@dataclass(frozen=True)
class GraphCell:
    """One problem, and who solves it."""

    case: str
    loads: Loader
    machine: str
    tasks: tuple[str, ...] = TASKS
    base: Base = field(default_factory=Base)
    solvers: tuple[str, ...] = (*SCHEDULERS, *FUSERS, *PLACERS, "classical", *_TRIED)
    budget: int | None = None
    """None: by the number of ops."""

    def load(self) -> GraphOptimization:
        """The problem."""
        program, machine = self.loads()
        return GraphOptimization(program, machine, tasks=self.tasks, base=self.base)

    def evaluations(self, problem: GraphOptimization) -> int:
        return self.budget or (LARGE_BUDGET if problem.program.n_ops > LARGE else BUDGET)


def named(model: str, machine: str) -> tuple[Program, Machine]:
    """A workload on its machine."""
    return load_model(model), load_machine(machine)


def placement_cell(case: str, loads: Loader, machine: str, **more: Any) -> GraphCell:
    """Placement alone, nothing fused, first come first served: as published tables have it."""
    return GraphCell(case, loads, machine, ("placement",), Base(fusion="none", schedule="fifo"),
                     (*PLACERS, *_TRIED, *LEARNED), **more)  # fmt: skip


def _cells() -> list[GraphCell]:
    cells = []
    for model in WORKLOADS:
        machine = MODELS[model].machine
        cells.append(placement_cell(f"placement/{model}", partial(named, model, machine), machine))
    for model in WORKLOADS:
        machine = MODELS[model].machine
        cells.append(GraphCell(f"joint/{model}", partial(named, model, machine), machine))
    for family in TEST_FAMILIES:
        cells += [GraphCell(f"synthetic/{family}-{seed}", partial(synthetic_case, family, seed),
                            "p100x4", budget=1_000) for seed in range(SYNTHETIC_SEEDS)]  # fmt: skip
    return cells


CELLS: dict[str, GraphCell] = {cell.case: cell for cell in _cells()}
