"""Priors over decisions of GraphOptimization."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from generate_graph import random_graph, roomy
from loadmaster.graph import TASKS, UNFIT, GraphOptimization
from loadmaster.graph.features import LEVELS
from loadmaster.graph.go.actions import WITHIN
from loadmaster.graph.go.prior import SMOOTHING, Prior, levels_of, seeds_prior
from loadmaster.graph.search import random_vectors

TASK_SETS = [tasks for count in (1, 2, 3) for tasks in itertools.combinations(TASKS, count)]


def _problem(seed: int, tasks: tuple[str, ...] = TASKS) -> GraphOptimization:
    program, machine = random_graph(np.random.default_rng(seed), 40)
    return GraphOptimization(program, roomy(machine), tasks=tasks)


def _random(problem: GraphOptimization, rng: np.random.Generator) -> Prior:
    """Some decisions without any chance."""

    def part(name: str, wide: int) -> np.ndarray:
        at = problem.part(name)
        weight = rng.random((at.stop - at.start, wide)) * (rng.random((at.stop - at.start, wide)) < 0.6)
        if name == "fusion":  # above, devices have a say: see tests/solvers/go/test_trust.py
            weight[:, WITHIN:] = 0
        weight[:, rng.integers(min(wide, WITHIN))] += 1e-3
        return (weight / weight.sum(axis=1, keepdims=True)).astype(np.float32)

    return Prior(part("device", problem.devices), part("fusion", LEVELS), part("schedule", LEVELS))


def test_draws_follow_the_probabilities() -> None:
    for seed in range(6):
        problem, rng = _problem(seed), np.random.default_rng(seed)
        prior = _random(problem, rng)
        vectors = prior.draw(problem, rng, 3000)
        for chosen, chance in zip(
            levels_of(problem, vectors), (prior.fusion, prior.device, prior.schedule), strict=True
        ):
            for level in range(chance.shape[1]):
                often = (chosen == level).mean(axis=0)
                assert np.all(often[chance[:, level] == 0] == 0), "what has no chance was drawn"
                assert np.abs(often - chance[:, level]).max() < 0.06


@pytest.mark.parametrize("tasks", TASK_SETS)
def test_vectors_are_legal_and_decode_as_they_should(tasks: tuple[str, ...]) -> None:
    for seed in range(4):
        problem, rng = _problem(seed, tasks), np.random.default_rng(seed)
        prior = _random(problem, rng)
        vectors = np.concatenate([prior.best(problem)[None], prior.draw(problem, rng, 5)])
        assert vectors.shape == (6, problem.width)
        fusion, device, schedule = levels_of(problem, vectors)
        assert np.array_equal(device, vectors[:, problem.part("device")])
        assert device.max(initial=0) < problem.devices
        keys = vectors[:, problem.part("fusion")]
        n = keys.shape[1]
        assert np.array_equal(keys[fusion > 0], ((fusion + np.arange(n) / max(1, n)) / LEVELS)[fusion > 0])
        assert np.all(keys[fusion == 0] == 0) and np.all(keys <= 1)
        assert np.allclose(vectors[:, problem.part("schedule")], schedule / (LEVELS - 1))
        problem.score(vectors)
        for chosen, chance in zip(
            (fusion, device, schedule), (prior.fusion, prior.device, prior.schedule), strict=True
        ):
            assert np.array_equal(chosen[0], chance.argmax(axis=1))


def test_equal_fusion_levels_fuse_as_the_fixed_pass() -> None:
    for seed in range(8):
        problem = _problem(seed, ("fusion",))
        chance = np.zeros((problem.nodes, LEVELS), dtype=np.float32)
        chance[:, 7] = 1
        none = np.zeros((0, problem.devices), dtype=np.float32)
        vector = Prior(none, chance, chance[:0]).best(problem)
        assert np.array_equal(problem.fuse(vector), problem.base_clusters)


def test_sharper_draws_keep_to_the_likeliest() -> None:
    problem, rng = _problem(3), np.random.default_rng(0)
    prior = _random(problem, rng)
    best = prior.best(problem)
    near = [(prior.draw(problem, rng, 50, sharpness) == best).mean() for sharpness in (0.5, 1, 4)]
    assert near[0] < near[1] < near[2]


def test_draws_of_a_few_entries() -> None:
    problem, rng = _problem(5), np.random.default_rng(0)
    prior = _random(problem, rng)
    entries = rng.integers(0, problem.nodes, size=min(4, problem.nodes))
    found = {tuple(prior.draw_part("fusion", entries, rng)) for _ in range(400)}
    for row in found:
        vector = np.zeros((1, problem.width))
        vector[0, problem.part("fusion").start + entries] = row
        level = levels_of(problem, vector)[0][0, entries]
        assert np.all(prior.fusion[entries, level] > 0)
    assert len(found) > 1


def test_seeds_weigh_better_plans_more() -> None:
    problem, rng = _problem(7), np.random.default_rng(1)
    vectors = random_vectors(problem, rng, 4)
    prior = seeds_prior(problem, vectors, np.array([100, 200, UNFIT + 5, -1]))
    for part in (prior.device, prior.fusion, prior.schedule):
        assert np.allclose(part.sum(axis=1), 1, atol=1e-5) and np.all(part > 0)
    device = vectors[:, problem.part("device")].astype(int)
    groups = np.arange(problem.groups)
    share = 1 / (1 + 0.5**8)
    expected = (1 - SMOOTHING) * share + SMOOTHING / problem.devices
    alone = device[1] != device[0]
    assert np.allclose(prior.device[groups, device[0]][alone], expected, atol=1e-5)
    assert np.array_equal(prior.best(problem)[problem.part("device")], device[0])
    nothing = seeds_prior(problem, vectors, np.full(4, -1))  # all count the same
    assert np.allclose(nothing.device.sum(axis=1), 1, atol=1e-5)


def test_uncertainty_is_largest_where_all_is_open() -> None:
    device = np.array([[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]], dtype=np.float32)
    none = np.zeros((0, LEVELS), dtype=np.float32)
    assert np.argsort(Prior(device, none, none).uncertainty).tolist() == [1, 2, 0]
