"""Search: legal moves only, the best path where the model is exact, nothing after the end."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("mctx")

import equinox as eqx
import jax
import jax.numpy as jnp

from loadmaster.malloc_game.muzero.paper.network import Network, make_network
from loadmaster.malloc_game.muzero.paper.search import Found, Search
from malloc_game.muzero.paper.tiny import DEPTH, NODES, Tree, at_nodes, made_up, random_positions, tiny, tree

KEY = jax.random.key(11)
POLICIES = ("gumbel", "muzero")
LEGAL = np.array([mask for mask in product((0, 1), repeat=3) if any(mask)], dtype=np.uint8)
"""[7, 3]"""
ALL = np.ones((1, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def network() -> Network:
    made = make_network(KEY, tiny())
    rng = np.random.default_rng(5)  # a policy that has preferences
    return jax.tree.map(
        lambda x: jnp.asarray(x + 0.2 * rng.standard_normal(x.shape).astype(np.float32)), made
    )


@pytest.fixture(scope="module")
def positions() -> tuple[Any, Any]:
    """(observations, moves left) of as many positions as there are masks."""
    problem = made_up()
    _, at, seen, _ = random_positions(problem, len(LEGAL), seed=2)
    return seen, problem.moves - at


def searched(
    model: Tree,
    nodes: tuple[int, ...],
    left: int,
    masks: Any = None,
    *,
    simulations: int = 96,
    scale: float = 0.0,
    **switches: Any,
) -> Found:
    """What a search of a made-up tree finds at some of its nodes."""
    masks = np.ones((len(nodes), 3), np.uint8) if masks is None else masks
    return Search(tiny(**switches))(
        model,
        KEY,
        at_nodes(*nodes),
        np.full(len(nodes), left),
        masks,
        simulations=simulations,
        gumbel_scale=scale,
    )


# --- moves that may be played ---------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1.0])
@pytest.mark.parametrize(("policy", "simulations"), [("gumbel", 0), ("gumbel", 8), ("muzero", 8)])
def test_only_legal_moves(
    network: Network, positions: Any, policy: str, simulations: int, scale: float
) -> None:
    seen, left = positions
    search = Search(tiny(policy=policy))
    for seed in range(5):
        found = search(
            network, jax.random.key(seed), seen, left, LEGAL, simulations=simulations, gumbel_scale=scale
        )
        assert LEGAL[np.arange(len(LEGAL)), found.action].all()
        for shares in (found.weights, found.prior):
            np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)
            assert not np.asarray(shares)[LEGAL == 0].any()
        assert np.isfinite(found.value).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_thought_illegal_is_not_counted_on(policy: str) -> None:
    """The first move leads to a place from which 0.5 could be earned, if only that were allowed;
    the second to one with 0.2."""
    rewards = {4: 0.5, 8: 0.2}
    barred = np.full((NODES, 3), 20.0, dtype=np.float32)
    barred[1, 0] = -20
    for legality, expected in ((np.full_like(barred, 20), 0), (barred, 1)):
        model = tree(rewards, legality=jnp.asarray(legality))
        found = searched(model, (0,), DEPTH, policy=policy)
        assert found.action.tolist() == [expected]


def test_a_wrong_belief_is_not_for_ever() -> None:
    """Held back by eight logits at most: a strong policy still gets there."""
    policy = np.zeros((NODES, 3), np.float32)
    policy[1, 0] = 12
    barred = np.full((NODES, 3), 20.0, dtype=np.float32)
    barred[1, 0] = -1000
    model = tree({4: 0.5, 8: 0.2}, policy=jnp.asarray(policy), legality=jnp.asarray(barred))
    assert searched(model, (0,), DEPTH).action.tolist() == [0]


# --- what is found --------------------------------------------------------------------------------


def best_path(rewards: np.ndarray) -> tuple[tuple[int, ...], float, float]:
    """(the best three moves, what they earn, what the second best first move can earn)"""
    worth = {}
    for path in product(range(3), repeat=DEPTH):
        node, worth[path] = 0, 0.0
        for move in path:
            node = 3 * node + 1 + move
            worth[path] += rewards[node]
    best = max(worth, key=lambda path: worth[path])
    others = max(value for path, value in worth.items() if path[0] != best[0])
    return best, worth[best], others


def still_to_earn(rewards: np.ndarray) -> np.ndarray:
    """[NODES] by the best moves from each node on"""
    values = np.zeros(NODES)
    for node in range((NODES - 1) // 3 - 3**DEPTH - 1, -1, -1):
        values[node] = max(rewards[child] + values[child] for child in range(3 * node + 1, 3 * node + 4))
    return values


@pytest.mark.parametrize("policy", POLICIES)
def test_an_exact_model_finds_a_path_that_begins_badly(policy: str) -> None:
    """At first 0.1 beckons, and then nothing; the way to 0.55 costs 0.05 first. Gumbel MuZero finds
    it blindly; PUCT goes where values send it and is given half of the true ones."""
    rewards = np.zeros(NODES)
    rewards[[1, 2, 3, 11, 12, 36]] = [0.1, 0.05, -0.05, 0.45, 0.02, 0.1]
    values = jnp.asarray(0.5 * still_to_earn(rewards) * (policy == "muzero"))
    model = tree(dict(enumerate(rewards.tolist())), values=values)
    played, node = [], 0
    for left in range(DEPTH, 0, -1):
        action = int(searched(model, (node,), left, policy=policy).action[0])
        played.append(action)
        node = 3 * node + 1 + action
    assert tuple(played) == best_path(rewards)[0] == (2, 1, 2)


def test_random_trees() -> None:
    """Where the best first move is clearly best, searches with an exact model find it."""
    rng = np.random.default_rng(3)
    roots = searches = 0
    for _ in range(40):
        rewards = rng.uniform(-0.1, 0.4, NODES) * (rng.random(NODES) < 0.4)
        path, best, other = best_path(rewards)
        if best - other < 0.15:
            continue
        model = tree(dict(enumerate(rewards.tolist())))
        found = searched(model, (0,), DEPTH, value_scale=0.02)
        searches += int(found.action[0]) == path[0]
        roots += 1
    assert roots >= 10
    assert searches == roots


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_earned_after_the_end(policy: str) -> None:
    """Values of 1 and rewards of 0.5 wait behind the first move, and the game is over there."""
    rewards = {1: 0.1, 2: 0.2, 3: 0.15} | dict.fromkeys(range(4, 7), 0.5)
    model = tree(rewards, values=jnp.ones(NODES).at[0].set(0.0))
    last = searched(model, (0,), 1, policy=policy)
    assert last.action.tolist() == [1]
    assert 0.1 < float(last.value[0]) <= 0.2 + 1e-6
    more = searched(model, (0,), 2, policy=policy)
    assert more.action.tolist() == [0]
    assert float(more.value[0]) > 0.3


@pytest.mark.parametrize("policy", POLICIES)
def test_a_game_that_is_over_earns_nothing(policy: str) -> None:
    """In a batch with one that is not; its mask has no legal move."""
    model = tree(dict.fromkeys(range(1, NODES), 0.3), values=jnp.ones(NODES))
    masks = np.array([[0, 0, 0], [1, 1, 1]], dtype=np.uint8)
    for simulations in (0, 8):
        found = Search(tiny(policy=policy))(
            model, KEY, at_nodes(0, 0), np.array([0, 3]), masks, simulations=simulations
        )
        assert float(found.value[0]) == 0
        assert float(found.value[1]) > 0.5
        assert all(np.isfinite(part).all() for part in found)


def test_search_beats_the_policy_that_it_began_with() -> None:
    rewards = {1: 0.1, 2: 0.3}
    policy = jnp.tile(jnp.array([0.5, 0.0, 0.0]), (NODES, 1))
    found = searched(tree(rewards, policy=policy), (0,), 1)
    assert found.action.tolist() == [1]
    assert float(found.weights[0, 1]) > float(found.prior[0, 1])
    assert float(found.prior[0, 0]) > float(found.prior[0, 1])


def test_equal_moves_stay_nearly_equal() -> None:
    """With a small scale, noise that is stretched to [0, 1] moves the policy by a logit or two."""
    model = tree({1: 0.1, 2: 0.1001, 3: 0.1})
    small, large = (searched(model, (0,), 1, value_scale=scale) for scale in (0.02, 0.1))
    assert float(small.weights[0].max()) < 0.9 < float(large.weights[0].max())


# --- without search, and with chance --------------------------------------------------------------


def test_without_simulations_the_policy_plays(network: Network, positions: Any) -> None:
    seen, left = positions
    policy = eqx.filter_jit(lambda network, each: network.predict(network.represent(each))[0])
    logits = jax.vmap(policy, in_axes=(None, 0))(network, seen)
    raised = np.exp(np.asarray(logits, dtype=np.float64)) * LEGAL
    expected = raised / raised.sum(-1, keepdims=True)
    found = Search(tiny())(network, KEY, seen, left, LEGAL, simulations=0, gumbel_scale=0.0)
    np.testing.assert_allclose(found.prior, expected, atol=1e-5)
    np.testing.assert_allclose(found.weights, expected, atol=1e-5)
    assert found.action.tolist() == expected.argmax(-1).tolist()


def test_without_simulations_moves_are_drawn_as_the_policy_says() -> None:
    policy = jnp.tile(jnp.log(jnp.array([0.2, 0.5, 0.3])), (NODES, 1))
    count = 3000
    masks = np.repeat([[1, 1, 0]], count, axis=0)
    found = searched(tree({}, policy=policy), (0,) * count, 3, masks, simulations=0, scale=1.0)
    shares = np.bincount(found.action, minlength=3) / count
    np.testing.assert_allclose(shares, [2 / 7, 5 / 7, 0], atol=0.04)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_key_decides(network: Network, positions: Any, policy: str) -> None:
    seen, left = positions
    search, masks = Search(tiny(policy=policy)), np.ones_like(LEGAL)

    def found(seed: int) -> list[list[Any]]:
        result = search(network, jax.random.key(seed), seen, left, masks, simulations=8)
        return [np.asarray(part).tolist() for part in result]

    assert found(1) == found(1)
    assert len({tuple(found(seed)[0]) for seed in range(8)}) > 1


def test_a_batch_is_many_searches(network: Network, positions: Any) -> None:
    """Without chance; with it, a batch draws other numbers."""
    seen, left = positions
    search = Search(tiny())
    together = search(network, KEY, seen, left, LEGAL, simulations=8, gumbel_scale=0.0)
    for row in range(len(LEGAL)):
        at = slice(row, row + 1)
        alone = search(
            network,
            KEY,
            {name: x[at] for name, x in seen.items()},
            left[at],
            LEGAL[at],
            simulations=8,
            gumbel_scale=0.0,
        )
        assert int(alone.action[0]) == int(together.action[row])
        for one, many in zip(alone[1:], together[1:], strict=True):
            np.testing.assert_allclose(one[0], many[row], atol=1e-4, rtol=1e-5)
