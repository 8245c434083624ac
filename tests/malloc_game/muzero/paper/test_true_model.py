"""Search in the game itself: its masks, its rewards, and its optimum."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("mctx")

import equinox as eqx
import jax
import jax.numpy as jnp

from generate_game import random_game
from loadmaster.malloc_game.exact import Exhaustive
from loadmaster.malloc_game.muzero.paper.network import VALUES, Network, make_network, two_hot
from loadmaster.malloc_game.muzero.paper.replay import unit_ps
from loadmaster.malloc_game.muzero.paper.search import DEEPEST, RETURN, Search, joined, true_model
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.solver import Budget, solve
from malloc_game.muzero.paper.tiny import made_up, random_positions, tiny

KEY = jax.random.key(1)
SETTINGS = tiny(channels=1, grid_blocks=0, discount=1.0, value_scale=0.02)


@pytest.fixture(scope="module")
def problem() -> MallocGame:
    return made_up()


@pytest.fixture(scope="module")
def network() -> Network:
    """It knows nothing, and expects nothing."""
    made = make_network(KEY, SETTINGS)
    zero = jnp.log(jnp.maximum(two_hot(jnp.float32(0), *VALUES, SETTINGS.bins), 1e-30))
    last = (jnp.zeros_like(made.value.second.weight), zero)
    return eqx.tree_at(lambda n: (n.value.second.weight, n.value.second.bias), made, last)


def test_paths_follow_what_was_played() -> None:
    played = np.array([[1, 2, 0, 0], [2, 2, 2, 0]], dtype=np.int8)
    path = np.array([[1, 1, 0], [1, 0, 1]], dtype=np.int8)
    moves, at = joined(played, np.array([2, 3]), path, np.array([2, 3]))
    assert at.tolist() == [4, 4]
    assert moves.tolist() == [[1, 2, 1, 1], [2, 2, 2, 1]]
    moves, at = joined(played, np.array([1, 0]), path, np.array([1, 0]))
    assert at.tolist() == [2, 0]
    assert moves[0, :2].tolist() == [1, 1]


def test_the_model_is_the_game(problem: MallocGame, network: Network) -> None:
    """Step by step from the middle of random games: the game's masks, its rewards, its end."""
    moves, at, seen, _ = random_positions(problem, 5, seed=4)
    count = jnp.asarray(at)
    model = jax.jit(
        lambda network, action, embedding: true_model(problem, jnp.asarray(moves), count, 0.9)(
            network, KEY, action, embedding
        )
    )
    earned = jnp.asarray(seen["globals"][:, RETURN])
    embedding: Any = (jnp.zeros((5, DEEPEST), jnp.int8), jnp.zeros(5, jnp.int32), earned)
    total = problem.moves * np.asarray(earned, dtype=np.float64)
    for step in range(problem.moves + 2):
        place = np.minimum(at + step, problem.moves - 1)
        output, embedding = model(network, jnp.asarray(moves[np.arange(5), place]), embedding)
        now = np.minimum(at + step + 1, problem.moves)
        masks = problem.observe_at(moves, now)["mask"]
        is_over = now == problem.moves
        assert ((np.asarray(output.prior_logits) > -1e8) == masks.astype(bool))[~is_over].all()
        assert np.allclose(output.discount, 0.9 * ~is_over)
        assert (np.asarray(output.value)[is_over] == 0).all()
        total += np.asarray(output.reward)
        if is_over.all():
            break
    gains = (problem.all_slow_ps - problem.play(moves).total) / unit_ps(problem)
    np.testing.assert_allclose(total, gains, atol=1e-4)


def test_past_the_end_nothing_happens(problem: MallocGame, network: Network) -> None:
    """Roots at the last move, and one game that is over: the search looks 20 nodes beyond."""
    moves = problem.play(np.ones((2, problem.moves), np.int8)).actions
    at = np.array([problem.moves - 1, problem.moves])
    seen = problem.observe_at(moves, at)
    masks = seen.pop("mask")
    found = Search(SETTINGS, problem)(
        network, KEY, seen, problem.moves - at, masks, simulations=20, played=moves
    )
    assert masks[0, int(found.action[0])]
    assert float(found.value[1]) == 0
    assert all(np.isfinite(part).all() for part in found)


def test_the_root_is_the_learned_models_root(problem: MallocGame, network: Network) -> None:
    moves, at, seen, masks = random_positions(problem, 4, seed=6)
    left = problem.moves - at
    true = Search(SETTINGS, problem)(network, KEY, seen, left, masks, simulations=0, played=moves)
    learned = Search(SETTINGS)(network, KEY, seen, left, masks, simulations=0)
    for one, other in zip(true, learned, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def trap() -> MallocGame:
    """A random game of at most 12 moves that neither all-slow nor greedy play solves."""
    for seed in range(1000):
        game = MallocGame(*random_game(np.random.default_rng(seed), ops=(4, 6)), starts="hidden")
        if not 8 <= game.moves <= 12:
            continue
        simple = np.repeat([[0], [1], [2]], game.moves, axis=1).astype(np.int8)
        if solve(Exhaustive(), game, Budget()).value < 0.99 * game.play(simple).total.min():
            return game
    raise AssertionError("no such game")


@pytest.mark.parametrize("make", [partial(made_up, 2), trap], ids=["made_up", "trap"])
def test_two_hundred_simulations_reach_the_optimum(make: Any, network: Network) -> None:
    problem = make()
    optimum = solve(Exhaustive(), problem, Budget())
    search = Search(SETTINGS, problem)
    games = problem.games(1, threads=1)
    played = np.zeros((1, problem.moves), dtype=np.int8)
    for move in range(problem.moves):
        seen = dict(games.observe())
        masks = seen.pop("mask")
        found = search(
            network,
            jax.random.fold_in(KEY, move),
            seen,
            np.array([problem.moves - move]),
            masks,
            simulations=200,
            gumbel_scale=0.0,
            played=played,
        )
        played[:, move] = found.action
        games.step(played[:, move])
    assert int(games.judged()[0][0]) == optimum.value
