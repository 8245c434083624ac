"""Rows of the least-peak order: the graphs of the onnx package and the training graphs, every solver."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.suites import Row
from benchmarks.suites.mapping_cells import load_cell_model
from benchmarks.suites.order_runtime import RUNTIME, run_runtime
from benchmarks.suites.problems import make_as
from loadmaster.order.problem import PeakOrder
from loadmaster.planner import solve_checked
from loadmaster.search.registry import solver_labels
from loadmaster.search.solver import Budget

ONNX = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
TRAINING = (
    "rnnlm-2",
    "rnnlm-4",
    "rnnlm-8",
    "gnmt-2",
    "gnmt-4",
    "gnmt-8",
    "txl-2",
    "txl-4",
    "txl-8",
    "inception-b32",
    "inception-b64",
    "amoebanet",
    "wavenet-2x9",
    "wavenet-4x9",
)
SECONDS = 60.0
"""Of processor time on one core."""
SEARCHES = ("random-best", "anneal")
"""Limited by evaluations; all others end by themselves or by the clock."""
BUDGET = 2_000
LARGE = 10_000
"""Above so many ops a beam takes longer than it is worth, and greedy scans are slow."""


@dataclass(frozen=True)
class OrderCell:
    """One graph, and who puts it into order."""

    case: str
    model: str
    solvers: tuple[str, ...] = tuple(solver_labels("order"))


def cells() -> list[OrderCell]:
    """Every graph."""
    peers = (*OrderCell.solvers, RUNTIME)
    named = [OrderCell(f"order/light_{name}", f"onnx:light_{name}", peers) for name in ONNX]
    return named + [OrderCell(f"order/{name}", name) for name in TRAINING]


def run_order(
    case: str, solver: str, seed: int = 0, *, budget: int | None = None, seconds: float | None = None
) -> Row:
    """One solver on one graph; the checker passes the plan before it is a row."""
    cell = next(cell for cell in cells() if cell.case == case)
    problem = _loaded(cell.model)
    if solver == "peak-beam" and problem.nodes > LARGE:
        return Row(
            case,
            0.0,
            "bytes",
            "skipped",
            solver=solver,
            seed=seed,
            extra={"reason": f"more than {LARGE:,} ops"},
        )
    if solver == RUNTIME:
        return run_runtime(case, cell.model, problem, seconds or SECONDS)
    limits = Budget((budget or BUDGET) if solver in SEARCHES else budget, seconds or SECONDS)
    started = time.process_time()
    found = solve_checked(problem, solver, limits, seed, clock=time.process_time)
    seconds, solution = time.process_time() - started, found.solution
    return Row(
        case,
        float(-1 if solution.value is None else solution.value),
        "bytes",
        found.status,
        solver=solver,
        seed=seed,
        evaluations=solution.evaluations,
        seconds=seconds,
        baseline=float(problem.reference),
        bound=float(solution.bound.value),
        gap=solution.gap,
        extra={
            "model": cell.model,
            "ops": problem.nodes,
            "resident": problem.resident,
            "bound_by": solution.bound.method,
        },
    )


@lru_cache(maxsize=2)
def _loaded(model: str) -> PeakOrder:
    return make_as(PeakOrder, load_cell_model(model))
