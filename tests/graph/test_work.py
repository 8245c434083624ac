"""The work bound against the best assignment there is."""

from __future__ import annotations

import itertools

import numpy as np

from loadmaster.graph.bounds import shared_work


def _least_largest_load(cost: np.ndarray) -> int:
    steps, devices = cost.shape
    return min(
        max(sum(int(cost[s, d]) for s, d in enumerate(where) if d == device) for device in range(devices))
        for where in itertools.product(range(devices), repeat=steps)
    )


def test_no_assignment_has_less() -> None:
    better = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        steps, devices = int(rng.integers(1, 8)), int(rng.integers(1, 4))
        speed = rng.integers(1, 6, devices)
        cost = rng.integers(1, 1000, (steps, 1)) * speed * rng.integers(1, 3, (steps, devices))
        cost[rng.random(cost.shape) < 0.1] = 2**61
        cost[:, 0] = np.minimum(cost[:, 0], 10**6)
        bound = shared_work(cost)
        assert bound <= _least_largest_load(cost), seed
        plain = -(-sum(cost.min(axis=1).tolist()) // devices)
        assert bound >= plain
        better += bound > plain
    assert better >= 60


def test_split_work_is_met_where_it_can_be_split() -> None:
    """A device twice as fast takes twice as many of many equal steps."""
    cost = np.tile(np.array([[1000, 2000, 2000]], dtype=np.int64), (400, 1))
    assert 0.99 * 200_000 <= shared_work(cost) <= 200_000
    assert shared_work(np.zeros((0, 3), dtype=np.int64)) == 0
