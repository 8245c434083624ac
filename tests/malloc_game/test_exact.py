"""Bounds, exhaustive search and CP-SAT of the MallocGame hold each other in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from generate_game import random_game
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.machine.machine import Machine, Rules
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.plan import Plan
from loadmaster.program.build import Builder
from loadmaster.program.zoo.synthetic import synthetic
from loadmaster.search.problem import bound_key
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, Status, solve

pytest.importorskip("ortools")

from loadmaster.malloc_game.bounds import game_bound, relax_game
from loadmaster.malloc_game.exact import CpSat, Exhaustive, Rounded
from loadmaster.search.or_tools import lagrangian

SECOND = 10**12
UNTIMED = float("inf")
IDLE = "tpu-v4i:cmem=1MiB"


def small_machine(copies: str) -> Machine:
    """1 MiB of fast memory; copies in idle time, or on engines of their own."""
    return replace(load_machine(IDLE), rules=Rules(copies=copies), text="")


@pytest.fixture(autouse=True)
def nothing_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of these games have proven bounds on record: here they are to be proven."""
    where = "loadmaster.malloc_game.problem.recorded_bound"
    monkeypatch.setattr(where, lambda program, machine, kind: None)


def made_up(number: int) -> MallocGame:
    """One of 50: both kinds of machines, in-place updates, weights, evictions."""
    return MallocGame(synthetic(number), small_machine(("idle", "free")[number % 2]))


def random_problem(seed: int) -> MallocGame:
    """All that the rules speak of: loops, carried tensors, views, ports, overlap, latencies …"""
    return MallocGame(*random_game(np.random.default_rng(seed)))


def best_of_random(problem: MallocGame, seed: int, count: int = 300) -> int:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([1.0, 1.0, 1.0], count)  # of Copy, NoCopy and Drop in each game
    moves = [rng.choice(3, problem.moves, p=share) for share in shares]
    totals = problem.play(np.array(moves, dtype=np.int8), threads=1).total
    return min(int(totals.min()), problem.all_slow_ps)


def prove(problem: MallocGame) -> Solution:
    return solve(CpSat(work=3.0), problem, Budget())


# --- hand-made ---------------------------------------------------------------------------------


def one_weight(first_flops: int) -> MallocGame:
    """xla-unit: a copy of 100 bytes takes 1 s, a slow read of them as well, a fast one 0.1 s."""
    build = Builder("one weight")
    weight = build.tensor("weight", bytes=100, kind="weight")
    if first_flops:
        build.op("first", "fusion", matrix=first_flops)
    build.op("second", "fusion", reads=[weight])
    return MallocGame(build.build(), load_machine("xla-unit"))


@pytest.mark.parametrize(
    ("first_flops", "best"),
    [(0, 1.0), (400, 1.1), (1000, 1.1), (3000, 3.1)],  # the rest of the copy is waited for
)
def test_a_copy_needs_time(first_flops: int, best: float) -> None:
    problem = one_weight(first_flops)
    expected = round(best * SECOND)
    assert problem.bound().value <= game_bound(problem).value <= expected
    assert first_flops == 400 or game_bound(problem).value == expected  # 400: half of it pays
    solution = prove(problem)
    assert (solution.value, solution.status) == (expected, Status.OPTIMAL)


def test_a_copy_under_way_takes_room() -> None:
    """Two weights of 80 bytes and 128 of room: the second is copied only after the first is used."""
    build = Builder("two weights")
    weights = [build.tensor(f"weight{i}", bytes=80, kind="weight") for i in range(2)]
    build.op("wait", "fusion", matrix=5000)
    for i, weight in enumerate(weights):
        build.op(f"use{i}", "fusion", reads=[weight])
    problem = MallocGame(build.build(), load_machine("xla-unit"))
    # 5 s, 0.08 s for the first; the second is read slowly in 0.8 s, for its copy comes too late.
    assert prove(problem).value == prove(problem).bound.value == round(5.88 * SECOND)
    roomy = MallocGame(problem.program, load_machine("xla-unit:fast=160"))
    assert game_bound(roomy).value == prove(roomy).value == round(5.16 * SECOND)
    assert game_bound(problem).value > game_bound(roomy).value  # 48 bytes of it can come in time


def test_what_the_game_does_not_decide_may_be_fast() -> None:
    """A scratch tensor has no moves, but a plan may place it: no bound is above that plan."""
    build = Builder("scratch")
    scratch = build.tensor("scratch", bytes=64)
    build.op("op", "fusion", reads=[scratch], writes=[scratch])
    problem = MallocGame(build.build(), load_machine("xla-unit"))
    assert problem.moves == 0
    plan = Plan.of(residencies=[(0, problem.model.fast, 0, 0, 0)])
    value = problem.evaluate(problem.decision(plan))
    assert not problem.violations(plan)
    assert value is not None and game_bound(problem).value <= value < problem.all_slow_ps


# --- against play ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_no_random_game_is_below_the_bound(first: int) -> None:
    tight = higher = 0
    for seed in range(first, first + 40):
        problem = random_problem(seed)
        quick, bound = problem.bound().value, game_bound(problem).value
        best = best_of_random(problem, seed)
        assert quick <= bound <= best, f"seed {seed}"
        tight += bound == best
        higher += bound > quick
    assert tight and higher


