"""GO that learns: modes, checkpoints, threads, and that what it draws gets better."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.go.small import SMALL, chain, problem_of, random_problem
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.go.agent import Go
from loadmaster.graph.go.settings import Settings
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Observer, State, solve
from search.conformance import conforms

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

pytestmark = pytest.mark.usefixtures("quickly_compiled")

ONE = SMALL | {"mode": "one"}


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
    return solve(Go(**options), case, budget, seed, watch), watch


def test_fine_tuning_tries_the_policy_first_and_ends_after_its_updates(case: GraphOptimization) -> None:
    solution, watch = run(case, SMALL, Budget())
    assert solution.evaluations == 1 + 4 + 4 * (6 + 1)
    assert solution.metrics["updates"] == 4 and len(watch.rewards) == 4
    assert [at for at, _, _ in watch.states] == [5, 12, 19, 26, 33]
    assert solution.policy["enter.weight"].shape[1] == 16


def test_one_counts_the_known_plans_and_goes_on_until_the_budget_is_spent(case: GraphOptimization) -> None:
    from loadmaster.graph.pipeline import seeds

    solution, watch = run(case, ONE, Budget(evaluations=90))
    assert solution.evaluations == 90
    assert watch.states[0][0] > len(seeds(case))
    values = case.score(np.stack([vector for _, vector in seeds(case)])).value
    assert solution.value <= values[(values >= 0) & (values < UNFIT)].min()
    cold, watch = run(case, ONE | {"warm_start": "none"}, Budget(evaluations=20))
    assert watch.states[0][0] == 0 and cold.evaluations == 20


def test_imitation_makes_the_known_plan_the_likeliest(case: GraphOptimization) -> None:
    """After many steps the arg-max of the policy is as good as the plan it was shown."""
    options = ONE | {"warm_steps": 150, "rate": 3e-3}
    _, watch = run(case, options, Budget(evaluations=100))
    _, cold = run(case, options | {"warm_start": "none"}, Budget(evaluations=60))
    first = [dict(w.told[[line[0] for line in w.told].index("progress")][2:]) for w in (watch, cold)]
    assert first[0]["likeliest"] >= first[1]["likeliest"]
    assert first[0]["entropy"] < 2.0


@pytest.mark.parametrize("options", [SMALL, ONE])
def test_a_run_goes_on_as_if_it_had_never_stopped(case: GraphOptimization, options: dict[str, Any]) -> None:
    budget = Budget(evaluations=110)
    _, whole = run(case, options, budget, 1)
    at, best, state = whole.states[2]
    rest = Watch()
    meter = Meter(case, budget, rest, evaluations=at)
    meter.restore(best)
    Go(**options).run(meter, 1, state)
    assert rest.told and rest.told == [line for line in whole.told if line[1] > at]


def test_the_log_is_the_same_for_one_and_two_threads(
    case: GraphOptimization, monkeypatch: pytest.MonkeyPatch
) -> None:
    import loadmaster.graph.problem as module

    logs = []
    for threads in (1, 2):
        monkeypatch.setattr(module, "cores", lambda threads=threads: threads)
        logs.append(run(case, ONE, Budget(evaluations=110), 3)[1].told)
    assert logs[0] == logs[1] and any(line[0] == "progress" for line in logs[0])


@pytest.mark.parametrize("options", [SMALL, ONE])
def test_it_conforms(case: GraphOptimization, options: dict[str, Any]) -> None:
    run(case, options, Budget(evaluations=120))  # compiled first: no part of its budget
    conforms(lambda: make_labelled("graph", "go", options), case, evaluations=(1, 3, 90), seeds=(0,))


def test_what_it_draws_gets_better(case: GraphOptimization) -> None:
    options = ONE | {"warm_start": "none", "rate": 3e-3, "rate_end": 1e-3, "imitation": 0.0}
    for seed in range(2):
        _, watch = run(case, options, Budget(evaluations=700), seed)
        assert np.mean(watch.rewards[-15:]) > np.mean(watch.rewards[:15]) + 0.01


def test_a_tiny_graph_is_learned_from() -> None:
    tiny = problem_of(chain(3, edges=False))
    solution, _ = run(tiny, SMALL | {"updates": 1}, Budget())
    assert solution.value is not None


def test_plans_that_never_fit_are_never_reported() -> None:
    from loadmaster.machine import load_machine

    machine = load_machine("toy2").with_capacity("hbm0", 2**16).with_capacity("hbm1", 2**16)
    tight = GraphOptimization(chain(6), machine)
    solution, watch = run(tight, ONE, Budget(evaluations=120))
    assert solution.decision is None
    assert watch.rewards and max(watch.rewards) < -2


@pytest.mark.parametrize("segments", [1, 5, 63, 64, 65, 150, 256, 600])
def test_minibatches_cover_what_they_can(segments: int) -> None:
    from loadmaster.graph.go.session import picks

    settings = Settings()
    found = picks(np.random.default_rng(0), segments, settings)
    assert len(found) <= 4 and len({len(pick) for pick in found}) == 1
    assert all(len(set(pick.tolist())) == len(pick) <= 64 for pick in found)
    seen = {number for pick in found for number in pick.tolist()}
    assert len(seen) == min(segments, 256)
