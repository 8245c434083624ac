"""The learner: its loss is the sum that the specification names, its gradient goes through the
unrolled model, and nothing after the end of a game teaches anything."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("mctx")

import equinox as eqx
import jax
import jax.numpy as jnp

from loadmaster.learn.session import keep_only
from loadmaster.malloc_game.muzero.paper import LEARNING, Settings
from loadmaster.malloc_game.muzero.paper.batches import finish, prepare
from loadmaster.malloc_game.muzero.paper.learner import (
    Batch,
    _scaled,
    compiled_improve,
    first_learner,
    loss,
    optimizer,
    resume_learner,
)
from loadmaster.malloc_game.muzero.paper.network import REWARDS, VALUES, Network, make_network, two_hot
from loadmaster.malloc_game.muzero.paper.replay import Replay
from loadmaster.malloc_game.muzero.paper.search import Found
from malloc_game.muzero.paper.small import SMALL, random_games
from malloc_game.muzero.paper.tiny import made_up

SETTINGS = Settings(**SMALL)
ROWS = 16


def fixed_lesson(rows: int = ROWS) -> Batch:
    settings = Settings(**SMALL | {"reanalyse": False})
    replay = Replay([made_up()], settings)
    replay.programs[0].add(*random_games(made_up(), 12))
    picked = replay.draw(np.random.default_rng(4), 1, rows)
    picked.move[0, :2] = made_up().moves - 1  # some are at the end
    batch = prepare(replay, picked, settings).batch
    seen = {name: jnp.asarray(array[0]) for name, array in batch.seen.items()}
    return Batch(seen, *(jnp.asarray(array[0]) for array in batch[1:]))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return fixed_lesson()


@pytest.fixture(scope="module")
def network() -> Network:
    made = make_network(jax.random.key(3), SETTINGS)
    rng = np.random.default_rng(0)  # nothing is zero, so that everything has a say
    return jax.tree.map(
        lambda x: jnp.asarray(x + 0.1 * rng.standard_normal(x.shape).astype(np.float32)), made
    )


def compiled(settings: Settings) -> Any:
    return eqx.filter_jit(
        lambda network, batch: eqx.filter_value_and_grad(lambda n: loss(n, batch, settings)[0])(network)
    )


@pytest.fixture(scope="module")
def gradient() -> Any:
    return compiled(SETTINGS)


def cross_entropy(wanted: Any, logits: Any) -> float:
    logits = np.asarray(logits, np.float64)
    return float(-(np.asarray(wanted) * (logits - np.log(np.exp(logits).sum()))).sum())


@jax.jit
def said(network: Network, seen: Any, actions: Any) -> list[tuple[Any, ...]]:
    """What the networks say of one position and after each move: (reward, policy, value, legality)."""
    latent = network.represent(seen)
    found = [(None, *network.predict(latent))]
    for action in actions:
        latent, reward = network.dynamics(latent, action.astype(int))
        found.append((reward, *network.predict(latent)))
    return found


def test_the_loss_is_the_sum_of_its_parts(network: Network, batch: Batch, gradient: Any) -> None:
    settings, total = SETTINGS, 0.0
    for row in range(ROWS):
        seen = {name: array[row] for name, array in batch.seen.items()}
        of_row = 0.0
        for k, (reward, policy, value, legality) in enumerate(said(network, seen, batch.actions[row])):
            share = 1.0 if k == 0 else 1 / settings.unroll
            if k > 0 and batch.inside[row, k - 1]:
                wanted = two_hot(batch.rewards[row, k - 1], *REWARDS, settings.bins)
                of_row += share * settings.reward_weight * cross_entropy(wanted, reward)
            if not batch.inside[row, k]:
                continue
            legal = np.asarray(batch.legal[row, k])
            of_row += share * cross_entropy(batch.policy[row, k][legal], policy[legal])
            wanted = two_hot(batch.value[row, k], *VALUES, settings.bins)
            of_row += share * settings.value_weight * cross_entropy(wanted, value)
            chance = 1 / (1 + np.exp(-np.asarray(legality, np.float64)))
            right = np.log(np.where(legal, chance, 1 - chance))
            of_row -= share * settings.legality_weight * float(right.sum())
        total += of_row * float(batch.weight[row]) / ROWS
    assert np.isclose(float(gradient(network, batch)[0]), total, rtol=1e-4)
    assert not batch.inside.all()


def test_nothing_past_the_end_teaches(network: Network, batch: Batch, gradient: Any) -> None:
    past = ~np.asarray(batch.inside)
    other = batch._replace(
        policy=jnp.where(past[..., None], 7.0, batch.policy),
        value=jnp.where(past, 0.9, batch.value),
        legal=batch.legal & ~past[..., None],
        rewards=jnp.where(past[:, :-1], 0.3, batch.rewards),
    )
    (a, da), (b, db) = gradient(network, batch), gradient(network, other)
    assert a == b
    for x, y in zip(jax.tree.leaves(da), jax.tree.leaves(db), strict=True):
        assert np.array_equal(x, y)


def size(tree: Any) -> float:
    return float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(tree)))


def test_gradients_flow_through_the_unrolled_model(network: Network, batch: Batch, gradient: Any) -> None:
    # Another last reward must change what the first position is taken for.
    row = int(np.argmax(batch.inside.all(1)))
    assert batch.inside[row].all()
    other = batch._replace(rewards=batch.rewards.at[row, -1].add(0.2))
    change = jax.tree.map(jnp.subtract, gradient(network, batch)[1], gradient(network, other)[1])
    assert size(change.grid) > 1e-6 and size(change.moved) > 1e-6 and size(change.reward) > 1e-6
    assert size(change.policy) == size(change.value) == size(change.outlook) == 0


def test_gradients_are_scaled_and_numbers_are_not() -> None:
    value, slope = jax.value_and_grad(lambda x: _scaled(x, 0.25) ** 2)(3.0)
    assert value == 9 and slope == 1.5


def test_every_part_learns(network: Network, batch: Batch, gradient: Any) -> None:
    change = gradient(network, batch)[1]
    for path, leaf in jax.tree_util.tree_flatten_with_path(change)[0]:
        assert float(jnp.abs(leaf).max()) > 0, path


def test_the_loss_falls_on_a_fixed_batch(batch: Batch) -> None:
    learner = first_learner(make_network(jax.random.key(1), SETTINGS), SETTINGS)
    improve, seen = compiled_improve(keep_only(SETTINGS, LEARNING)), []
    for _ in range(60):
        learner, losses = improve(learner, batch)
        seen.append([float(each) for each in losses])
    before, after = np.array(seen[0]), np.array(seen[-10:]).mean(0)
    assert (after[1:] < 0.75 * before[1:]).all(), (before, after)
    assert after[0] < before[0]
    # The target network is somebody else's business.
    assert size(jax.tree.map(jnp.subtract, learner.target, learner.network)) > 0


def test_the_rate_falls_and_only_matrices_decay() -> None:
    settings = Settings(
        **SMALL | {"learning_rate": 1e-2, "final_rate": 1e-3, "horizon": 10, "weight_decay": 0.5}
    )
    rule = optimizer(settings)
    weights = {"matrix": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    memory, steps = rule.init(weights), []
    for _ in range(13):
        change, memory = rule.update(jax.tree.map(jnp.zeros_like, weights), memory, weights)
        steps.append(-float(change["matrix"][0, 0]))
        assert (change["bias"] == 0).all()
    assert np.isclose(steps[0], 0.5e-2) and np.isclose(steps[-1], 0.5e-3)
    assert all(a >= b for a, b in itertools.pairwise(steps))


def test_what_is_searched_anew_teaches_something_else() -> None:
    settings = Settings(**SMALL | {"search_value": 0.25, "imitated": 0.75})
    replay = Replay([made_up()], settings)
    replay.programs[0].add(*random_games(made_up(), 12))
    prepared = prepare(replay, replay.draw(np.random.default_rng(4), 2, ROWS), settings)
    asked: list[Any] = []
    new = np.float32([0.5, 0.25, 0.25])

    def search(network: Any, key: Any, seen: Any, left: Any, masks: Any, **how: Any) -> Found:
        asked.append((seen, left, masks, how))
        weights = np.tile(new, (len(left), 1))
        return Found(left, weights, np.arange(len(left), dtype=np.float32), weights)  # type: ignore[arg-type]

    batch = finish(prepared, 1, search, None, jax.random.key(0), settings)  # type: ignore[arg-type]
    old = Batch({}, *(array[1] for array in prepared.batch[1:]))
    fresh, best, again = replay.counts(ROWS)
    ((seen, left, masks, how),) = asked
    assert how["simulations"] == settings.simulations and len(left) == best + again == ROWS - fresh
    assert masks.any(axis=1).all() and np.array_equal(masks, old.legal[fresh:, 0])
    for name, array in seen.items():
        assert np.array_equal(array, prepared.batch.seen[name][1][fresh:])
        assert np.array_equal(batch.seen[name], prepared.batch.seen[name][1])
    # The first position of a batch is searched; the moves after it are as they were played.
    policy, value = np.array(old.policy), np.array(old.value)
    value[fresh:, 0] = 0.75 * value[fresh:, 0] + 0.25 * np.arange(best + again)
    policy[fresh : fresh + best, 0] = 0.75 * policy[fresh : fresh + best, 0] + 0.25 * new
    policy[fresh + best :, 0] = new
    assert np.allclose(batch.policy, policy) and np.allclose(batch.value, value)
    for name in ("actions", "rewards", "legal", "inside", "weight"):
        assert np.array_equal(getattr(batch, name), getattr(old, name)), name


def test_a_light_learner_knows_how_far_the_rate_has_fallen() -> None:
    settings = Settings(**SMALL | {"horizon": 10})
    network = make_network(jax.random.key(1), settings)
    learner = resume_learner(network, settings, 7)
    counts = [leaf for leaf in jax.tree.leaves(learner.optimizer_state) if leaf.dtype.kind == "i"]
    assert counts and all(int(count) == 7 for count in counts)
    assert size(learner.network) == size(network)
    moved = [leaf for leaf in jax.tree.leaves(learner.optimizer_state) if leaf.dtype.kind == "f"]
    assert size(moved) == 0
