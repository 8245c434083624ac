"""CP-SAT on small graphs: its bound is below every plan, and tight where it should be."""

from __future__ import annotations

import numpy as np
import pytest

from generate import chance, pick
from generate_graph import random_graph, roomy
from loadmaster.errors import LoadmasterError
from loadmaster.graph import TASKS, GraphOptimization
from loadmaster.graph.exact import find_units
from loadmaster.graph.search import random_vectors
from loadmaster.machine import load_machine
from loadmaster.program.build import Builder
from loadmaster.program.models import load_model
from loadmaster.program.program import Program, TensorKind
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Status, solve

pytest.importorskip("ortools")


@pytest.mark.parametrize("block", range(4))
def test_between_the_bound_and_every_solver(block: int) -> None:
    """40 graphs, most with an answer."""
    compared = 0
    for seed in range(block * 10, block * 10 + 10):
        rng = np.random.default_rng(seed)
        program, machine = random_graph(rng, 14)
        tasks = [task for task in TASKS if chance(rng, 0.7)] or ["placement"]
        machine = machine if chance(rng, 0.5) else roomy(machine)
        problem = GraphOptimization(program, machine, tasks=tasks, groups=pick(rng, ("op", "auto")))
        exact = solve(make_labelled("graph", "cp-sat", {"work": 1.0}), problem, Budget())
        assert exact.bound.value >= problem.bound().value
        if exact.value is not None:
            assert exact.bound.value <= exact.value
            assert not problem.violations(problem.plan(exact.decision))
        for name in ("anneal", "brkga", "random-best"):
            found = solve(make_labelled("graph", name), problem, Budget(evaluations=200))
            if found.value is not None:
                assert exact.status != Status.INFEASIBLE, (seed, name)
                assert exact.bound.value <= found.value, (seed, name)
                compared += 1
    assert compared >= 6


def _forked() -> Program:
    """Two long branches of equal work between two short ops."""
    build = Builder("forked")
    x = build.tensor("x", shape=(256, 256), dtype="f32", kind=TensorKind.INPUT)
    first = build.tensor("first", shape=(256,), dtype="f32")
    build.op("begin", "matmul", reads=[x], writes=[first], matrix=10**6)
    ends = []
    for branch in range(2):
        last = first
        for depth in range(3):
            result = build.tensor(f"b{branch}.{depth}", shape=(256,), dtype="f32")
            build.op(f"op{branch}.{depth}", "matmul", reads=[last], writes=[result], matrix=10**9)
            last = result
        ends.append(last)
    out = build.tensor("out", shape=(256,), dtype="f32", kind=TensorKind.OUTPUT)
    build.op("end", "matmul", reads=ends, writes=[out], matrix=10**6)
    return build.build()


def test_two_branches_go_to_two_devices_and_that_is_proved() -> None:
    problem = GraphOptimization(_forked(), load_machine("toy2"), tasks=("placement", "schedule"), groups="op")
    solution = solve(make_labelled("graph", "cp-sat"), problem, Budget())
    assert solution.status == Status.OPTIMAL and solution.decision is not None
    device = problem.split(solution.decision)[1]
    assert len(set(device[1:4])) == 1 and len(set(device[4:7])) == 1 and device[1] != device[4]
    every = random_vectors(problem, np.random.default_rng(0), 2000)
    assert problem.score(every).value.min() >= solution.bound.value == solution.value


def test_a_graph_that_fits_nowhere_is_proved_infeasible_or_left_open() -> None:
    build = Builder("heavy")
    for number in range(3):  # any two of them are too much for one device
        weight = build.tensor(f"w{number}", shape=(150 * 2**20,), dtype="f32", kind=TensorKind.WEIGHT)
        out = build.tensor(f"o{number}", shape=(1,), dtype="f32", kind=TensorKind.OUTPUT)
        build.op(f"op{number}", "matmul", reads=[weight], writes=[out], matrix=10)
    problem = GraphOptimization(build.build(), load_machine("toy2"), tasks=("placement",), groups="op")
    solution = solve(make_labelled("graph", "cp-sat"), problem, Budget())
    assert solution.value is None and solution.status == Status.INFEASIBLE


def test_nodes_that_can_be_fused_are_free_of_their_group() -> None:
    for seed in range(30):
        program, machine = random_graph(np.random.default_rng(seed), 30)
        problem = GraphOptimization(program, machine)
        units = find_units(problem)
        assert units.steps == problem.nodes
        for node, choice in enumerate(units.choice):
            loose = problem.touched[problem.node_op[node]] and problem.hard[problem.node_op[node]] < 0
            assert units.group[choice] == (-1 if loose else problem.node_group[node])
        given = find_units(problem, problem.base_clusters)
        assert given.steps == len(np.unique(given.step)) <= problem.nodes


def test_large_graphs_are_refused() -> None:
    problem = GraphOptimization(load_model("rnnlm-2:steps=3"), load_machine("p100x8"))
    with pytest.raises(LoadmasterError, match="too many for cp-sat"):
        solve(make_labelled("graph", "cp-sat"), problem, Budget())
