"""How fast GraphOptimization evaluates: vectors a second, and seconds of its one-off work."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.graph import GraphOptimization
from loadmaster.graph import search as graph_search
from loadmaster.host import cores
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model

Float64 = npt.NDArray[np.float64]

LARGE = ("gnmt-8", "p100x8")
"""About 80,000 ops on eight devices: one evaluation within 80 ms on one core."""
SMALL = ("gnmt-2:steps=2", "p100x2")
"""About 1,000 ops: 5,000 evaluations a second on two cores."""


def random_vectors(problem: GraphOptimization, count: int, seed: int = 0) -> Float64:
    """[count, V] random keys and devices for all decided tasks."""
    return graph_search.random_vectors(problem, np.random.default_rng(seed), count)


def near_base(problem: GraphOptimization, count: int, seed: int = 0) -> Float64:
    """[count, V] the base plan's fusion and placement with a hundredth of its parts changed."""
    rng = np.random.default_rng(seed)
    vectors = np.repeat(problem.vector()[None], count, axis=0)
    others = random_vectors(problem, count, seed + 1)
    return np.where(rng.random(vectors.shape) < 0.01, others, vectors)


def evaluation_speed(problem: GraphOptimization, vectors: Float64, threads: int) -> dict[str, Any]:
    """Seconds per evaluation by the clock and, with one thread, by the processor's time."""
    problem.measure(vectors[:1], threads)
    wall, cpu = time.perf_counter(), time.thread_time()
    problem.measure(vectors, threads)
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    row: dict[str, Any] = {
        "threads": threads,
        "evaluations": len(vectors),
        "seconds_each": wall / len(vectors),
        "per_second": len(vectors) / wall,
    }
    if threads == 1:
        row["cpu_seconds_each"] = cpu / len(vectors)
    return row


def graph_speed(model: str, machine: str, count: int = 8) -> dict[str, Any]:
    """All of it for one model on one machine."""
    program, devices = load_model(model), load_machine(machine)
    started = time.perf_counter()
    problem = GraphOptimization(program, devices)
    made = time.perf_counter() - started
    started = time.perf_counter()
    problem.cost_model_keys()
    cost_model = time.perf_counter() - started
    rows: dict[str, Any] = {
        "model": model,
        "machine": machine,
        "ops": program.n_ops,
        "nodes": problem.nodes,
        "groups": problem.groups,
        "make_seconds": made,
        "cost_model_seconds": cost_model,
    }
    for name, vectors in (
        ("random", random_vectors(problem, count)),
        ("near_base", near_base(problem, count)),
    ):
        rows[name] = [evaluation_speed(problem, vectors, threads) for threads in (1, cores())]
    return rows
