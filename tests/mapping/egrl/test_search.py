"""EGRL on scores: every map fits, the compiler is never better, and a run goes on as if it had not stopped."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

from generate_mapping import layers, random_mapping, three_memories
from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.mapping.egrl.cases import make_case
from loadmaster.mapping.egrl.search import OPERATORS, Egrl
from loadmaster.mapping.problem import Mapping
from loadmaster.program import Builder
from loadmaster.program.program import Program
from loadmaster.search.pins import parse_pins
from loadmaster.search.problem import Bound, Decision, Scores
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, solve
from mapping.egrl.paper.small import Recording, chain, roomy
from mapping.egrl.rates import other_rates
from search.conformance import watched

FIRST = 5
"""What the policy decides and greedy by density, each by two views, and the compiler's map."""
ALL_PARTS = dict.fromkeys(OPERATORS, 1.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "strict": {"view": "strict"},
    "untrained": {"init": "none"},
    "all parts": ALL_PARTS,
    "not adaptive": ALL_PARTS | {"adaptive": False, "view": "strict"},
    "one parent": {"population": 1, "batch": 3},
}


def recorded(problem: Mapping, **switches: Any) -> Recording:
    return Recording(problem.program, problem.machine, **switches)


def problems() -> list[Mapping]:
    found = [Mapping(layers(), three_memories(ports)) for ports in ("serial", "parallel")]
    found += [make_case(number) for number in range(4)]
    random = (Mapping(*random_mapping(np.random.default_rng(seed), 20)) for seed in range(30))
    return found + [each for each in random if each.live.any() and len(each.program.read_op)][:8]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_map_fits_and_none_is_tried_twice(name: str) -> None:
    tried = 0
    for each in problems():
        problem = recorded(each)
        solution = solve(Egrl(**SETTINGS[name]), problem, Budget(40))
        maps = np.array(problem.asked)
        assert (each.rectify(maps)[1] == 0).all()
        assert (maps[:, ~each.live] == each.slowest).all()
        assert len(np.unique(maps, axis=0)) == len(maps) == solution.evaluations
        assert solution.value == each.score(maps).value.min()
        tried += len(maps)
    assert tried > 150


@pytest.mark.parametrize("name", SETTINGS)
def test_it_is_never_slower_than_the_compiler(name: str) -> None:
    for each in problems():
        problem = recorded(each)
        solution = solve(Egrl(**SETTINGS[name]), problem, Budget(FIRST))
        assert solution.value is not None and solution.value <= each.compiler_ps
        assert len(problem.asked) <= FIRST


def test_pins_are_kept() -> None:
    program, machine = layers(), three_memories()
    pins = parse_pins(program, machine, ["t3=small", "w7=middle", "t5=large", "w2=small"])
    problem = Recording(program, machine, pins=pins)
    solve(Egrl(**ALL_PARTS), problem, Budget(60))
    maps = np.array(problem.asked)
    assert (problem.rectify(maps)[1] == 0).all()
    fixed = problem.pinned >= 0
    assert fixed.sum() == 4 and (maps[:, fixed] == problem.pinned[fixed]).all()


def test_a_run_goes_on_from_every_checkpoint_as_if_it_had_not_stopped() -> None:
    for switches in ({}, {"noise": 0.05}):
        make = partial(Egrl, **ALL_PARTS)
        problem = Recording(chain(), roomy(), **switches)
        first = watched(make, problem, Budget(evaluations=60))
        asked = [row.tolist() for row in problem.asked]
        assert len(asked) == 60 and len(first.watcher.moments) > 5
        again = Recording(chain(), roomy(), **switches)
        assert watched(make, again, Budget(evaluations=60)).solution.value == first.solution.value
        assert [row.tolist() for row in again.asked] == asked
        for moment in first.watcher.moments[1::5]:
            rest = Recording(chain(), roomy(), **switches)
            found = watched(make, rest, Budget(evaluations=60), moment=moment).solution
            assert [row.tolist() for row in rest.asked] == asked[moment.evaluations :]
            for name in ("distinct_maps", "tried", "succeeded"):
                assert found.metrics[name] == first.solution.metrics[name]


def test_another_seed_is_another_search() -> None:
    asked = []
    for seed in (0, 0, 1):
        problem = Recording(chain(), roomy())
        solve(Egrl(), problem, Budget(40), seed)
        asked.append([row.tolist() for row in problem.asked])
    assert asked[0] == asked[1] != asked[2]
    assert asked[0][:3] == asked[2][:3]  # where it begins, nothing is drawn


def test_a_longer_budget_begins_like_a_shorter_one() -> None:
    asked = []
    for budget in (33, 60):
        problem = Recording(chain(), roomy())
        solve(Egrl(), problem, Budget(budget))
        assert len(problem.asked) == budget
        asked.append(np.array(problem.asked)[:33])
    assert np.array_equal(*asked)


def test_what_is_noisy_is_measured_again() -> None:
    repeats = {}
    for noise in (0.0, 0.1):
        problem = recorded(make_case(2), noise=noise)
        solve(Egrl(), problem, Budget(120))
        repeats[noise] = Counter(row.tobytes() for row in problem.asked)
    assert len(repeats[0.0]) == 120
    again = sorted(repeats[0.1].values())
    assert 3 <= again[-1] <= 6 and 40 <= len(again) <= 110  # not for ever, and beside new maps
    never = recorded(make_case(2), noise=0.1)
    solve(Egrl(repeat=0.0), never, Budget(60))
    assert len({row.tobytes() for row in never.asked}) == 60


