"""The linear critic: exact where time is a sum, silent before it knows enough."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.mapping.egrl import screen
from loadmaster.mapping.egrl.screen import LEAST_SCORES, LinearCritic
from loadmaster.mapping.features import COLUMNS, node_features
from mapping.egrl.small import chain_problem

NODES, MEMORIES = 14, 3


class Additive:
    """A made-up problem: every tensor has a cost in each memory, equal for layers that look alike;
    a map fits if the weights in the fastest memory are no more than half of all."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        kinds = rng.integers(0, 5, NODES)
        looks = rng.random((5, len(COLUMNS)))
        looks[:, [COLUMNS.index("ofm_size"), COLUMNS.index("weight_size")]] = (
            np.log2(1 + rng.integers(20, 200, (5, 2))) / 32
        )
        self.features = looks[kinds].astype(np.float32)
        self.features[:, COLUMNS.index("n_ops_left")] = np.arange(NODES)  # says nothing of the kind
        self.live = np.concatenate([np.ones(NODES, bool), kinds != 0])
        slower = np.sort(rng.integers(100, 5000, (10, MEMORIES)), axis=1)
        self.cost = slower[np.concatenate([kinds, 5 + kinds])]  # [2N, M]
        size = 2.0 ** (32 * self.features[:, COLUMNS.index("weight_size")].astype(np.float64)) - 1
        self.weights = np.where(self.live[NODES:], size, 0)

    def values(self, maps: np.ndarray) -> np.ndarray:
        return np.where(self.fits(maps), self.times(maps), -1)

    def times(self, maps: np.ndarray) -> np.ndarray:
        each = np.take_along_axis(self.cost[None], maps[..., None].astype(int), -1)[..., 0]
        return (each * self.live).sum(axis=1)

    def fits(self, maps: np.ndarray) -> np.ndarray:
        held = ((maps[:, NODES:] == 0) * self.weights).sum(axis=1)
        return held <= self.weights.sum() / 2

    def maps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.integers(0, MEMORIES, (count, 2 * NODES)).astype(np.int8)

    def critic(self) -> LinearCritic:
        return LinearCritic(self.features, self.live, MEMORIES)

    def taught(self, seed: int = 1, count: int = 600) -> LinearCritic:
        critic, maps = self.critic(), self.maps(np.random.default_rng(seed), count)
        for begin in range(0, count, 50):
            part = maps[begin : begin + 50]
            critic.learn(part, self.values(part))
        return critic


def predicted(critic: LinearCritic, maps: np.ndarray) -> np.ndarray:
    return np.asarray(critic.cost[critic.column + maps[:, critic.live]].sum(axis=1) * critic.scale)


def test_it_recovers_costs_that_add_up() -> None:
    world = Additive()
    critic, maps = world.taught(), world.maps(np.random.default_rng(9), 200)
    times = world.times(maps)  # also of maps that do not fit
    np.testing.assert_allclose(predicted(critic, maps), times, rtol=2e-3)
    np.testing.assert_allclose(np.diff(predicted(critic, maps)), np.diff(times), atol=2e-3 * times.mean())


def test_tensors_that_look_alike_share_parameters() -> None:
    world = Additive()
    assert world.critic().size == MEMORIES * len(np.unique(world.cost[world.live], axis=0))


def test_it_picks_the_best_draw_that_is_known_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "BOLD", 0.0)
    world, rng = Additive(), np.random.default_rng(3)
    critic, groups = world.taught(), world.maps(np.random.default_rng(4), 60 * 32)
    groups = groups.reshape(60, 32, -1)
    chosen = critic.pick(rng, groups)
    for draws, pick in zip(groups, chosen, strict=True):
        loads = critic._loads(draws)[:, :, :-1]
        known = (loads <= critic.most[:, :-1]).all(axis=(1, 2))
        if not known.any():
            continue
        assert world.fits(pick[None])[0]
        assert world.times(pick[None])[0] == world.times(draws[known]).min()
    assert world.fits(chosen).mean() > world.fits(groups[:, 0]).mean()


