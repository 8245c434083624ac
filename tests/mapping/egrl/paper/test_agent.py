"""Published EGRL as a solver: within its budget, the same twice, resumed as if it had never stopped."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("optax")

import equinox as eqx

from loadmaster.errors import LoadmasterError, MissingPackage
from loadmaster.machine import load_machine
from loadmaster.mapping.egrl.paper import EvolutionAlone, GradientAlone, PaperEgrl, Settings
from loadmaster.mapping.egrl.paper.session import KINDS, Session
from loadmaster.mapping.problem import Mapping
from loadmaster.program.build import Builder
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, solve
from mapping.egrl.paper.small import SMALL, Recording, chain, chain_problem, roomy
from search.conformance import Outcome, watched

small = partial(PaperEgrl, **SMALL)
BUDGET = 150


def recording(**switches: Any) -> Recording:
    return Recording(chain(), roomy(), **switches)


def session(problem: Mapping, evaluations: int, **changes: Any) -> Session:
    settings = Settings(**SMALL | changes)
    made = Session(Meter(problem, Budget(evaluations=evaluations)), 0, settings, None)
    made.run()
    return made


@pytest.fixture(scope="module")
def whole() -> tuple[Outcome, list[np.ndarray]]:
    """A run, and all maps that it had scored."""
    problem = recording()
    outcome = watched(small, problem, Budget(evaluations=BUDGET))
    return outcome, problem.asked


@pytest.mark.parametrize("solver", [PaperEgrl, EvolutionAlone, GradientAlone])
@pytest.mark.parametrize("budget", [1, 5, 21, 22, 23, 100])
def test_the_budget_is_kept_to_the_evaluation(solver: type[PaperEgrl], budget: int) -> None:
    options = {name: value for name, value in SMALL.items() if name not in solver.fixed}
    if solver is GradientAlone:
        options["burn_in"] = 1000  # what it learns takes no evaluations
    problem = recording()
    solution = solve(solver(**options), problem, Budget(evaluations=budget))
    assert len(problem.asked) == solution.evaluations == budget
    assert (np.array(problem.asked)[:, ~problem.live] == problem.slowest).all()


def test_the_same_seed_gives_the_same_run(whole: tuple[Outcome, list[np.ndarray]]) -> None:
    first, asked = whole
    problem = recording()
    again = watched(small, problem, Budget(evaluations=BUDGET))
    assert np.array_equal(problem.asked, asked)
    values = [value for value, _ in first.watcher.improvements]
    assert len(values) > 1 and values == [value for value, _ in again.watcher.improvements]
    for (_, mine), (_, other) in zip(first.watcher.improvements, again.watcher.improvements, strict=True):
        assert np.array_equal(mine, other)
    other = watched(small, recording(), Budget(evaluations=BUDGET), seed=1)
    assert values != [value for value, _ in other.watcher.improvements]


def test_it_goes_on_from_every_checkpoint_as_if_it_had_not_stopped(
    whole: tuple[Outcome, list[np.ndarray]],
) -> None:
    first, asked = whole
    assert len(first.watcher.moments) == BUDGET // 8 + 1
    for moment in first.watcher.moments[::2]:
        problem = recording()
        rest = watched(small, problem, Budget(evaluations=BUDGET), moment=moment)
        assert len(problem.asked) == BUDGET - moment.evaluations
        assert [row.tolist() for row in problem.asked] == [
            row.tolist() for row in asked[moment.evaluations :]
        ]
        assert rest.solution.value == first.solution.value
        for name in ("champion_kind", "invalid_fraction", "first_valid_at", "generations"):
            assert rest.solution.metrics[name] == first.solution.metrics[name]


def test_a_ring_that_came_round_is_resumed_as_well() -> None:
    make, problem = partial(EvolutionAlone, **SMALL, replay=9), recording()
    first = watched(make, problem, Budget(evaluations=60))
    for moment in first.watcher.moments[::3]:
        again = recording()
        watched(make, again, Budget(evaluations=60), moment=moment)
        assert [row.tolist() for row in again.asked] == [
            row.tolist() for row in problem.asked[moment.evaluations :]
        ]


@pytest.mark.parametrize("budget", [30, 50, 90])
def test_it_may_be_resumed_within_another_budget(budget: int) -> None:
    make = partial(EvolutionAlone, **SMALL)
    moment = watched(make, recording(), Budget(evaluations=40)).watcher.moments[-1]
    problem = recording()
    rest = watched(make, problem, Budget(evaluations=budget), moment=moment)
    assert len(problem.asked) == max(0, budget - 40)
    assert rest.solution.evaluations == max(40, budget)


def test_what_it_says_of_itself(whole: tuple[Outcome, list[np.ndarray]]) -> None:
    (outcome, asked), problem = whole, chain_problem()
    extra, values = outcome.solution.metrics, problem.score(np.array(asked)).value
    assert extra["invalid_fraction"] == pytest.approx((values < 0).mean())
    assert extra["first_valid_at"] == int(np.argmax(values >= 0)) + 1
    assert extra["champion_kind"] in KINDS[:3]
    assert outcome.solution.value == values[values >= 0].min()
    assert set(extra["seconds_split"]) >= {"evaluate", "forward", "gradient", "evolve"}


def test_nothing_found_is_said() -> None:
    solution = solve(small(), Mapping(chain(), roomy(0, 0)), Budget(evaluations=8))
    assert solution.decision is None and solution.metrics["champion_kind"] == "none"
    assert solution.metrics["first_valid_at"] is None and solution.metrics["invalid_fraction"] == 1


def test_failed_measurements_are_not_stored() -> None:
    problem = recording(fails_from=0)
    made = session(problem, 40)
    failed = np.arange(40) % 2 == 0
    assert made.now.ring.stored == made.now.ring.filled == 20
    assert np.array_equal(made.now.maps[:20], np.array(problem.asked)[~failed])
    assert (made.now.rewards[:20] > -1).all()


def test_the_number_of_updates_is_no_reason_to_compile() -> None:
    made = Session(Meter(recording(), Budget(evaluations=60)), 0, Settings(**SMALL), None)
    counts, gradient = [], made.gradient

    def spied(*given: Any) -> Any:
        assert eqx.is_array(given[-1])
        counts.append(int(given[-1]))
        return gradient(*given)

    made.gradient = spied
    made.run()
    assert max(counts) == 8 and sum(counts) <= 60


def test_unknown_options_and_settings_of_another_solver() -> None:
    for make, name in ((PaperEgrl, "populaton"), (EvolutionAlone, "learner"), (GradientAlone, "population")):
        with pytest.raises(LoadmasterError, match=f"has no option '{name}'") as error:
            make(**{name: 3})
        assert error.value.object == name and error.value.remedy
    with pytest.raises(LoadmasterError, match="no option"):
        make_labelled("mapping", "paper", {"depht": 2})


@pytest.mark.parametrize(
    "wrong",
    [
        {"population": 3},
        {"population": -1},
        {"population": 6.5},
        {"population": "many"},
        {"boltzmann": 1.5},
        {"elites": 0},
        {"elites": 20},
        {"seeding": "sharp"},
        {"target": "two"},
        {"heads": 3},
        {"heads": 0},
        {"width": 0},
        {"depth": 9},
        {"depth": -1},
        {"batch": 0},
        {"tournament": 0},
        {"replay": 0},
        {"horizon": 0},
        {"updates": -1.0},
        {"burn_in": -1},
        {"crossover": 2.0},
        {"mutation": -0.1},
        {"entropy": float("nan")},
        {"actor_rate": float("inf")},
        {"gradient_clip": 0.0},
        {"learner": "no"},
        {"depth": None},
        {"learner": False, "population": 0},
    ],
)
def test_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(LoadmasterError, match="can't work with") as error:
        PaperEgrl(**wrong)
    assert error.value.remedy


def test_a_whole_number_may_stand_for_a_number() -> None:
    assert PaperEgrl(boltzmann=1, entropy=0, updates=2).settings.updates == 2


def test_switches_make_the_solver_again() -> None:
    for solver in (small(), EvolutionAlone(population=8), GradientAlone(width=64)):
        stored = json.loads(json.dumps(solver.options))
        again = make_labelled("mapping", solver.name, stored)
        assert isinstance(again, PaperEgrl) and again.settings == solver.settings


@pytest.mark.parametrize("package", ["jax", "equinox", "optax"])
def test_a_missing_package_is_one_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=package) as error:
        solve(small(), chain_problem(), Budget(evaluations=5))
    assert error.value.remedy == "pip install 'loadmaster[agents]'"
    assert "\n" not in error.value.message


def test_nothing_to_decide() -> None:
    build = Builder("fixed")
    x = build.tensor("x", bytes=64, kind="input")
    y = build.tensor("y", bytes=64, kind="output", fast=False)
    build.op("op", "add", reads=[x], writes=[y], vector=64)
    problem = Mapping(build.build(), roomy())
    assert not problem.live.any()
    for solver in (small(), EvolutionAlone(**SMALL)):
        solution = solve(solver, problem, Budget(evaluations=9))
        assert solution.value == problem.evaluate(problem.all_slowest())
        assert solution.evaluations == 1


def test_one_tensor_to_decide() -> None:
    build = Builder("one")
    x = build.tensor("x", bytes=64, kind="input")
    y = build.tensor("y", bytes=64, kind="output")
    build.op("op", "add", reads=[x], writes=[y], vector=64)
    problem = Mapping(build.build(), roomy())
    solution = solve(EvolutionAlone(**SMALL), problem, Budget(evaluations=60))
    every = problem.score(np.array([[0, 2], [1, 2], [2, 2]], dtype=np.int8)).value
    assert solution.value == every[every >= 0].min()


def test_two_memories() -> None:
    problem = Mapping(chain(), load_machine("h200-zero-copy"))
    assert len(problem.memories) == 2
    solution = solve(EvolutionAlone(**SMALL), problem, Budget(evaluations=60))
    assert solution.decision is not None and solution.decision.max() <= 1


OFF: list[dict[str, Any]] = [
    {"boltzmann": 0.0},
    {"boltzmann": 1.0},
    {"learner": False},
    {"learner": False, "boltzmann": 1.0},
    {"crossover": 0.0},
    {"mutation": 0.0},
    {"seeding": "none"},
    {"migration": False},
    {"burn_in": 0},
    {"updates": 0.0},
    {"elites": 5},
    {"tournament": 1},
    {"replay": 8},
    {"depth": 0},
    {"attention": False},
    {"target": "bootstrap"},
    {"entropy": 0.0, "action_noise": 0.0},
]


def test_every_switch_is_in_the_list() -> None:
    tried = {name for changes in OFF for name in changes}
    assert {field.name for field in fields(Settings)} - tried == {
        "population",
        "width",
        "heads",
        "batch",
        "actor_rate",
        "critic_rate",
        "gradient_clip",
        "discount",
        "polyak",
        "horizon",
    }


@pytest.mark.parametrize("off", OFF, ids=str)
def test_every_switch_can_be_off(off: dict[str, Any]) -> None:
    compiled_anew = {"depth", "attention", "target", "entropy"} & off.keys()
    shallow = {"depth": 0} if compiled_anew else {}
    solution = solve(PaperEgrl(**SMALL | shallow | off), problem := recording(), Budget(evaluations=60))
    assert len(problem.asked) == solution.evaluations == 60
    assert solution.value is not None and solution.metrics["generations"] >= 7
