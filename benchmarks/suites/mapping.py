"""The mapping suite: every solver in every cell at equal evaluations, EGRL's parts, noise, wrong
descriptions, what training has not seen; and the speed of evaluating.

`benchmarks/mapping_runs.py` runs its jobs side by side, and what is recorded is put together from parts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.suites import Case, Options, Row
from benchmarks.suites.mapping_cells import CELLS, Cell
from benchmarks.suites.mapping_run import run_cell
from benchmarks.suites.mapping_solvers import EGRL, MAPS, ONCE, SCORES, WHITE

QUICK_CELL = "resnet101/nnp-i"
QUICK_SOLVERS = (*EGRL, "probe", *SCORES, *MAPS, *WHITE)
QUICK_BUDGET = 200
QUICK_EXACT_SECONDS = 10.0
SPEED_TARGET = 50_000


def cell_rows(cell: Cell, options: Options, seed: int) -> Iterator[Row]:
    """The solvers of one cell with one seed; those without a random part only once."""
    solvers = options.solvers or cell.solvers
    if options.quick:
        if cell.case != QUICK_CELL:
            return
        solvers = options.solvers or QUICK_SOLVERS
    for solver in solvers:
        if solver in ONCE and seed and not cell.wrong:
            continue
        if options.quick:
            quick = replace(cell, budget=QUICK_BUDGET)
            yield run_cell(quick, solver, seed, seconds=QUICK_EXACT_SECONDS)
        else:
            yield run_cell(cell, solver, seed)


def speed(options: Options, seed: int) -> Iterator[Row]:
    """Maps of BERT that one core rectifies and times in a second."""
    problem = CELLS["bert/nnp-i"].load()
    count, rng = (4_096 if options.quick else 16_384), np.random.default_rng(seed)
    maps = rng.integers(0, len(problem.memories), (count, 2 * problem.nodes), dtype=np.int8)
    times = []
    for _ in range(5 if options.quick else 15):
        started = time.perf_counter()
        problem.rectify(maps, threads=1)
        times.append(time.perf_counter() - started)
    rate = count / statistics.median(times)
    yield Row(
        "speed",
        rate,
        "maps/s",
        "met" if rate >= SPEED_TARGET else "missed",
        machine="nnp-i",
        seed=seed,
        evaluations=count * len(times),
        seconds=sum(times),
        extra={"target": f">= {SPEED_TARGET:,} maps/s", "best": count / min(times), "model": "bert"},
    )


CASES: dict[str, Case] = {"speed": speed, **{case: partial(cell_rows, cell) for case, cell in CELLS.items()}}
