"""One solver in one cell of the graph suite, and the row it gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.suites import Options, Row
from benchmarks.suites.graph_cells import ONCE, OPTIONS, PEERS, GraphCell
from loadmaster.errors import LoadmasterError, MissingPackage, require
from loadmaster.graph import GraphOptimization
from loadmaster.graph.search import BY_CLOCK, CONSTRUCTIVE
from loadmaster.plan import Plan
from loadmaster.planner import solve_checked
from loadmaster.search.registry import make_labelled, solver_labels
from loadmaster.search.solver import Budget, Meter, Observer, Solver

EXACT_SECONDS = 60.0
Curve = list[tuple[int, int, float]]
"""(evaluations, best value so far, seconds) at every improvement."""


class Clocked(Observer):
    """Keeps the curve, with the time."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: Curve = []

    def wants_checkpoint(self, meter: Meter) -> bool:
        return False  # to gather a state takes time that is not the solver's

    def improved(self, meter: Meter) -> None:
        assert meter.best_value is not None
        self.curve.append((meter.evaluations, meter.best_value, round(meter.seconds, 3)))


def run_graph(
    cell: GraphCell, name: str, seed: int, *, budget: int | None = None, seconds: float | None = None
) -> Row:
    """One solver with one seed; the checker passes the plan before it is a row. `seconds` limits
    whatever takes long."""
    solver = _made(name)
    if isinstance(solver, str):
        return _skipped(cell, name, seed, solver)
    problem, base = loaded(cell)
    by_clock = name in BY_CLOCK
    unlimited = by_clock or name in CONSTRUCTIVE or (cell.seconds is not None and budget is None)
    limits = Budget(
        None if unlimited else budget or cell.evaluations(problem),
        seconds or cell.limit(problem) or (EXACT_SECONDS if by_clock else None),
    )
    observer = Clocked()
    clock = time.monotonic if cell.seconds is None else time.process_time
    try:
        found = solve_checked(problem, solver, limits, seed, observer=observer, clock=clock)
    except LoadmasterError as error:  # no expert for this graph, a package that is not there, …
        return _skipped(cell, name, seed, error.message)
    solution, status, value = found.solution, found.status, found.solution.value
    if solution.evaluations == 0 and value is None:
        return _skipped(cell, name, seed, "it has no plan for this graph")
    extra: dict[str, Any] = {
        "model": problem.program.name,
        "ops": problem.program.n_ops,
        "groups": problem.groups,
        "tasks": list(problem.tasks),
        "bound_by": solution.bound.method,
        **base,
    }
    if found.plan is not None:
        extra |= moved(problem, found.plan)
    elif value is None:
        status = "nothing that fits"
    if cell.seconds is not None:
        extra |= {"processor_seconds": limits.seconds, "curve": observer.curve}
    elif limits.evaluations is not None:
        extra |= {
            name: solution.metrics[name]
            for name in ("inner_evaluations", "updates")
            if name in solution.metrics
        }
        extra |= {"budget": limits.evaluations, "curve": observer.curve}
    return Row(
        cell.case,
        float(-1 if value is None else value),
        "ps",
        status,
        machine=cell.machine,
        solver=name,
        seed=seed,
        evaluations=solution.evaluations,
        seconds=found.seconds,
        baseline=float(problem.reference_ps),
        bound=float(solution.bound.value),
        gap=solution.gap,
        extra=extra,
    )


def solver_rows(
    cell: GraphCell, options: Options, seed: int, quick_budget: int, left_out: tuple[str, ...] = ()
) -> Iterator[Row]:
    """The solvers of one cell with one seed, those without a random part only once; who has no plan is left
    out unless it is named. A quick run has its own budget and leaves some out."""
    for solver in options.solvers or cell.solvers:
        if (seed and solver in ONCE) or (options.quick and solver in left_out):
            continue
        row = run_graph(cell, solver, seed, budget=quick_budget if options.quick else None)
        if row.status != "skipped" or options.solvers:
            yield row


def moved(problem: GraphOptimization, plan: Plan) -> dict[str, Any]:
    """Bytes over links, and the largest share of a device's memory."""
    timeline = problem.simulator.run(plan)
    capacity = np.array([memory.capacity for memory in problem.machine.memories], dtype=np.float64)
    homes = sorted({problem.machine.home[device] for device in range(problem.devices)})
    return {
        "link_bytes": int(timeline.link_bytes.sum()),
        "peaks": timeline.memory_peak[homes].tolist(),
        "fullest": float((timeline.memory_peak / capacity)[homes].max()),
    }


def _made(name: str) -> Solver | str:
    """The solver, or why there is none here."""
    solver, options = OPTIONS.get(name, (name, {}))
    if solver not in (*solver_labels("graph"), *PEERS):
        return f"there is no solver '{solver}'"
    try:
        made = _make_peer(options) if solver in PEERS else make_labelled("graph", solver, options)
    except MissingPackage as error:
        return error.message
    return made


def _make_peer(options: dict[str, Any]) -> Solver:
    """HDP, which is compared with and no solver of the package."""
    for package in ("jax", "equinox", "optax"):
        require(package, "agents")
    from benchmarks.peers.hdp.agent import Hdp

    return Hdp(**options)


def _skipped(cell: GraphCell, name: str, seed: int, reason: str) -> Row:
    return Row(
        cell.case,
        0.0,
        "ps",
        "skipped",
        machine=cell.machine,
        solver=name,
        seed=seed,
        extra={"reason": reason},
    )


_KEPT: dict[str, tuple[GraphOptimization, dict[str, Any]]] = {}


def loaded(cell: GraphCell) -> tuple[GraphOptimization, dict[str, Any]]:
    """A cell's problem, and its base plan: whether it fits, and by how much not. The last is kept."""
    if cell.case not in _KEPT:
        problem = cell.load()
        _, over, fault = problem.measure(problem.vector()[None], 1)
        placement = problem.base.placement
        base = {
            "base_placement": placement if isinstance(placement, str) else "given",
            "base_over": int(over.sum()),
            "base_runs": not fault[0, 0],
        }
        _KEPT.clear()
        _KEPT[cell.case] = problem, base
    return _KEPT[cell.case]