def test_a_bold_pick_looks_at_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "BOLD", 1.0)
    world = Additive()
    groups = world.maps(np.random.default_rng(4), 20 * 16).reshape(20, 16, -1)
    chosen = world.taught().pick(np.random.default_rng(0), groups)
    best = [world.times(draws).min() for draws in groups]
    assert world.times(chosen).tolist() == best


def test_it_says_nothing_before_it_has_seen_enough() -> None:
    world, rng = Additive(), np.random.default_rng(0)
    critic, maps = world.critic(), world.maps(rng, 400)
    fitting = maps[world.fits(maps)][:LEAST_SCORES]
    groups = world.maps(rng, 40).reshape(4, 10, -1)
    critic.learn(maps[~world.fits(maps)], np.full(int((~world.fits(maps)).sum()), -1))
    assert critic.scores == 0 and not critic.normal.any()
    critic.learn(fitting[:-1], world.values(fitting[:-1]))
    assert np.array_equal(critic.pick(rng, groups), groups[:, 0])
    critic.learn(fitting[-1:], world.values(fitting[-1:]))
    assert critic.scores == LEAST_SCORES
    assert not np.array_equal(critic.pick(rng, groups), groups[:, 0])


def test_a_time_of_zero_is_no_trouble() -> None:
    world = Additive()
    critic, maps = world.critic(), world.maps(np.random.default_rng(0), 50)
    critic.learn(maps, np.zeros(50, dtype=np.int64))
    assert np.isfinite(critic.cost).all()


def test_it_goes_on_from_its_arrays() -> None:
    world = Additive()
    critic, again = world.taught(), world.critic()
    again.restore(critic.arrays())
    maps = world.maps(np.random.default_rng(5), 100)
    for one in (critic, again):
        one.learn(maps, world.values(maps))
    for name, value in critic.arrays().items():
        assert np.array_equal(value, again.arrays()[name]), name
    groups = maps.reshape(10, 10, -1)
    picks = [one.pick(np.random.default_rng(6), groups) for one in (critic, again)]
    assert np.array_equal(*picks)


def test_an_exchange_makes_room_and_no_more() -> None:
    world, rng = Additive(), np.random.default_rng(0)
    critic, maps = world.critic(), world.maps(np.random.default_rng(1), 500)
    after = critic.exchange(rng, maps)
    size = np.zeros(2 * NODES)
    size[critic.live] = critic.bytes
    assert np.array_equal(after[:, ~world.live], maps[:, ~world.live])
    for old, new in zip(maps, after, strict=True):
        moved = np.flatnonzero(old != new)
        comers = [i for i in moved if new[i] < old[i]]
        assert len(comers) == 1
        (comer,) = comers
        source, target = old[comer], new[comer]
        goers = [i for i in moved if i != comer]
        assert all(old[i] == target and new[i] == source for i in goers)
        assert all((i >= NODES) == (comer >= NODES) for i in goers)
        gone = size[goers].sum()
        there = [
            i
            for i in range(2 * NODES)
            if world.live[i] and old[i] == target and (i >= NODES) == (comer >= NODES)
        ]
        assert gone >= size[comer] or len(goers) == len(there)
        if len(goers) > 1:  # without some one of them there would be too little room
            assert min(gone - size[i] for i in goers) < size[comer]


def test_where_all_is_fast_nothing_is_exchanged() -> None:
    world = Additive()
    fast = np.zeros((3, 2 * NODES), dtype=np.int8)
    assert np.array_equal(world.critic().exchange(np.random.default_rng(0), fast), fast)


def test_bytes_are_those_of_the_problem() -> None:
    problem = chain_problem()
    critic = LinearCritic(node_features(problem), problem.live, len(problem.memories))
    sizes = problem.program.storage_bytes[problem.entries.piece_root]
    np.testing.assert_allclose(np.sort(critic.bytes), np.sort(sizes), rtol=1e-4)
