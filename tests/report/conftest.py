"""Runs of every kind of problem, small, and a browser where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generate_game import random_game
from generate_graph import random_graph, roomy
from generate_mapping import layers, three_memories
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.graph import GraphOptimization
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.order.problem import PeakOrder
from loadmaster.runs.session import run_solver
from loadmaster.search.problem import Problem
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def kept_run(folder: Path, problem: Problem, solver: str, budget: int, seed: int = 0) -> Path:
    """The folder of a run that was just made."""
    solution = run_solver(make_labelled(problem.kind, solver), problem, Budget(budget), seed, folder=folder)
    return solution.run


def problems() -> dict[str, tuple[Problem, str, int]]:
    """Kind -> a problem, a solver and its budget."""
    rng = np.random.default_rng(5)
    lower = rng.integers(0, 40, size=30)
    buffers = Buffers.of(lower, lower + rng.integers(1, 12, size=30), rng.integers(1, 2000, size=30))
    program, machine = random_graph(np.random.default_rng(3))
    return {
        "mapping": (Mapping(layers(), three_memories()), "random", 300),
        "malloc-game": (MallocGame(*random_game(np.random.default_rng(2))), "random-best", 40),
        "graph": (GraphOptimization(program, roomy(machine)), "random-best", 40),
        "allocation": (Allocation(buffers), "first-fit", 20),
        "order": (PeakOrder(layers(), three_memories()), "random-best", 20),
    }


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> a run."""
    folder = tmp_path_factory.mktemp("runs")
    return {kind: kept_run(folder, *case) for kind, case in problems().items()}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium, without a window and without a network."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield found
        found.close()