@pytest.mark.parametrize("number", range(0, 50, 7))
def test_no_search_is_below_the_bound(number: int) -> None:
    problem = made_up(number)
    bound = game_bound(problem, whole=True)
    found = [
        solve(make_labelled("malloc-game", name), problem, Budget(evaluations=600)).value
        for name in ("greedy-order", "msa", "anneal-moves")
    ]
    assert all(value is not None and bound.value <= value for value in found)
    assert min(value for value in found if value) <= 1.25 * bound.value


@pytest.mark.parametrize("number", range(50))
def test_bounds_and_optima_are_in_order(number: int) -> None:
    problem = made_up(number)
    linear = game_bound(problem)
    solution = prove(problem)
    assert solution.value is not None and solution.decision is not None
    assert problem.bound().value <= linear.value <= solution.bound.value <= solution.value
    assert solution.value <= 1.05 * solution.bound.value
    assert (solution.status == Status.OPTIMAL) == (solution.value == solution.bound.value)
    plan = problem.plan(solution.decision)
    assert not problem.violations(plan)
    assert problem.evaluate(problem.decision(plan)) == solution.value
    assert best_of_random(problem, number) >= solution.bound.value
    if problem.moves <= 16:
        games = solve(Exhaustive(), problem, Budget())
        assert games.metrics["complete"] and games.value is not None
        assert solution.bound.value <= games.value <= best_of_random(problem, number, 2000)


@pytest.mark.parametrize("seed", range(1000, 1016))
def test_cp_sat_on_odd_machines(seed: int) -> None:
    problem = random_problem(seed)
    solution = prove(problem)
    assert solution.value is not None and solution.decision is not None
    assert game_bound(problem).value <= solution.bound.value <= solution.value
    assert best_of_random(problem, seed) >= solution.bound.value
    assert not problem.violations(problem.plan(solution.decision))


def test_all_games_are_tried() -> None:
    """Against every list of preferences, one by one."""
    problem = one_weight(400)
    assert problem.moves == 1
    for seed in (3, 6, 14, 19, 30):
        problem = random_problem(seed)
        if problem.moves > 9:
            continue
        problem = problem.published()
        lists = np.array(list(np.ndindex(*(3,) * problem.moves)), dtype=np.int16)
        games = solve(Exhaustive(), problem, Budget())
        assert games.value == int(problem.play(lists).total.min())


def test_the_whole_game_reaches_plans_that_the_published_one_does_not() -> None:
    better = 0
    for seed in (3, 6, 14, 19, 30):
        problem = random_problem(seed)
        if problem.moves > 9:
            continue
        whole, published = (solve(Exhaustive(), game, Budget()) for game in (problem, problem.published()))
        assert whole.metrics["complete"] and published.metrics["complete"]
        assert whole.value is not None and published.value is not None
        assert problem.bound().value <= whole.value <= published.value
        better += whole.value < published.value
    assert better > 0


# --- the machinery -----------------------------------------------------------------------------


def test_any_multipliers_give_a_bound() -> None:
    problem = made_up(20)
    relaxed = relax_game(problem, UNTIMED)
    game, best = relaxed.game, relaxed.bound
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1e-3, 1.0):
        multipliers = rng.normal(0.0, scale * game.unit, len(game.draft.row_lower))
        assert lagrangian(game.linear, multipliers) <= best


def test_whole_tensors_raise_the_bound() -> None:
    problem = MallocGame(synthetic(12), small_machine("idle"))
    linear, whole = game_bound(problem), game_bound(problem, whole=True)
    assert linear.value < whole.value <= prove(problem).bound.value
    assert (linear.method, whole.method) == ("linear relaxation", "HiGHS")


def test_rounding_finds_good_games_and_goes_on() -> None:
    problem = made_up(32)
    few, many = (solve(Rounded(), problem, Budget(evaluations=n), seed=1) for n in (1, 400))
    assert few.value is not None and many.value is not None
    assert game_bound(problem).value == many.bound.value <= many.value <= few.value
    assert many.value <= 1.15 * many.bound.value and many.evaluations <= 400
    assert solve(Rounded(), problem, Budget(evaluations=400), seed=1).value == many.value


def test_large_games_are_refused() -> None:
    problem = made_up(40)
    with pytest.raises(LoadmasterError, match="too many to try all games"):
        solve(Exhaustive(), problem, Budget())
    with pytest.raises(LoadmasterError, match="too many for cp-sat"):
        solve(CpSat(most_moves=10), problem, Budget())
    rewinding = MallocGame(synthetic(0), small_machine("idle"), profile="paper")
    with pytest.raises(LoadmasterError, match="rewind"):
        solve(Exhaustive(), rewinding, Budget())


def test_budgets_are_kept() -> None:
    for solver in (Exhaustive(), CpSat()):
        for evaluations in (0, 1, 3):
            solution = solve(solver, made_up(2), Budget(evaluations=evaluations))
            assert solution.evaluations <= evaluations


def test_records_are_kept_apart_by_kind() -> None:
    problem = made_up(0)
    keys = {bound_key(problem.program, problem.machine, kind) for kind in ("mapping", "malloc-game")}
    assert len(keys) == 2 and bound_key(problem.program, problem.machine) in keys
