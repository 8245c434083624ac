"""The published GO learns: checkpoints, threads, and that what it draws gets better."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.go.small import SMALL, chain, problem_of, random_problem
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.paper.agent import PaperGo
from loadmaster.graph.go.paper.settings import Settings
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Observer, State, solve
from search.conformance import conforms

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

pytestmark = pytest.mark.usefixtures("quickly_compiled")


@pytest.fixture(scope="module")
def case() -> GraphOptimization:
    """The same for all, so that little is compiled."""
    return random_problem(21, 60)


class Watch(Observer):
    """Remembers everything that was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []
        self.states: list[tuple[int, Any, State]] = []

    def improved(self, meter: Meter) -> None:
        self.told.append(("improved", meter.evaluations, meter.best_value))

    def progress(self, meter: Meter, metrics: Any) -> None:
        self.told.append(("progress", meter.evaluations, *metrics.items()))

    def checkpoint(self, meter: Meter, state: State) -> None:
        self.states.append((meter.evaluations, meter.best, state))

    @property
    def rewards(self) -> list[float]:
        return [dict(line[2:])["reward"] for line in self.told if line[0] == "progress"]


def run(case: GraphOptimization, options: dict[str, Any], budget: Budget, seed: int = 0) -> tuple[Any, Watch]:
    watch = Watch()
    return solve(PaperGo(**options), case, budget, seed, watch), watch


def test_it_learns_until_the_budget_is_spent(case: GraphOptimization) -> None:
    solution, watch = run(case, SMALL, Budget(evaluations=30))
    assert solution.evaluations == 30
    assert solution.metrics["updates"] == 4 and len(watch.rewards) == 4
    assert [at for at, _, _ in watch.states] == [0, 7, 14, 21, 28]


def test_a_run_goes_on_as_if_it_had_never_stopped(case: GraphOptimization) -> None:
    budget, options = Budget(evaluations=60), SMALL
    _, whole = run(case, options, budget, 1)
    at, best, state = whole.states[2]
    rest = Watch()
    meter = Meter(case, budget, rest, evaluations=at)
    meter.restore(best)
    PaperGo(**options).run(meter, 1, state)
    assert rest.told and rest.told == [line for line in whole.told if line[1] > at]


def test_the_log_is_the_same_for_one_and_two_threads(
    case: GraphOptimization, monkeypatch: pytest.MonkeyPatch
) -> None:
    import loadmaster.graph.problem as module

    logs = []
    for threads in (1, 2):
        monkeypatch.setattr(module, "cores", lambda threads=threads: threads)
        logs.append(run(case, SMALL, Budget(evaluations=60), 3)[1].told)
    assert logs[0] == logs[1] and any(line[0] == "progress" for line in logs[0])


def test_it_conforms(case: GraphOptimization) -> None:
    run(case, SMALL, Budget(evaluations=60))  # compiled first: no part of its budget
    conforms(lambda: make_labelled("graph", "paper", SMALL), case, evaluations=(1, 3, 90), seeds=(0,))


def test_what_it_draws_gets_better(case: GraphOptimization) -> None:
    options = SMALL | {"rate": 3e-3, "rate_end": 1e-3}
    for seed in range(2):
        _, watch = run(case, options, Budget(evaluations=700), seed)
        assert np.mean(watch.rewards[-15:]) > np.mean(watch.rewards[:15]) + 0.01


def test_a_tiny_graph_is_learned_from() -> None:
    tiny = problem_of(chain(3, edges=False))
    solution, _ = run(tiny, SMALL, Budget(evaluations=8))
    assert solution.value is not None


def test_plans_that_never_fit_are_never_reported() -> None:
    from loadmaster.machine import load_machine

    machine = load_machine("toy2").with_capacity("hbm0", 2**16).with_capacity("hbm1", 2**16)
    tight = GraphOptimization(chain(6), machine)
    solution, watch = run(tight, SMALL, Budget(evaluations=40))
    assert solution.decision is None
    assert watch.rewards and max(watch.rewards) < -2


@pytest.mark.parametrize("segments", [1, 5, 63, 64, 65, 150, 256, 600])
def test_minibatches_cover_what_they_can(segments: int) -> None:
    from loadmaster.graph.go.paper.learner import picks

    settings = Settings()
    found = picks(np.random.default_rng(0), segments, settings)
    assert len(found) <= 4 and len({len(pick) for pick in found}) == 1
    assert all(len(set(pick.tolist())) == len(pick) <= 64 for pick in found)
    seen = {number for pick in found for number in pick.tolist()}
    assert len(seen) == min(segments, 256)
