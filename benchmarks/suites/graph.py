"""The graph suite: every solver at equal evaluations, the order with the least peak, and speeds.

All times are simulated. Plans that do not fit are never rows: where a solver finds no other, its row
says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from benchmarks.suites import Case, Options, Row
from benchmarks.suites.graph_cells import CELLS, GraphCell, named
from benchmarks.suites.graph_external import external, generated
from benchmarks.suites.graph_run import loaded, run_graph, solver_rows
from benchmarks.suites.graph_speed import LARGE, SMALL, evaluation_speed, near_base, random_vectors
from benchmarks.suites.order import SEARCHES as ORDER_SEARCHES
from benchmarks.suites.order import OrderCell, cells, run_order
from loadmaster.graph import GraphOptimization

QUICK = (
    "placement/wavenet-2x9",
    "joint/txl-2",
    "synthetic/watts_strogatz-0",
    "order/light_shufflenet",
    "order/wavenet-2x9",
)
QUICK_BUDGET = 60
QUICK_LEFT_OUT = ("hdp", "m-sct")
LIMITS = {"heft": 10.0, "m-etf": 10.0, "metis": 5.0}
"""Seconds on about 80,000 ops and eight devices."""
THREADS = 2


def graph_rows(cell: GraphCell, options: Options, seed: int) -> Iterator[Row]:
    """The solvers of one cell with one seed."""
    if not options.quick or cell.case in QUICK:
        yield from solver_rows(cell, options, seed, QUICK_BUDGET, QUICK_LEFT_OUT)


def order_rows(cell: OrderCell, options: Options, seed: int) -> Iterator[Row]:
    """Every order of one graph."""
    if options.quick and cell.case not in QUICK:
        return
    for solver in cell.solvers:
        if (options.solvers and solver not in options.solvers) or (seed and solver not in ORDER_SEARCHES):
            continue
        row = run_order(
            cell.case,
            solver,
            seed,
            budget=QUICK_BUDGET if options.quick and solver in ORDER_SEARCHES else None,
            seconds=3.0 if options.quick else None,
        )
        if row.status != "skipped" or options.solvers:
            yield row


def large_speed(options: Options, seed: int) -> Iterator[Row]:
    """One evaluation of all three tasks on about 80,000 ops and eight devices, on one core."""
    if options.quick:
        return
    problem = GraphOptimization(*named(*LARGE))
    for name, vectors in (
        ("random", random_vectors(problem, 8, seed)),
        ("near-base", near_base(problem, 8, seed)),
    ):
        found = evaluation_speed(problem, vectors, 1)
        each = 1_000 * found["cpu_seconds_each"]
        yield Row(
            f"speed/large/{name}",
            each,
            "ms",
            "met" if each < 80 else "missed",
            machine=LARGE[1],
            seed=seed,
            evaluations=len(vectors),
            seconds=found["seconds_each"] * len(vectors),
            extra={"target": "< 80 ms", "model": LARGE[0], "vectors": name, "nodes": problem.nodes},
        )


def small_speed(options: Options, seed: int) -> Iterator[Row]:
    """Evaluations a second of about 1,000 ops on two cores."""
    problem = GraphOptimization(*named(*SMALL))
    count = 2_000 if options.quick else 10_000
    for name, vectors in (
        ("random", random_vectors(problem, count, seed)),
        ("near-base", near_base(problem, count, seed)),
    ):
        found = evaluation_speed(problem, vectors, THREADS)
        rate = found["per_second"]
        yield Row(
            f"speed/small/{name}",
            rate,
            "evaluations/s",
            "met" if rate >= 5_000 else "missed",
            machine=SMALL[1],
            seed=seed,
            evaluations=count,
            seconds=count / rate,
            extra={
                "target": ">= 5,000 evaluations/s",
                "model": SMALL[0],
                "vectors": name,
                "nodes": problem.nodes,
                "threads": THREADS,
            },
        )


def heuristic_speed(solver: str, options: Options, seed: int) -> Iterator[Row]:
    """A constructive solver on about 80,000 ops and eight devices, everything included."""
    if options.quick or seed:
        return
    program, machine = named(*LARGE)
    cell = GraphCell(f"speed/{solver}", lambda: (program, machine), LARGE[1])
    started = time.perf_counter()
    loaded(cell)
    made = time.perf_counter() - started
    row = run_graph(cell, solver, seed)
    took = made + row.seconds
    if row.status == "skipped":
        yield row
        return
    yield Row(
        cell.case,
        took,
        "s",
        "met" if took < LIMITS[solver] else "missed",
        machine=LARGE[1],
        evaluations=row.evaluations,
        seconds=took,
        extra={
            "target": f"< {LIMITS[solver]:g} s",
            "model": LARGE[0],
            "picoseconds": row.value,
            "solver_seconds": row.seconds,
        },
    )


CASES: dict[str, Case] = {
    "speed/large": large_speed,
    "speed/small": small_speed,
    **{f"speed/{name}": partial(heuristic_speed, name) for name in LIMITS},
    **{case: partial(graph_rows, cell) for case, cell in CELLS.items()},
    "external": external,
    "external/generated": generated,
    **{cell.case: partial(order_rows, cell) for cell in cells()},
}
