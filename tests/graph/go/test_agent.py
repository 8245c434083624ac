"""GO as a solver: its modes, what it starts from, what it does with little to decide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph.go.small import SMALL, chain, problem_of, random_problem
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.agent import Go, source_of
from loadmaster.graph.go.graph import SCHEMA
from loadmaster.graph.go.network import make_network
from loadmaster.graph.go.settings import PROFILES, Settings, Shape
from loadmaster.learn.policies import policy_arrays, save_policy
from loadmaster.machine import load_machine
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from search.conformance import conforms

ZERO = SMALL | {"mode": "zero-shot"}


def saved(path: Path, shape: Shape, **about: Any) -> str:
    save_policy(path, policy_arrays(make_network(5, shape)), {"schema": SCHEMA} | about)
    return str(path)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mode": "two"}, "there is no mode 'two'"),
        ({"samples": 0}, "at least 1"),
        ({"rate": float("nan")}, "can't work with rate"),
        ({"epochs": 1.5}, "can't work with epochs"),
        ({"profile": "mine"}, "there is no profile"),
        ({"width": 30}, "no multiple of 4 heads"),
        ({"colour": 1}, "no option 'colour'"),
        ({"segment": 0}, "segment = 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(LoadmasterError, match=says):
        Go(**wrong)


def test_the_paper_profile_sets_its_switches() -> None:
    settings = Settings(profile="paper")
    assert {name: getattr(settings, name) for name in PROFILES["paper"]} == PROFILES["paper"]
    assert settings.shape.device_head == "dense" and not settings.shape.hints
    assert (settings.samples_for(10_000), settings.samples_for(10_001)) == (32, 16)
    assert (settings.epochs_for(10_000), settings.epochs_for(10_001)) == (4, 1)


def test_what_auto_starts_from(monkeypatch: pytest.MonkeyPatch) -> None:
    import loadmaster.graph.go.agent as agent

    monkeypatch.setattr(agent, "pretrained_names", lambda name: ["go"])
    assert source_of("auto", Settings()) == "pretrained:go"
    assert source_of("auto", Settings(mode="one")) == "scratch"
    assert source_of("auto", Settings(profile="paper")) == "scratch", "of another shape"
    assert source_of("mine.npz", Settings(mode="one")) == "mine.npz"
    monkeypatch.setattr(agent, "pretrained_names", lambda name: [])
    assert source_of("auto", Settings()) == "scratch"


def test_a_policy_comes_from_a_file_and_must_fit(tmp_path: Path) -> None:
    shape = Go(**ZERO).settings.shape
    name = saved(tmp_path / "own.npz", shape)
    case = random_problem(1)
    own = solve(Go(**ZERO | {"init": name}), case, Budget())
    assert own.metrics["init"] == name and own.evaluations == 5
    with pytest.raises(LoadmasterError, match="features of version 0"):
        solve(Go(**ZERO | {"init": saved(tmp_path / "old.npz", shape, schema=0)}), case, Budget())
    with pytest.raises(LoadmasterError, match="has no fitting"):
        solve(Go(init=name, mode="zero-shot"), case, Budget())
    with pytest.raises(LoadmasterError, match="can't be read"):
        solve(Go(**ZERO | {"init": str(tmp_path / "none.npz")}), case, Budget())


def test_zero_shot_needs_no_jax() -> None:
    code = """
import sys
sys.modules["jax"] = sys.modules["equinox"] = sys.modules["optax"] = None
sys.path[:0] = PATHS
from graph.go.small import SMALL, random_problem
from loadmaster.graph.go.agent import Go
from loadmaster.search.solver import Budget, solve
from loadmaster.errors import MissingPackage
case = random_problem(1)
print(solve(Go(**SMALL, mode="zero-shot"), case, Budget()).evaluations)
try:
    solve(Go(**SMALL), case, Budget())
except MissingPackage as missing:
    print(missing.message)
"""
    here = [path for path in sys.path if path.endswith("tests")]
    told = subprocess.run(
        [sys.executable, "-c", code.replace("PATHS", repr(here))], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert told[0] == "5"
    assert "pip install 'loadmaster[agents]'" in told[1]


def test_zero_shot_is_the_likeliest_plan_then_draws() -> None:
    case = random_problem(1)
    alone = solve(Go(**ZERO | {"greedy_samples": 0}), case, Budget())
    more = solve(Go(**ZERO), case, Budget())
    assert (alone.evaluations, more.evaluations) == (1, 5)
    assert alone.value is not None and more.value is not None and more.value <= alone.value


@pytest.mark.parametrize(
    "tasks", [("placement",), ("fusion",), ("schedule",), ("placement", "fusion", "schedule")]
)
@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize("ops", [1, 2, 3])
def test_tiny_graphs(ops: int, edges: bool, tasks: tuple[str, ...]) -> None:
    case = problem_of(chain(ops, edges), tasks=tasks)
    solution = solve(Go(**ZERO), case, Budget())
    assert solution.value is not None and not case.violations(case.plan(solution.decision))


def test_with_nothing_to_decide_it_takes_the_base_plan() -> None:
    one = GraphOptimization(chain(4), _one_device(), tasks=("placement",))
    solution = solve(Go(**SMALL), one, Budget(evaluations=9))
    assert solution.evaluations == 1 and solution.value == one.evaluate(one.vector())


def _one_device() -> Any:
    machine = load_machine("h200-zero-copy")
    assert len(machine.devices) == 1
    return machine


def test_one_device_can_still_be_fused_and_ordered() -> None:
    case = GraphOptimization(chain(4, edges=False), _one_device())
    assert solve(Go(**ZERO), case, Budget()).value is not None


def test_it_conforms_without_learning() -> None:
    conforms(
        lambda: make_labelled("graph", "go", ZERO), random_problem(7), evaluations=(1, 3, 20), seeds=(0,)
    )


@pytest.mark.parametrize("mode", ["zero-shot", "fine-tune", "one"])
def test_a_budget_may_end_anywhere_within_a_batch(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import loadmaster.graph.go.agent as agent

    monkeypatch.setattr(agent, "batch_size", lambda problem, most: 2)
    case = random_problem(1)
    for evaluations in range(8) if mode == "zero-shot" else (1, 4, 7, 60):
        budget, options = Budget(evaluations=evaluations), SMALL | {"mode": mode, "updates": 1}
        solution = solve(Go(**options), case, budget)
        assert solution.evaluations <= evaluations
        assert (solution.value is not None) == (evaluations > 0)


def test_seeds_differ() -> None:
    case = random_problem(7, 40)
    values = set()
    for seed in range(4):
        found = solve(Go(**ZERO | {"plain_start": True, "hints": False}), case, Budget(), seed)
        values.add(None if found.decision is None else np.asarray(found.decision).tobytes())
    assert len(values) > 1