class Priced(Recording):
    """Of another machine's times: what a map earns does not tell the two machines apart."""

    def __init__(self, program: Program, machine: Machine, real: Mapping) -> None:
        super().__init__(program, machine)
        self.real = real

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        self.asked += list(np.array(decisions))
        return self.real.score(decisions, first)

    def bound(self) -> Bound:
        return Bound(0, "none")


@pytest.mark.parametrize("policy", ["pretrained:scores", "none"])
def test_the_strict_view_reads_no_rates(policy: str) -> None:
    rng, differs = np.random.default_rng(0), 0
    for real in [Mapping(layers(), three_memories()), *(make_case(number) for number in range(3))]:
        machines = (real.machine, other_rates(real.machine, rng))
        asked = {}
        for view in ("strict", "nominal"):
            both = [Priced(real.program, machine, real) for machine in machines]
            for problem in both:
                solve(Egrl(view=view, init=policy, **ALL_PARTS), problem, Budget(40))
            asked[view] = [[row.tolist() for row in problem.asked] for problem in both]
        assert asked["strict"][0] == asked["strict"][1] and len(asked["strict"][0]) >= FIRST
        differs += asked["nominal"][0] != asked["nominal"][1]
    assert differs  # whoever reads the rates tries other maps


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4, 5, 6, 7, 16])
@pytest.mark.parametrize("view", ["nominal", "strict"])
def test_the_budget_is_kept_to_the_evaluation(view: str, budget: int) -> None:
    problem = Recording(chain(), roomy())
    start = problem.all_slowest()
    solver = Egrl(view=view)
    solver.start = start
    assert solve(solver, problem, Budget(budget)).evaluations == len(problem.asked) == budget


def test_a_known_map_is_begun_with() -> None:
    problem = Recording(chain(), roomy())
    known = problem.make_legal(np.random.default_rng(3).integers(0, 3, 2 * problem.nodes).astype(np.int8))
    solver = Egrl()
    solver.start = known
    solution = solve(solver, problem, Budget(10))
    assert any(np.array_equal(row, known) for row in problem.asked)
    assert solution.value is not None and solution.value <= problem.simulated_ps(known)


def test_a_search_ends_when_there_is_no_new_map() -> None:
    build = Builder("one")
    x = build.tensor("x", bytes=64, kind="input")
    build.op("op", "add", reads=[x], writes=[build.tensor("y", bytes=64, kind="output")], vector=64)
    problem = Recording(build.build(), roomy())
    solution = solve(Egrl(), problem, Budget(1000))
    assert solution.evaluations == len(problem.asked) <= 3
    every = problem.score(np.array([[0, 2], [1, 2], [2, 2]], dtype=np.int8)).value
    assert solution.value == every.min()


def test_nothing_to_decide() -> None:
    build = Builder("fixed")
    x = build.tensor("x", bytes=64, kind="input")
    y = build.tensor("y", bytes=64, kind="output", fast=False)
    build.op("op", "add", reads=[x], writes=[y], vector=64)
    problem = Mapping(build.build(), roomy())
    solution = solve(Egrl(), problem, Budget(9))
    assert solution.value == problem.evaluate(problem.all_slowest()) and solution.evaluations == 1


def test_failed_measurements_have_no_children() -> None:
    problem = recorded(make_case(2), fails_from=0)
    solution = solve(Egrl(), problem, Budget(80))
    assert len(problem.asked) == 80 and solution.value is not None
    assert len({row.tobytes() for row in problem.asked}) == 80


def test_it_needs_no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("jax", "equinox", "optax"):
        monkeypatch.setitem(sys.modules, package, None)
    assert solve(Egrl(), Mapping(chain(), roomy()), Budget(12)).value is not None


def test_what_it_says_of_itself() -> None:
    problem = Recording(chain(), roomy())
    metrics = solve(Egrl(**ALL_PARTS), problem, Budget(80)).metrics
    assert metrics["view"] == "nominal" and metrics["distinct_maps"] == 80 and metrics["unpackable"] == 0
    assert set(metrics["tried"]) == set(metrics["succeeded"]) == set(OPERATORS)
    assert all(0 <= metrics["succeeded"][name] <= metrics["tried"][name] for name in OPERATORS)
    assert 60 < sum(metrics["tried"].values()) <= 80
    assert set(metrics["seconds_split"]) == {"propose", "decode", "evaluate"}


def test_options_make_the_solver_again() -> None:
    solver = Egrl(view="strict", crossover=0.5)
    stored = json.loads(json.dumps(solver.options))
    again = make_solver("mapping", "egrl", stored)
    assert isinstance(again, Egrl) and again.settings == solver.settings
    with pytest.raises(LoadmasterError, match="has no option 'populaton'") as error:
        Egrl(populaton=3)
    assert "population" in str(error.value.remedy)


@pytest.mark.parametrize(
    "wrong",
    [
        {"view": "blind"},
        {"init": ""},
        {"population": 0},
        {"batch": 0},
        {"batch": "many"},
        {"network": -1.0},
        {"network": 0.0, "boltzmann": 0.0},
        {"repeat": 1.5},
        {"learning_rate": float("nan")},
    ],
)
def test_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(LoadmasterError, match="can't work with") as error:
        Egrl(**wrong)
    assert error.value.remedy


def test_a_policy_that_is_none_is_one_line() -> None:
    with pytest.raises(LoadmasterError) as error:
        solve(Egrl(init="pretrained:nobody"), Mapping(chain(), roomy()), Budget(5))
    assert error.value.remedy and "\n" not in error.value.message
