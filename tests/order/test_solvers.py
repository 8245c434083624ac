"""Solvers of the order: exact ones against every order, all of them against bound and program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clocks import Ticking
from generate_order import random_straight
from loadmaster import _core
from loadmaster.order.exact import PAIR_BOUND, Bounds
from loadmaster.order.problem import PeakOrder
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled, solver_labels
from loadmaster.search.solver import Budget, Meter, Status, solve
from order.test_problem import all_orders
from search.conformance import conforms

NAMES = solver_labels("order")


def problem(seed: int, ops: int) -> PeakOrder:
    return PeakOrder(random_straight(np.random.default_rng(seed), ops))


def least_peak(of: PeakOrder) -> int:
    return min(
        int(of.native.profile(np.array(order, dtype=np.int32)).max()) for order in all_orders(of.graph.before)
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_exact_solvers_find_the_least_of_all_orders(seed: int) -> None:
    of = problem(seed, 5 + seed % 4)
    least = least_peak(of)
    for name in ("peak-dp", "auto"):
        solution = solve(make_labelled("order", name), of, Budget())
        assert solution.value == least and solution.status == Status.OPTIMAL
        assert solution.bound.value == least
    for name in NAMES:
        solution = solve(make_labelled("order", name), of, Budget(evaluations=50))
        assert solution.value is not None and solution.value >= least >= solution.bound.value
        assert solution.decision is not None and of.violations(of.plan(solution.decision)) == []
        if name in ("auto", "peak-cut", "peak-dp", "anneal", "random-best"):
            assert solution.value <= of.reference


@pytest.mark.parametrize("seed", range(40))
def test_the_search_finds_an_order_if_and_only_if_there_is_one(seed: int) -> None:
    of = problem(seed, 8)
    least = least_peak(of)
    for budget in (0, least - 1, least, least + 7):
        search = _core.PeakSearch(of.native, budget)
        found = None
        while found is None:
            found = search.advance(3)
        assert found == (budget >= least)
        if found:
            assert of.native.profile(search.order()).max() <= budget


@pytest.mark.parametrize("seed", range(6))
def test_larger_programs_are_proven_or_have_a_gap(seed: int) -> None:
    of = problem(seed, 60)
    solutions = {name: solve(make_labelled("order", name), of, Budget(evaluations=300)) for name in NAMES}
    bound = max(solution.bound.value for solution in solutions.values())
    assert all(s.value is not None and s.value >= bound for s in solutions.values())
    assert solutions["auto"].value == min(s.value for s in solutions.values() if s.value)
    assert solutions["auto"].value <= of.reference


@pytest.mark.parametrize("name", NAMES)
def test_solvers_conform(name: str) -> None:
    options: dict[str, Any] = {"anneal": {"length": 400}, "random-best": {"orders": 400}}.get(name, {})
    conforms(lambda: make_labelled("order", name, options), problem(11, 24))


@pytest.mark.parametrize("looks", [3, 30, 300])
def test_the_time_limit_is_obeyed(looks: int) -> None:
    """It ends at the next look at the clock, or the one after, with an answer."""
    of = PeakOrder(load_model("resnet50:batch=2"))
    wide = problem(0, 900)
    for each in (of, wide):
        clock = Ticking(1.0)
        solution = solve(make_labelled("order", "auto"), each, Budget(seconds=float(looks)), clock=clock)
        assert clock.looks < 2 * looks + 2_000 and solution.value is not None
        assert solution.value <= each.reference


def test_pairs_of_ops_prove_more_than_single_ones_and_never_too_much() -> None:
    raised = 0
    for seed in range(150):
        of = problem(seed, 7)
        least = least_peak(of)
        meter = Meter(of, Budget())
        # Pairs are chosen by the best order, whatever it is: also with a bad one they must be right.
        for order in (of.program_order, of.native.simple("greedy"))[: 1 + seed % 2]:
            meter.evaluate(order)
        bounds = Bounds(of)
        bounds.prove(meter)
        single = meter.bound.value
        bounds.prove_pairs(meter)
        assert single <= meter.bound.value <= least
        raised += meter.bound.value > single
    assert raised >= 3


def test_pairs_close_the_gap_of_a_real_training_graph() -> None:
    solution = solve(make_labelled("order", "peak-cut"), PeakOrder(load_model("txl-2")), Budget())
    assert solution.status == Status.OPTIMAL and solution.bound.method == PAIR_BOUND
