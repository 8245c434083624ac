"""The native pass and batch against the slow ones, to the op, the picosecond and the byte."""

from __future__ import annotations

import numpy as np
import pytest

from generate import Rng, pick
from generate_graph import random_graph, random_keys
from loadmaster.errors import BadPlan
from loadmaster.graph import TASKS, UNFIT, Base, GraphOptimization
from reference.graph import SlowFusion, decoded
from reference.simulate import simulate_reference

TASK_SETS = (
    TASKS,
    ("fusion",),
    ("placement",),
    ("schedule",),
    ("fusion", "schedule"),
    ("placement", "fusion"),
)


def random_problem(rng: Rng, max_ops: int = 30) -> GraphOptimization:
    program, machine = random_graph(rng, max_ops)
    placement = pick(rng, ("single", "m_topo", None))
    base = Base(pick(rng, ("none", "fixed", "cost_model")), placement, pick(rng, ("fifo", "critical_path")))
    return GraphOptimization(
        program,
        machine,
        tasks=pick(rng, TASK_SETS),
        base=base,
        groups=pick(rng, ("auto", "op", "scope", "coplace")),
        tie=pick(rng, ("fifo", "critical_path")),
        readers=pick(rng, ("each", "each", "all")),
    )


def random_vector(rng: Rng, problem: GraphOptimization) -> np.ndarray:
    return problem.vector(
        random_keys(rng, problem.nodes),
        rng.integers(0, problem.devices, problem.groups),
        random_keys(rng, problem.nodes),
    )


@pytest.mark.parametrize("block", range(8))
def test_clusters_are_those_of_the_slow_pass(block: int) -> None:
    fused = 0
    for seed in range(block * 50, block * 50 + 50):
        rng = np.random.default_rng([1, seed])
        problem = random_problem(rng)
        keys = random_keys(rng, problem.nodes)
        clusters = problem.fuse(keys)
        np.testing.assert_array_equal(clusters, SlowFusion(problem).fuse(keys), err_msg=f"seed {seed}")
        fused += int((clusters >= 0).sum())
    assert fused > 50


@pytest.mark.parametrize("block", range(8))
def test_times_and_bytes_are_those_of_the_slow_simulator(block: int) -> None:
    ran = 0
    for seed in range(block * 50, block * 50 + 50):
        rng = np.random.default_rng([2, seed])
        problem = random_problem(rng, 20)
        vector = random_vector(rng, problem)
        total, over, fault = problem.measure(vector[None])
        try:
            timeline = simulate_reference(problem.program, problem.machine, decoded(problem, vector))
        except BadPlan:
            assert fault[0, 0] != 0, f"seed {seed}"
            continue
        assert fault[0, 0] == 0 and total[0] == timeline.total_ps, f"seed {seed}"
        np.testing.assert_array_equal(over[0], timeline.memory_over, err_msg=f"seed {seed}")
        ran += 1
    assert ran > 30


def test_explicit_plans_take_as_long_and_are_sound() -> None:
    sound = 0
    for seed in range(200):
        rng = np.random.default_rng([3, seed])
        problem = random_problem(rng)
        vector = random_vector(rng, problem)
        value = problem.evaluate(vector)
        if value is None:
            continue
        plan = problem.plan(vector)
        total = problem.measure(vector[None])[0][0]
        assert problem.simulator.run(plan).total_ps == total, f"seed {seed}"
        found = problem.violations(plan)
        if value < UNFIT:
            assert not found, f"seed {seed}: {found[0]}"
            sound += 1
        else:
            assert {violation.rule for violation in found} == {"capacity"}, f"seed {seed}: {found}"
    assert sound > 50


def test_no_plan_beats_the_bound_and_no_proof_is_wrong() -> None:
    for seed in range(200):
        rng = np.random.default_rng([4, seed])
        problem = random_problem(rng)
        vectors = np.array([random_vector(rng, problem) for _ in range(5)])
        value = problem.score(vectors).value
        fits = value[(value >= 0) & (value < UNFIT)]
        assert not len(fits) or fits.min() >= problem.bound().value, f"seed {seed}"
        assert not len(fits) or problem.no_plan is None, f"seed {seed}: {problem.no_plan}"


def test_threads_do_not_matter() -> None:
    for seed in range(20):
        rng = np.random.default_rng([5, seed])
        problem = random_problem(rng)
        vectors = np.array([random_vector(rng, problem) for _ in range(9)])
        one, two = problem.score(vectors, threads=1), problem.score(vectors, threads=2)
        np.testing.assert_array_equal(one.value, two.value)
        np.testing.assert_array_equal(one.reward, two.reward)


def test_keys_of_the_cost_model_make_its_clusters_and_never_cost_time() -> None:
    """Merging never makes the sum of all steps longer, since every merge gains."""
    for seed in range(60):
        rng = np.random.default_rng([6, seed])
        problem = random_problem(rng)
        clusters = problem.fuse(problem.cost_model_keys())
        apart = problem.durations[:, 0]
        together = problem.step_durations(clusters)[:, 0]
        if np.any(apart < 0) or problem.machine.rules.ports == "parallel":
            continue
        assert together[together >= 0].sum() <= apart.sum(), f"seed {seed}"


def test_the_base_plan_is_its_own_vector() -> None:
    for seed in range(100):
        problem = random_problem(np.random.default_rng([7, seed]))
        total, _, fault = problem.measure(problem.vector()[None])
        assert fault[0, 0] != 0 or total[0] == problem.reference_ps, f"seed {seed}"
