"""Small graphs, and networks that are too small to be good, and quick."""

from __future__ import annotations

from typing import Any

import numpy as np

from generate_graph import random_graph
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.paper.settings import Shape
from loadmaster.machine import load_machine
from loadmaster.program.build import Builder
from loadmaster.program.program import Program

SMALL: dict[str, Any] = {
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
SHAPE = Shape(width=16, heads=2, inner=16, layers=1, rounds=1, segment=16)
"""The network of `SMALL`: what one test compiles, another need not."""


def chain(ops: int, edges: bool = True) -> Program:
    """Ops one after another, or each for itself."""
    build = Builder("chain")
    last = given = build.tensor("in", shape=(4,), bytes=2**20, dtype="f32", kind="input")
    for step in range(ops):
        kind = "output" if step == ops - 1 or not edges else "activation"
        made = build.tensor(f"t{step}", shape=(4,), bytes=2**20, dtype="f32", kind=kind)
        build.op(f"op{step}", "matmul", reads=[last if edges else given], writes=[made], matrix=10**9)
        last = made
    return build.build()


def problem_of(program: Program, **more: Any) -> GraphOptimization:
    return GraphOptimization(program, load_machine("toy2"), **more)


def random_problem(seed: int, ops: int = 40, **more: Any) -> GraphOptimization:
    """A random graph with something to decide, and a base plan that fits."""
    rng = np.random.default_rng(seed)
    while True:
        program, machine = random_graph(rng, ops)
        problem = GraphOptimization(program, machine, **more)
        decides = problem.nodes > 8 and problem.devices > 1
        if decides and problem.admits(problem.vector()) and not _solved(problem):
            return problem


def _solved(problem: GraphOptimization) -> bool:
    """Whether the base plan is at the bound already."""
    return problem.evaluate(problem.vector()) == problem.bound().value
