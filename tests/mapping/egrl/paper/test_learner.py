"""The gradient learner: it learns, as much as it is told to, and from what decides something."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("optax")

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from loadmaster.mapping.egrl.paper import EVOLUTION, Settings
from loadmaster.mapping.egrl.paper import network as network_module
from loadmaster.mapping.egrl.paper import session as learner_module
from loadmaster.mapping.egrl.paper.network import Actor, Critic, Graph, make_graph
from loadmaster.mapping.egrl.paper.session import Learner, _entropy, first_learner, improve
from loadmaster.mapping.problem import Mapping
from mapping.egrl.paper.small import SMALL, chain_problem

SETTINGS = Settings(**SMALL, gradient_clip=0.5, critic_rate=3e-3)
ROUNDS, BATCH, KEY = 80, 4, jax.random.key(0)


class World:
    """A problem, its graph, a new learner, and a batch of scored maps for every update."""

    def __init__(self, problem: Mapping) -> None:
        rng = np.random.default_rng(0)
        self.problem, self.graph = problem, make_graph(problem)
        maps = rng.integers(0, 3, (400, 2 * problem.nodes)).astype(np.int8)
        rewards = problem.score(maps).reward
        rows = np.concatenate([np.flatnonzero(rewards > 0)[:2], np.flatnonzero(rewards < 0)[:2]])
        self.maps = np.tile(maps[rows].reshape(BATCH, 2, -1), (ROUNDS, 1, 1, 1))
        self.rewards = np.tile(rewards[rows].astype(np.float32), (ROUNDS, 1))

    def new(self, settings: Settings = SETTINGS) -> Learner:
        keys = jax.random.split(KEY)
        return first_learner(Actor(3, settings, keys[0]), Critic(3, settings, keys[1]), settings)


@pytest.fixture(scope="module")
def world() -> World:
    return World(chain_problem())


@pytest.fixture(scope="module")
def improved() -> Any:
    """One compiled function for all tests."""
    return eqx.filter_jit(partial(improve, settings=SETTINGS))


def after(improved: Any, world: World, count: int, **changes: Any) -> tuple[Learner, float]:
    given = {"maps": world.maps, "rewards": world.rewards} | changes
    learner, loss = improved(
        KEY,
        given.pop("learner", None) or world.new(),
        world.graph,
        given["maps"],
        given["rewards"],
        np.array(count),
    )
    return learner, float(loss)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def test_the_critic_learns_a_fixed_batch(improved: Any, world: World) -> None:
    _, first = after(improved, world, 1)
    learner, last = after(improved, world, ROUNDS)
    assert last < 0.2 * first, (first, last)
    action = jax.nn.one_hot(world.maps[0], 3)
    rate = jax.jit(jax.vmap(lambda one: learner.critic(world.graph, one)))
    values = rate(action)  # [batch, 2]
    wanted = 5 * (world.rewards[0] + 1)
    assert np.abs(np.asarray(values) - wanted[:, None]).mean() < 0.5 * np.abs(wanted).mean()


def test_the_count_is_honoured(improved: Any, world: World) -> None:
    fresh = world.new()
    nothing, loss = after(improved, world, 0, learner=fresh)
    assert same(nothing, fresh) and loss == 0
    two, _ = after(improved, world, 2, learner=fresh)
    assert not same(two.actor, fresh.actor) and not same(two.critic, fresh.critic)
    later = world.maps.copy()
    later[2:] = 0  # what comes after is not looked at
    again, _ = after(improved, world, 2, learner=fresh, maps=later)
    assert same(again, two)
    other, _ = after(improved, world, 2, learner=fresh, maps=later[::-1].copy())
    assert not same(other, two)


def test_gradients_are_clipped_before_they_are_applied(improved: Any, world: World) -> None:
    learner, loss = after(improved, world, 1)
    assert math.sqrt(loss) > SETTINGS.gradient_clip  # the gradient was larger than that
    for state in (learner.actor_optimizer_state, learner.critic_optimizer_state):
        mean = float(optax.tree.norm(state[1][0].mu)) / 0.1  # Adam has taken a tenth of it
        assert mean <= SETTINGS.gradient_clip * 1.0001
    mean = float(optax.tree.norm(learner.critic_optimizer_state[1][0].mu)) / 0.1
    assert mean == pytest.approx(SETTINGS.gradient_clip, rel=1e-3)


def test_bootstrap_follows_with_a_slow_critic(world: World) -> None:
    settings = replace(SETTINGS, target="bootstrap", polyak=0.25, depth=0)
    step = eqx.filter_jit(partial(improve, settings=settings))
    fresh = world.new(settings)
    assert fresh.slow is not None and same(fresh.slow, fresh.critic)
    learner, loss = after(step, world, 1, learner=fresh)
    assert np.isfinite(loss)
    for slow, old, new in zip(*map(leaves, (learner.slow, fresh.slow, learner.critic)), strict=True):
        np.testing.assert_allclose(slow, old + 0.25 * (new - old), atol=1e-6)
    later, _ = after(step, world, ROUNDS, learner=fresh)
    assert all(np.isfinite(leaf).all() for leaf in leaves(later))
    # The target is the reward and, discounted, the value of what the actor would do.
    values = eqx.filter_jit(fresh.slow)
    p = jax.nn.softmax(jax.jit(lambda actor: actor(world.graph))(fresh.actor), axis=-1)
    value = float(values(world.graph, p).min())
    value += 0.2 * settings.entropy * float(_entropy(p, world.graph))
    later_value = eqx.filter_jit(partial(learner_module._later, settings=settings))
    assert later_value(fresh, world.graph) == pytest.approx(value, rel=1e-4)


def test_one_step_has_no_slow_critic(world: World) -> None:
    assert world.new().slow is None


def test_dead_entries_say_nothing_to_the_critic(world: World) -> None:
    critic, rng = world.new().critic, np.random.default_rng(0)
    dead = ~world.problem.live.reshape(2, -1)
    assert dead.any()
    action = rng.random((2, world.problem.nodes, 3)).astype(np.float32)
    other = np.where(dead[..., None], rng.random(action.shape), action).astype(np.float32)
    changed = np.where(dead[..., None], action, 1 - action).astype(np.float32)

    @jax.jit
    def value_and_slope(action: Any) -> Any:
        return jax.value_and_grad(lambda a: critic(world.graph, a).sum())(action)

    value, slope = value_and_slope(action)
    assert float(value_and_slope(other)[0]) == float(value)
    assert float(value_and_slope(changed)[0]) != float(value)
    assert not np.asarray(slope)[dead].any() and np.asarray(slope)[~dead].any()


def test_entropy_counts_what_decides_something(world: World) -> None:
    live = world.problem.live.reshape(2, -1)
    even = jnp.full((2, world.problem.nodes, 3), 1 / 3)
    assert float(_entropy(even, world.graph)) == pytest.approx(2 * math.log(3), rel=1e-5)
    sure = jnp.where(live[..., None], jnp.eye(3)[0], even)
    assert float(_entropy(sure, world.graph)) == pytest.approx(0, abs=1e-5)
    nothing: Graph = world.graph._replace(live=jnp.zeros_like(world.graph.live))
    assert float(_entropy(even, nothing)) == 0


def test_compiled_code_reads_no_setting_of_evolution() -> None:
    """Runs that differ in those alone share it."""
    parts = (learner_module.optimizers, first_learner, improve, learner_module._update, learner_module._later)
    for part in (*parts, network_module):
        text = inspect.getsource(part)
        assert not [name for name in EVOLUTION if f"settings.{name}" in text]
    changed = Settings(population=8, elites=3, learner=True, burn_in=0)
    assert changed.compiled == Settings()
    assert Settings(width=64, entropy=0.0).compiled == Settings(width=64, entropy=0.0)
