"""Baselines and searches of the MallocGame: their order, their starts, and what they never lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.malloc_game.games import DROP, NO_COPY
from loadmaster.malloc_game.heuristics import GreedyDensity, has_production, neighbours, site_gains
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan import Plan
from loadmaster.program.models import load_model
from loadmaster.program.zoo.synthetic import COUNT, synthetic
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, solve
from loadmaster.simulate import simulate

MACHINE = "tpu-v4i:cmem=1MiB"


def _game(number: int) -> MallocGame:
    return MallocGame(synthetic(number), load_machine(MACHINE))


def _solved(name: str, problem: MallocGame, evaluations: int = 200, **options: Any) -> Solution:
    solver = make_labelled("malloc-game", name, options)
    return solve(solver, problem, Budget(evaluations=evaluations))


@pytest.mark.parametrize("number", range(0, COUNT, 7))
def test_every_plan_is_sound_and_worth_what_is_said(number: int) -> None:
    problem = _game(number)
    slow = _solved("all-slow", problem).value
    assert slow == problem.all_slow_ps == simulate(problem.program, problem.machine, Plan()).total_ps
    for name in ("greedy-order", "greedy-density", "msa", "random-best", "es-moves", "anneal-moves"):
        solution = _solved(name, problem)
        assert solution.decision is not None and solution.value is not None
        plan = problem.plan(solution.decision)
        assert not problem.violations(plan)
        assert simulate(problem.program, problem.machine, plan).total_ps == solution.value
        assert solution.value >= problem.bound().value


def test_searches_are_no_worse_than_what_they_begin_with() -> None:
    for number in (9, 30, 49):
        problem = _game(number)
        greedy, msa = _solved("greedy-order", problem).value, _solved("msa", problem)
        assert greedy is not None and msa.decision is not None
        as_moves = problem.evaluate(problem.moves_of(problem.plan(msa.decision)))
        for name in ("es-moves", "anneal-moves"):
            cold, warm = _solved(name, problem).value, _solved(name, problem, start="msa").value
            assert cold is not None and cold <= greedy
            assert warm is not None and as_moves is not None and warm <= as_moves


def test_more_evaluations_help_and_searches_beat_chance() -> None:
    sums = dict.fromkeys(("es-moves", "anneal-moves", "msa-order", "random-best"), 0.0)
    for number in range(20, COUNT, 6):
        problem = _game(number)
        for name in sums:
            few, many = (_solved(name, problem, count).value for count in (64, 800))
            assert few is not None and many is not None and many <= few
            sums[name] += many / problem.all_slow_ps
    assert sums["es-moves"] < sums["random-best"] and sums["msa-order"] < sums["random-best"]


def test_the_gain_of_a_site_is_what_the_model_saves_by_it_alone() -> None:
    for number in (3, 20, 48):
        model = _game(number).model
        gains = site_gains(model)
        for site in range(0, model.sites, 3):
            alone = np.zeros(model.sites, dtype=bool)
            alone[site] = True
            saved = ((model.all_slow - model.elapsed(alone)) * model.repeat).sum()
            assert gains[site] == saved


def test_neighbours_are_the_same_tensor_s_sites_in_order() -> None:
    model = _game(40).model
    before, after = neighbours(model)
    for site in range(model.sites):
        own = np.flatnonzero(model.site_tensor == model.site_tensor[site])
        place = int(np.flatnonzero(own == site)[0])
        assert before[site] == (own[place - 1] if place else -1)
        assert after[site] == (own[place + 1] if place + 1 < len(own) else -1)


def test_density_moves_nothing_for_nothing() -> None:
    problem = _game(30)
    moves = GreedyDensity().make(problem)
    used = site_gains(problem.model) > 0
    after = neighbours(problem.model)[1]
    # What is fast without a gain of its own is there for the use after it.
    for site in np.flatnonzero((moves != DROP) & ~used).tolist():
        assert after[site] >= 0 and moves[after[site]] == NO_COPY


def test_a_start_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="start"):
        make_labelled("malloc-game", "es-moves", {"start": "luck"})


def test_production_is_known_where_it_was_extracted_and_only_there() -> None:
    problem = MallocGame(load_model("alexnet-inf"), load_machine("tpu-v4i"))
    assert has_production(problem)
    solution = _solved("production", problem)
    assert solution.value is not None and solution.value < problem.all_slow_ps
    auto = _solved("auto", problem, 300)
    assert auto.value is not None and auto.value <= solution.value
    assert not has_production(_game(0))
    with pytest.raises(LoadmasterError, match="no production placement"):
        _solved("production", _game(0))


def test_a_game_without_moves_is_answered_at_once() -> None:
    tiny = MallocGame(synthetic(3), load_machine("tpu-v4i:cmem=512"))
    assert tiny.moves == 0
    for name in ("all-slow", "greedy-order", "es-moves", "anneal-moves", "random-best", "msa"):
        assert _solved(name, tiny).value == tiny.all_slow_ps
