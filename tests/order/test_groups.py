"""Groups of ops that run in one go: the least peak stays, orders and bounds pass from one to the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate_order import random_straight
from loadmaster import _core
from loadmaster.order.exact import Bounds, add_milestones
from loadmaster.order.graph import Groups
from loadmaster.order.problem import PeakOrder
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, solve
from reference.order import least_peak

NONE = np.zeros(0, dtype=np.int32)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**31), ops=st.integers(1, 11))
def test_the_least_peak_stays_and_no_bound_is_above_it(seed: int, ops: int) -> None:
    of = PeakOrder(random_straight(np.random.default_rng(seed), ops))
    groups, least = Groups(of.native), least_peak(of.graph)
    search = _core.PeakSearch(groups.native, least)
    assert search.advance(10**9)
    order = groups.ops(search.order())
    assert of.native.profile(order).max() <= least
    assert _core.PeakSearch(groups.native, least - 1).advance(10**9) is False
    meter = Meter(of, Budget())
    meter.evaluate(of.program_order)
    Bounds(groups).prove(meter)
    assert meter.bound.value <= least
    if not meter.exhausted:
        add_milestones(meter, groups, groups.of_ops(of.native.simple("greedy")), np.random.default_rng(seed))
    assert meter.best_value is not None and meter.bound.value <= least <= meter.best_value


@pytest.mark.parametrize("seed", range(40))
def test_orders_of_ops_lead_to_orders_of_groups_that_are_no_higher(seed: int) -> None:
    of = PeakOrder(random_straight(np.random.default_rng(seed), 40))
    groups = Groups(of.native)
    assert groups.nodes <= of.nodes
    for order in of.from_keys(np.random.default_rng(seed).random((20, of.nodes))):
        led = groups.of_ops(order)
        ops = groups.ops(led)
        peak = int(of.native.profile(ops).max())
        assert sorted(ops.tolist()) == list(range(of.nodes))
        assert peak == groups.native.profile(led).max() <= of.native.profile(order).max()
        assert np.array_equal(groups.of_ops(ops), led)


def test_real_programs_have_far_fewer_groups_than_ops() -> None:
    for name, most in (("txl-2", 0.6), ("inception-b32", 0.6), ("rnnlm-2:steps=6", 0.75)):
        of = PeakOrder(load_model(name))
        assert Groups(of.native).nodes < most * of.nodes


def test_groups_say_what_they_hold_and_who_needs_them() -> None:
    of = PeakOrder(random_straight(np.random.default_rng(7), 30))
    assert np.array_equal(of.native.held(), of.op_bytes)
    for op in range(of.nodes):
        needs = {op}
        for later in range(op + 1, of.nodes):
            if needs.intersection(of.graph.before[later]):
                needs.add(later)
        assert set(np.flatnonzero(of.native.needing(op)).tolist()) == needs - {op}


def test_a_cut_goes_on_from_the_flow_of_fewer_bound_ops_and_refuses_others() -> None:
    of = PeakOrder(random_straight(np.random.default_rng(4), 40))
    cuts, other = _core.OrderCuts(of.native), _core.OrderCuts(Groups(of.native).native)
    later = np.array([of.nodes - 1], dtype=np.int32)
    for op in range(of.nodes - 1):
        fresh = cuts.below(op, NONE, later, 2**60, False, -1.0)
        cuts.below(op, NONE, NONE, 2**60, False, -1.0)
        assert cuts.flow().memory > 0
        found = cuts.below(op, NONE, later, 2**60, False, -1.0, cuts.flow())
        assert found[:2] == fresh[:2] and np.array_equal(found[2], fresh[2])
    with pytest.raises(ValueError, match="fewer bound ops"):
        other.below(0, NONE, NONE, 2**60, False, -1.0, cuts.flow())


def test_recurrent_training_graphs_are_proven() -> None:
    for name in ("rnnlm-2:steps=10", "rnnlm-4:steps=6", "gnmt-2:steps=6"):
        solution = solve(make_labelled("order", "peak-cut"), PeakOrder(load_model(name)), Budget())
        assert solution.gap is not None and solution.gap < 0.001
