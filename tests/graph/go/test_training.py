"""Training GO as a library function: on one graph, over several together, and what is kept of rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

from clocks import Ticking
from graph.go.small import random_problem
from loadmaster import clock
from loadmaster.errors import LoadmasterError
from loadmaster.graph import go
from loadmaster.graph.go import training
from loadmaster.graph.go.cases import Case, file_of, find_plan, save
from loadmaster.graph.go.infer import load_network
from loadmaster.graph.go.settings import Shape
from loadmaster.learn.checkpoints import BadState, read_state
from loadmaster.learn.policies import read_policy

SHAPE = {"width": 8, "heads": 1, "inner": 8, "layers": 1, "rounds": 1, "segment": 32}


@pytest.fixture(scope="module", autouse=True)
def _quickly(quickly_compiled: None) -> None: ...


def test_a_policy_is_trained_on_one_graph(tmp_path: Path) -> None:
    problem, out = random_problem(3, 20), tmp_path / "p.npz"
    options = SHAPE | {"samples": 4, "epochs": 1, "warm_start": "none"}
    row = go.train_one(problem, name="random", out=out, evaluations=12, options=options)
    assert (row["evaluations"], row["updates"], row["model"]) == (12, 2, "random")
    assert row["picoseconds"] <= row["base_picoseconds"]
    load_network(str(out), Shape(**SHAPE))
    assert read_policy(out, "go")[1]["settings"] == options
    with pytest.raises(LoadmasterError, match="has no end"):
        go.train_one(problem, name="random", out=out)


def test_a_policy_is_trained_over_graphs_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imitation, hints and rewards in that order; every look at the clock takes a second."""
    monkeypatch.setattr(training, "cores", lambda: 1)
    monkeypatch.setattr("loadmaster.graph.go.learner.STEPS", 20)
    out = tmp_path / "p.npz"
    cases = [Case("layered:2", "p100x2")]
    for case in cases:  # known already: no process is started for them
        training.plans_path(out).mkdir(exist_ok=True)
        save(file_of(training.plans_path(out), case), find_plan(case.load(), 40))
    lines: list[str] = []
    options = SHAPE | {"samples": 4}
    with clock.reading(Ticking(1.0)):
        rows = go.train(cases, out=out, seconds=40.0, options=options, report=lines.append)
    assert [row["case"] for row in rows] == [case.name for case in cases]
    said = "\n".join(lines)
    assert "1 graphs" in said and "chose among hints" in said and "rewards for" in said
    _, about = read_policy(out, "go")
    assert about["mode"] == "batch" and about["cases"] == [case.name for case in cases]
    state = tmp_path / "p.state.npz"
    with clock.reading(Ticking(1.0)):
        again = tmp_path / "q.npz"
        training.plans_path(out).rename(training.plans_path(again))
        go.train(cases, out=again, seconds=20.0, options=options, resume=state, report=lines.append)
    assert len(read_state(tmp_path / "q.state.npz", "go")[1]["sessions"]) == 2
    # It begins with what was learned, and rewards alone: no rewards that judge worse are kept.
    assert sum("chose among hints" in line for line in lines) == 1
    assert sum(line.startswith("before rewards") for line in lines) == 2
    with pytest.raises(BadState, match="can't be resumed"):
        go.train(cases, out=again, seconds=20.0, options=options | {"width": 16}, resume=state)


def test_rewards_keep_the_policy_that_judges_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds make policies 1, 2, 3…; on graphs that are not learned from, 2 is the best."""

    class Trainer:
        def __init__(self) -> None:
            self.learner, self.curve = 0, list[Any]()
            self.rates: list[tuple[float, float]] = []

        def reinforce(self, seconds: float, rate: float, rate_end: float, *_: float) -> None:
            self.learner += 1
            self.rates.append((rate, rate_end))
            time[0] += seconds

    time, saved = [0.0], {0: 0.1, 1: 0.05, 2: 0.3, 3: 0.2, 4: -1.0}
    monkeypatch.setattr(
        training._Training, "_mean_saved", lambda self, trainer, classes: saved[trainer.learner]
    )
    trainer: Any = Trainer()
    job = object.__new__(training._Training)
    job.report = training.ignore
    with clock.reading(lambda: time[0]):
        job._reinforce(trainer, [], 4 * training.ROUND_SECONDS)
    assert trainer.learner == 2 and len(trainer.rates) == 4
    first, last = training.PPO_RATES
    assert trainer.rates[0][0] == first > trainer.rates[-1][1] == pytest.approx(last)
