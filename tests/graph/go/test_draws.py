"""Plans of a policy: how often they are drawn, how likely they are said to be, and as vectors."""

from __future__ import annotations

import numpy as np
import pytest

from graph.go.small import random_problem
from loadmaster.graph import GraphOptimization
from loadmaster.graph.decoder import leaves
from loadmaster.graph.go.paper.actions import Actions, draw, joined, likeliest, padded, vectors_of
from loadmaster.graph.go.paper.network import FAR, Logits


def logits_for(problem: GraphOptimization, padding: int = 0) -> Logits:
    """Random ones, with padding that must never be chosen."""
    rng = np.random.default_rng(5)
    n, groups, devices = problem.nodes, problem.groups, problem.devices
    device = np.full((groups + padding, devices + padding), FAR, np.float32)
    device[:groups, :devices] = rng.normal(0, 2, (groups, devices))
    keys = [rng.normal(0, 2, (n + padding, 16)).astype(np.float32) for _ in range(2)]
    return Logits(keys[0], device, keys[1])


def test_draws_are_as_frequent_as_their_chances_say() -> None:
    problem = random_problem(2)
    logits = logits_for(problem, 3)
    drawn = draw(problem, logits, np.random.default_rng(0), 4000)
    for part, chance, logit in zip(drawn.actions, drawn.log_prob, logits, strict=True):
        rows = part.shape[1]
        true = np.exp(logit[:rows] - logit[:rows].max(axis=1, keepdims=True))
        true /= true.sum(axis=1, keepdims=True)
        share = np.stack([(part == level).mean(axis=0) for level in range(true.shape[1])], axis=1)
        assert np.abs(share - true).max() < 0.04
        said = np.exp(chance[:50])
        assert said == pytest.approx(true[np.arange(rows), part[:50]], abs=1e-5)


def test_what_has_no_chance_is_never_drawn() -> None:
    problem = random_problem(3)
    logits = logits_for(problem)
    for part in logits:
        part[:, 0] = FAR
        part[:, -1] = FAR if part.shape[1] > 2 else part[:, -1]
    drawn = draw(problem, logits, np.random.default_rng(1), 500).actions
    for part, logit in zip(drawn, logits, strict=True):
        assert part.min() >= 1
        assert part.max() < logit.shape[1] - (1 if logit.shape[1] > 2 else 0)


@pytest.mark.parametrize("tasks", [("placement",), ("fusion",), ("schedule", "placement")])
def test_what_is_not_decided_is_left_alone(tasks: tuple[str, ...]) -> None:
    problem = random_problem(4, tasks=tasks)
    logits, rng = logits_for(problem, 2), np.random.default_rng(2)
    plans = joined(likeliest(problem, logits), draw(problem, logits, rng, 3).actions)
    vectors = vectors_of(problem, plans)
    assert vectors.shape == (4, problem.width)
    assert (problem.score(vectors).value >= -1).all()
    names = ("fusion", "placement", "schedule")
    for name, part in zip(names, plans, strict=True):
        assert part.any() == (name in tasks)


def test_from_level_eight_on_nothing_is_fused_into_another_device() -> None:
    problem = random_problem(9)
    rng = np.random.default_rng(1)
    device = rng.integers(problem.devices, size=(3, problem.groups)).astype(np.int8)
    level = rng.integers(16, size=(3, problem.nodes)).astype(np.int8)
    vectors = vectors_of(problem, Actions(level, device, np.zeros_like(level)))
    keys = vectors[:, problem.part("fusion")]
    for row in range(3):
        far = np.zeros(problem.nodes, dtype=bool)
        for producer, reader in problem.edges.T.tolist():
            if device[row, problem.node_group[producer]] != device[row, problem.node_group[reader]]:
                far[producer] = True
        assert np.array_equal(far, leaves(problem, device[row]))
        assert np.array_equal(keys[row] == 0, (level[row] == 0) | ((level[row] >= 8) & far))


def test_padding_is_zeros_behind() -> None:
    actions = Actions(np.ones((2, 3), np.int8), np.ones((2, 1), np.int8), np.ones((2, 3), np.int8))
    wide = padded(actions, 5, 4)
    assert [part.shape for part in wide] == [(2, 5), (2, 4), (2, 5)]
    assert [int(part.sum()) for part in wide] == [6, 2, 6]
