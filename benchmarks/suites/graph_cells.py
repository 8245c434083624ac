"""The cells of the graph suite: which program on which devices, what is decided, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.suites.order import TRAINING
from benchmarks.suites.problems import make_as
from loadmaster.graph import TASKS, Base, GraphOptimization
from loadmaster.graph.go.cases import synthetic_case
from loadmaster.graph.search import CONSTRUCTIVE, FUSERS, PLACERS, SCHEDULERS, SEARCHES
from loadmaster.machine import Machine, load_machine
from loadmaster.program import Program
from loadmaster.program.models import load_model
from loadmaster.program.zoo import MODELS
from loadmaster.program.zoo.random_graphs import TEST_FAMILIES

MODERN = ("llama", "vit-l16", "unet", "moe")
WORKLOADS = (*TRAINING, *MODERN)
QUICK_SET = ("rnnlm-2", "gnmt-2", "txl-4", "inception-b32", "wavenet-2x9", "llama")
"""No held-out workload is among them: those to run with several seeds."""
BUDGET, LARGE_BUDGET, LARGE = 2_000, 500, 30_000
"""Evaluations, and those of graphs with more ops."""
PEERS = ("hdp",)
"""Published agents that are only compared with: no solvers of the package."""
SEEDED = ("anneal-seeded", "brkga-seeded")
"""Searches that begin with the plans of the constructive solvers: labelled, never called cold."""
ONCE = (*CONSTRUCTIVE, "cp-sat")
"""Run with the first seed alone."""
CLASSICAL = (*CONSTRUCTIVE, *SEARCHES, *SEEDED, "cp-sat")
"""The bar for learned agents."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "no-attention": {"attention": False},
    "no-modulation": {"modulation": False},
    "no-messages": {"rounds": 0},
    "graph-ratio": {"ratio": "graph"},
}
"""What is left out of the published GO."""
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "anneal-seeded": ("anneal", {"start": "seeds"}),
    "brkga-seeded": ("brkga", {"start": "seeds"}),
    **{f"paper-{name}": ("paper", changed) for name, changed in ABLATIONS.items()},
}
"""Name in the table -> solver and its options."""
SECONDS = 60.0
BEST = ("large-neighbourhood", "annealing-chains", "go")
BY_SECONDS = ("anneal", *SEEDED, *BEST)
ABLATED, ABLATION_BUDGET = ("txl-2", "wavenet-2x9"), 700
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
    solvers: tuple[str, ...] = (*SCHEDULERS, *FUSERS, *PLACERS, "classical", *_TRIED, *BEST)
    budget: int | None = None
    """None: by the number of ops."""
    seconds: float | None = None
    """Of processor time on one core, in the place of evaluations; large graphs have twice as many."""

    def load(self) -> GraphOptimization:
        """The problem."""
        program, machine = self.loads()
        return make_as(GraphOptimization, program, machine, tasks=self.tasks, base=self.base)

    def limit(self, problem: GraphOptimization) -> float | None:
        large = problem.program.n_ops > LARGE
        return None if self.seconds is None else self.seconds * (2 if large else 1)

    def evaluations(self, problem: GraphOptimization) -> int:
        return self.budget or (LARGE_BUDGET if problem.program.n_ops > LARGE else BUDGET)


def named(model: str, machine: str) -> tuple[Program, Machine]:
    """A workload on its machine."""
    return load_model(model), load_machine(machine)


def placement_cell(case: str, loads: Loader, machine: str, **more: Any) -> GraphCell:
    """Placement alone, nothing fused, first come first served: as published tables have it."""
    return GraphCell(
        case,
        loads,
        machine,
        ("placement",),
        Base(fusion="none", schedule="fifo"),
        (*PLACERS, *_TRIED, *PEERS, *BEST),
        **more,
    )


def _cells() -> list[GraphCell]:
    cells = []
    for model in WORKLOADS:
        machine = MODELS[model].machine
        cells.append(placement_cell(f"placement/{model}", partial(named, model, machine), machine))
    for model in WORKLOADS:
        machine = MODELS[model].machine
        cells.append(GraphCell(f"joint/{model}", partial(named, model, machine), machine))
        cells.append(
            GraphCell(
                f"seconds/{model}",
                partial(named, model, machine),
                machine,
                solvers=BY_SECONDS,
                seconds=SECONDS,
            )
        )
    for model in ABLATED:
        machine = MODELS[model].machine
        ablated = ("go", "paper", *(f"paper-{name}" for name in ABLATIONS))
        cells.append(
            GraphCell(
                f"ablation/{model}",
                partial(named, model, machine),
                machine,
                solvers=ablated,
                budget=ABLATION_BUDGET,
            )
        )
    for family in TEST_FAMILIES:
        cells += [
            GraphCell(
                f"synthetic/{family}-{seed}", partial(synthetic_case, family, seed), "p100x4", budget=1_000
            )
            for seed in range(SYNTHETIC_SEEDS)
        ]
    return cells


CELLS: dict[str, GraphCell] = {cell.case: cell for cell in _cells()}
