"""The published GO as a solver: its settings, and what it does with little to decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.go.small import SMALL, chain, problem_of, random_problem
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.paper.agent import PaperGo
from loadmaster.graph.go.paper.settings import Settings
from loadmaster.machine import load_machine
from loadmaster.search.solver import Budget, solve

for package in ("jax", "equinox", "optax"):
    pytest.importorskip(package)

pytestmark = pytest.mark.usefixtures("quickly_compiled")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"samples": 0}, "at least 1"),
        ({"rate": float("nan")}, "can't work with rate"),
        ({"epochs": 1.5}, "can't work with epochs"),
        ({"ratio": "mine"}, "there is no ratio"),
        ({"width": 30}, "no multiple of 4 heads"),
        ({"colour": 1}, "no option 'colour'"),
        ({"segment": 0}, "segment = 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(LoadmasterError, match=says):
        PaperGo(**wrong)


def test_large_graphs_are_drawn_less() -> None:
    settings = Settings()
    assert (settings.samples_for(10_000), settings.samples_for(10_001)) == (32, 16)
    assert (settings.epochs_for(10_000), settings.epochs_for(10_001)) == (4, 1)


@pytest.mark.parametrize("tasks", [("placement",), ("fusion", "schedule")])
@pytest.mark.parametrize("ops", [1, 3])
def test_tiny_graphs(ops: int, tasks: tuple[str, ...]) -> None:
    case = problem_of(chain(ops, edges=False), tasks=tasks)
    solution = solve(PaperGo(**SMALL), case, Budget(10))
    assert solution.value is not None and not case.violations(case.plan(solution.decision))


def test_with_nothing_to_decide_it_takes_the_base_plan() -> None:
    machine = load_machine("h200-zero-copy")
    assert len(machine.devices) == 1
    one = GraphOptimization(chain(4), machine, tasks=("placement",))
    solution = solve(PaperGo(**SMALL), one, Budget(evaluations=9))
    assert solution.evaluations == 1 and solution.value == one.evaluate(one.vector())


def test_a_budget_may_end_anywhere_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    import loadmaster.graph.go.paper.learner as learner

    monkeypatch.setattr(learner, "batch_size", lambda problem, most: 2)
    case = random_problem(1)
    for evaluations in (0, 1, 4, 7, 20):
        solution = solve(PaperGo(**SMALL), case, Budget(evaluations=evaluations))
        assert solution.evaluations <= evaluations
        assert (solution.value is not None) == (evaluations > 0)


def test_seeds_differ() -> None:
    case, values = random_problem(7, 40), set()
    for seed in range(4):
        found = solve(PaperGo(**SMALL), case, Budget(7), seed)
        values.add(None if found.decision is None else np.asarray(found.decision).tobytes())
    assert len(values) > 1
