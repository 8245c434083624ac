"""The networks: every part of a position is seen, every parameter is used, batches change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")

import equinox as eqx
import jax
import jax.numpy as jnp

from loadmaster.malloc_game.games import MOST, SHAPES
from loadmaster.malloc_game.muzero.paper import Settings
from loadmaster.malloc_game.muzero.paper.network import Network, make_network
from malloc_game.muzero.paper.tiny import made_up, random_positions, tiny

KEY = jax.random.key(7)
SETTINGS = tiny()
PARTS = [name for name in SHAPES if name != "mask"]


def noisy(network: Network) -> Network:
    """With all parameters a little off: some begin as zeros, which hides what depends on them."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jnp.asarray(x + 0.1 * rng.standard_normal(x.shape).astype(np.float32)), network
    )


@pytest.fixture(scope="module")
def network() -> Network:
    return noisy(make_network(KEY, SETTINGS))


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return random_positions(made_up(), 6, seed=1)[2]


@pytest.fixture(scope="module")
def represent() -> Any:
    return eqx.filter_jit(lambda network, seen: jax.vmap(network.represent)(seen))


def unrolled(network: Network, observation: Any, actions: Any) -> list[jax.Array]:
    """All that the networks say of one position and of what moves make of it."""
    latent = network.represent(observation)
    said = [latent, *network.predict(latent)]
    for action in actions:
        latent, reward = network.dynamics(latent, action)
        said += [latent, reward, *network.predict(latent)]
    return said


def test_the_default_network_has_about_three_million_parameters() -> None:
    count = sum(leaf.size for leaf in jax.tree.leaves(make_network(KEY, Settings())))
    assert 2.8e6 < count < 3.3e6


def test_shapes_and_finite_numbers(network: Network, seen: dict[str, Any]) -> None:
    extreme = {name: np.full_like(array, 255 if name == "grid" else MOST) for name, array in seen.items()}
    empty = {name: np.zeros_like(array) for name, array in seen.items()}  # a game that is over
    batch = jax.tree.map(lambda *x: jnp.concatenate(x), seen, extreme, empty)
    actions = jnp.tile(jnp.arange(3), (18, 1))
    said = eqx.filter_jit(jax.vmap(unrolled, in_axes=(None, 0, 0)))(network, batch, actions)
    width, bins = SETTINGS.width, SETTINGS.bins
    first = [(width,), (3,), (bins,), (3,)]
    later = [(width,), (bins,), (3,), (bins,), (3,)]
    assert [x.shape[1:] for x in said] == first + 3 * later
    assert all(np.isfinite(x).all() for x in said)
    for latent in (said[0], *said[4::5]):
        np.testing.assert_allclose(latent.min(-1), 0, atol=1e-6)
        np.testing.assert_allclose(latent.max(-1), 1, atol=1e-6)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_position_is_seen(
    network: Network, seen: dict[str, Any], represent: Any, part: str
) -> None:
    other = dict(seen)
    other[part] = seen[part] + (7 if part == "grid" else 0.5)
    moved = np.abs(represent(network, seen) - represent(network, other)).max(-1)
    assert (moved > 1e-4).all()


def test_decisions_beyond_the_ends_of_a_game_do_not_count(
    network: Network, seen: dict[str, Any], represent: Any
) -> None:
    """Rows without a size hold nothing, whatever else stands in them."""
    other = dict(seen)
    beyond = seen["ahead"][..., :1] == 0
    assert beyond.any() and not beyond.all()
    changed = np.where(beyond, 3.0, seen["ahead"])
    changed[..., 0] = seen["ahead"][..., 0]
    other["ahead"] = changed.astype(np.float32)
    np.testing.assert_allclose(represent(network, seen), represent(network, other), atol=1e-6)


def test_a_batch_is_many_positions(network: Network, seen: dict[str, Any], represent: Any) -> None:
    together = represent(network, seen)
    for row in range(3):
        alone = represent(network, {name: array[row : row + 1] for name, array in seen.items()})
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)


def test_moves_differ(network: Network) -> None:
    latent = jnp.linspace(0, 1, SETTINGS.width)
    after, rewards = jax.vmap(network.dynamics, in_axes=(None, 0))(latent, jnp.arange(3))
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(after[one] - after[two]).max() > 1e-3
        assert np.abs(rewards[one] - rewards[two]).max() > 1e-4


def test_no_parameter_is_idle(network: Network, seen: dict[str, Any]) -> None:
    actions = jnp.tile(jnp.arange(3), (6, 1))

    def loss(network: Network) -> jax.Array:
        said = jax.vmap(unrolled, in_axes=(None, 0, 0))(network, seen, actions)
        return sum((jnp.cos(3 * x + jnp.arange(x.shape[-1])) ** 2).sum() for x in said)

    gradient = eqx.filter_jit(eqx.filter_grad(loss))(network)
    paths, _ = jax.tree_util.tree_flatten_with_path(gradient)
    idle = [jax.tree_util.keystr(path) for path, leaf in paths if not np.abs(leaf).max() > 0]
    # A softmax does not see what is added to all of its logits.
    assert idle in ([], [".decisions.key.bias"])


def test_the_key_decides_the_network() -> None:
    one, same, other = (make_network(jax.random.key(seed), SETTINGS) for seed in (1, 1, 2))
    weights = [np.asarray(network.policy.second.weight) for network in (one, same, other)]
    assert (weights[0] == weights[1]).all()
    assert (weights[0] != weights[2]).all()


def test_a_new_network_prefers_nothing(seen: dict[str, Any], represent: Any) -> None:
    network = make_network(KEY, SETTINGS)
    policy, _, legality = jax.vmap(network.predict)(represent(network, seen))
    assert (jax.nn.softmax(policy).max(-1) < 0.5).all()
    assert (np.abs(legality) < 1).all()
