"""The order for the least peak: bytes as the simulator counts them, legal orders, plans, bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from generate_order import random_straight
from loadmaster import _core
from loadmaster.errors import BadProgram
from loadmaster.machine import load_machine
from loadmaster.order.graph import parts, separators
from loadmaster.order.problem import PeakOrder
from loadmaster.program.build import Builder
from loadmaster.program.program import TensorKind
from loadmaster.simulate import simulate

NONE = np.zeros(0, dtype=np.int32)


def one(op: int) -> np.ndarray:
    return np.array([op], dtype=np.int32)


def problem(seed: int, ops: int = 12) -> PeakOrder:
    return PeakOrder(random_straight(np.random.default_rng(seed), ops))


def all_orders(graph: list[list[int]]) -> Iterator[list[int]]:
    """Every topological order."""
    order: list[int] = []

    def extend() -> Iterator[list[int]]:
        if len(order) == len(graph):
            yield list(order)
        for node in range(len(graph)):
            if node not in order and all(other in order for other in graph[node]):
                order.append(node)
                yield from extend()
                order.pop()

    return extend()


def simulated(of: PeakOrder, order: np.ndarray) -> int:
    peak = simulate(of.program, of.machine, of.plan(order)).memory_peak
    return int(peak[of.machine.home[0]]) - of.resident


@pytest.mark.parametrize("seed", range(60))
def test_the_value_is_what_the_simulator_counts(seed: int) -> None:
    of = problem(seed, 6 + seed % 12)
    orders = of.from_keys(np.random.default_rng(seed).random((8, of.nodes)))
    orders = np.concatenate([orders, of.program_order[None]])
    scores = of.score(orders)
    for order, value in zip(orders, scores.value.tolist(), strict=True):
        plan = of.plan(order)
        assert of.violations(plan) == [] and of.admits(order)
        assert value == of.evaluate(order) == simulated(of, order) >= of.bound().value
        assert np.array_equal(of.decision(plan), order)
        assert of.native.profile(np.ascontiguousarray(order)).max() == value
    assert scores.reward[-1] == pytest.approx(-1.0)


@pytest.mark.parametrize("seed", range(25))
def test_a_legal_order_is_one_that_the_checker_takes(seed: int) -> None:
    of, rng = problem(seed, 8), np.random.default_rng(seed)
    for _ in range(30):
        order = rng.permutation(of.nodes).astype(np.int32)
        if rng.random() < 0.6:  # nearly legal: two neighbours of a legal one change places
            order = of.from_keys(rng.random((1, of.nodes)))[0]
            at = int(rng.integers(of.nodes - 1))
            order[[at, at + 1]] = order[[at + 1, at]]
        assert (of.evaluate(order) is None) == bool(of.violations(of.plan(order)))
    assert of.evaluate(np.zeros(of.nodes, dtype=np.int32)) is None
    assert of.evaluate(of.program_order[:-1]) is None
    wrong = of.score(np.full((1, of.nodes), -3, dtype=np.int32))
    assert wrong.value[0] == -1 and wrong.reward[0] < -1


def test_threads_change_nothing() -> None:
    of = problem(3, 30)
    orders = of.from_keys(np.random.default_rng(0).random((50, of.nodes)))
    assert np.array_equal(of.native.peaks(orders, 1), of.native.peaks(orders, 3))


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_is_the_least_over_all_orders(seed: int) -> None:
    of = problem(seed, 7)
    least = np.full(of.nodes, 2**60)
    for order in all_orders(of.graph.before):
        profile = of.native.profile(np.array(order, dtype=np.int32))
        least[order] = np.minimum(least[order], profile)
    cuts = _core.OrderCuts(of.native)
    for node in range(of.nodes):
        for largest in (False, True):
            found, complete, sooner = cuts.below(node, NONE, NONE, 2**60, largest, -1.0)
            assert complete and found == least[node]
            rest = [n for n in range(of.nodes) if n != node and n not in sooner]
            order = np.array([*sorted(sooner), node, *rest], dtype=np.int32)
            assert of.native.profile(order)[len(sooner)] == found  # the state is one that attains it


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_beside_another_op_is_the_least_over_the_orders_that_have_it_so(seed: int) -> None:
    of, never = problem(seed, 7), 2**60
    least = np.full((2, of.nodes, of.nodes), never)  # [is the other before?, op, other]
    for order in all_orders(of.graph.before):
        profile = of.native.profile(np.array(order, dtype=np.int32))
        for at, op in enumerate(order):
            for before, others in ((0, order[at + 1 :]), (1, order[:at])):
                least[before, op, others] = np.minimum(least[before, op, others], profile[at])
    cuts = _core.OrderCuts(of.native)
    for before, op, other in np.ndindex(*least.shape):
        if op != other:
            sides = (one(other), NONE) if before else (NONE, one(other))
            found, _, _ = cuts.below(op, *sides, never, False, -1.0)
            assert min(found, never) == least[before, op, other]


@pytest.mark.parametrize("seed", range(30))
def test_parts_follow_each_other_in_every_order(seed: int) -> None:
    of = problem(seed, 7)
    orders = list(all_orders(of.graph.before))
    always = [n for n in range(of.nodes) if all(order.index(n) == n for order in orders)]
    fixed = {n for n in always if all(set(order[:n]) == set(range(n)) for order in orders)}
    assert set(separators(of.graph)) == fixed
    for begin, end in parts(of.graph):
        assert all(set(order[begin:end]) == set(range(begin, end)) for order in orders)
        done = np.zeros(of.nodes, dtype=np.int8)
        done[:begin] = 1
        part = of.native.part(np.arange(begin, end, dtype=np.int32), done)
        for order in orders[:20]:
            inner = np.array(order[begin:end], dtype=np.int32) - begin
            whole = of.native.profile(np.array(order, dtype=np.int32))
            assert np.array_equal(part.profile(inner), whole[begin:end])


def test_loops_are_refused() -> None:
    b = Builder("looped")
    x = b.tensor("x", bytes=4, shape=(4,), dtype="i8", kind=TensorKind.INPUT)
    y = b.tensor("y", bytes=4, shape=(4,), dtype="i8", kind=TensorKind.OUTPUT)
    b.op("op", "add", reads=[x], writes=[y], loop=b.loop(3))
    with pytest.raises(BadProgram, match="1 loops"):
        PeakOrder(b.build())


def test_an_order_that_does_not_fit_is_not_admitted(tmp_path: Path) -> None:
    of = problem(5)
    program, need = of.program, of.reference  # an arena has its weights elsewhere
    small = PeakOrder(program, load_machine(f"arena:{need - 1}"))
    exact = PeakOrder(program, load_machine(f"arena:{need}"))
    assert not small.admits(of.program_order) and exact.admits(of.program_order)
