"""Solvers of the order: exact ones against every order, all of them against bound and program."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from clocks import Ticking
from generate_order import random_straight
from loadmaster import _core
from loadmaster.order.exact import MILESTONE_BOUND, Bounds, Milestones, add_milestones
from loadmaster.order.graph import Groups
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


def _least_by_orders(of: Groups, milestones: list[int]) -> int:
    """What the milestones prove: the least, over their orders, of the largest of their cuts."""
    cuts, best = _core.OrderCuts(of.native), 2**60
    for order in itertools.permutations(milestones):
        sides = [
            (np.array(order[:at], dtype=np.int32), np.array(order[at + 1 :], dtype=np.int32))
            for at in range(len(order))
        ]
        found = [cuts.below(op, *side, 2**60, False, -1.0)[0] for op, side in zip(order, sides, strict=True)]
        best = min(best, max(found))
    return best


def test_milestones_prove_the_least_over_their_orders_and_never_too_much() -> None:
    raised = 0
    for seed in range(150):
        rng, of = np.random.default_rng(seed), problem(seed, 7)
        groups = Groups(of.native)
        if groups.nodes < 4:
            continue
        least = least_peak(of)
        meter = Meter(of, Budget())
        for order in (of.program_order, of.native.simple("greedy"))[: 1 + seed % 2]:
            meter.evaluate(order)
        Bounds(groups).prove(meter)
        single = meter.bound.value
        milestones = Milestones(groups)
        for op in rng.permutation(groups.nodes)[:4].tolist():
            milestones.add(int(op))
            if meter.exhausted:
                break
            order = milestones.search(meter)
            assert meter.best_value is not None and meter.bound.value <= least
            proven = _least_by_orders(groups, milestones.ops)
            assert meter.bound.value == min(max(single, proven), meter.best_value)
            single = meter.bound.value
            states = None if order is None else milestones.states(meter, order)
            assert (order is None) == (meter.bound.value == meter.best_value)
            if order is not None and states is not None:
                inner = [set(state.tolist()) for state in states]
                assert all(a | {op} <= b for a, op, b in zip(inner[:-1], order[:-1], inner[1:], strict=True))
                raised += 1
    assert raised >= 20


def test_milestones_close_gaps() -> None:
    """Of programs that cuts of single ops leave open, an order and its proof."""
    closed = left = 0
    for seed in range(60):
        of = problem(seed, 16)
        meter = Meter(of, Budget())
        meter.evaluate(of.native.simple("greedy"))
        groups = Groups(of.native)
        Bounds(groups).prove(meter)
        if meter.exhausted:
            continue
        left += 1
        add_milestones(meter, groups, groups.of_ops(of.program_order), np.random.default_rng(0))
        assert meter.best is not None and not of.violations(of.plan(meter.best))
        exact = solve(make_labelled("order", "peak-dp"), of, Budget())
        assert exact.status == Status.OPTIMAL and exact.value is not None
        assert meter.bound.value <= exact.value <= meter.best_value
        closed += meter.exhausted
    assert left >= 10 and closed >= left // 2


def test_milestones_close_the_gap_of_a_real_training_graph() -> None:
    solution = solve(make_labelled("order", "peak-cut"), PeakOrder(load_model("txl-2")), Budget())
    assert solution.status == Status.OPTIMAL and solution.bound.method == MILESTONE_BOUND
