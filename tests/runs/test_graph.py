"""Runs of graphs: a plan's clusters do not tell the keys that made them, and nothing depends on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import BadPlan
from loadmaster.graph import GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.program.zoo.random_graphs import synthetic_graph
from loadmaster.runs import RunFolder
from loadmaster.runs.replay import replay
from loadmaster.runs.session import run_solver
from loadmaster.search.registry import load_problem
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State


class Draws(Solver):
    """Random keys and devices, without checkpoints; `less` says how many a later session gets to."""

    name, problem_kind, summary, deterministic = "draws", "graph", "random", True

    def __init__(self, less: int | None = None) -> None:
        self.less = less

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        rng = np.random.default_rng(seed)
        while not meter.exhausted and meter.evaluations != self.less:
            meter.evaluate(
                problem.vector(
                    rng.random(problem.nodes), rng.integers(0, 2, problem.groups), rng.random(problem.nodes)
                )
            )
        return meter.solution()


@pytest.fixture(scope="module")
def problem() -> GraphOptimization:
    return GraphOptimization(synthetic_graph("cells", 3), load_machine("p100x2"))


def test_a_run_with_keys_that_nobody_can_tell_is_replayed_and_resumed(
    problem: GraphOptimization, tmp_path: Path
) -> None:
    first = run_solver(Draws(), problem, Budget(12), folder=tmp_path)
    run = first.run
    assert first.decision is not None
    with pytest.raises(BadPlan):  # else this test shows nothing
        problem.decision(problem.plan(first.decision))
    assert problem.value_of(problem.plan(first.decision)) == first.value
    assert replay(RunFolder.open(run)).broken == []
    again = run_solver(Draws(), load_problem(run), Budget(30), resume=run)
    whole = run_solver(Draws(), problem, Budget(30))
    assert again.value == whole.value and np.array_equal(again.decision, whole.decision)


def test_a_best_plan_that_is_not_found_again_is_handed_over_as_it_is(
    problem: GraphOptimization, tmp_path: Path
) -> None:
    first = run_solver(Draws(), problem, Budget(12), folder=tmp_path)
    assert first.decision is not None and first.value is not None
    again = run_solver(Draws(less=1), problem, Budget(12), resume=first.run)
    assert again.value == first.value and again.decision is None
    assert again.plan.hash == problem.plan(first.decision).hash
