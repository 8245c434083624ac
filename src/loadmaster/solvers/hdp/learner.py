"""Drawing plans and learning from what they cost (REINFORCE), compiled once per shape."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from loadmaster.solvers.hdp.network import (
    Network,
    Noise,
    draw_places,
    group_logits,
    log_probability,
    make_network,
)
from loadmaster.solvers.hdp.settings import Settings

_ADAM = optax.scale_by_adam()


class Learner(NamedTuple):
    """What learning changes."""

    network: Network
    moments: optax.OptState


def make_learner(
    seed: int, op_width: int, group_width: int, groups: int, devices: int, settings: Settings
) -> Learner:
    key = jax.random.key(seed)
    network = make_network(key, op_width, group_width, groups, devices, settings)
    return Learner(network, _ADAM.init(eqx.filter(network, eqx.is_array)))


def step_key(seed: int, step: int) -> Array:
    """Draws and noise of a step depend on these alone, so that learning sees the same noise."""
    return jax.random.fold_in(jax.random.key(seed), step + 1)


@eqx.filter_jit  # type: ignore[untyped-decorator]
def draw_grouping(network: Network, ops: Array, key: Array, noise: Array) -> Array:
    """[ops] a group for each op."""
    noise_key, draw_key, _ = jax.random.split(key, 3)
    return jax.random.categorical(draw_key, group_logits(network, ops, noise_key, noise))


@eqx.filter_jit  # type: ignore[untyped-decorator]
def draw_devices(network: Network, rows: Array, key: Array, noise: Array, settings: Settings) -> Array:
    """[groups] a device for each group."""
    return draw_places(network, rows, _place_noise(network, key), noise, settings)


def _place_noise(network: Network, key: Array) -> Noise:
    groups, devices = network.group_out.shape[1], network.choose.shape[1]
    return Noise.of(jax.random.split(key, 3)[2], groups, devices)


class Lesson(NamedTuple):
    """A plan as it was drawn, and by how much it cost more than was expected."""

    ops: Array
    grouping: Array
    rows: Array
    devices: Array
    key: Array
    noise: Array
    excess: Array


@eqx.filter_jit  # type: ignore[untyped-decorator]
def learn(learner: Learner, lesson: Lesson, rate: Array, settings: Settings) -> Learner:
    """Make what cost less than expected likelier; the gradient's norm is bounded."""

    def loss(network: Network) -> Array:
        noise_key, _, _ = jax.random.split(lesson.key, 3)
        logits = group_logits(network, lesson.ops, noise_key, lesson.noise)
        chances = jax.nn.log_softmax(logits)
        grouped = jnp.take_along_axis(chances, lesson.grouping[:, None], axis=1).sum()
        placed = log_probability(
            network, lesson.rows, lesson.devices, _place_noise(network, lesson.key), lesson.noise, settings
        )
        return lesson.excess * (grouped + placed)

    gradient = eqx.filter_grad(loss)(learner.network)
    norm = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(gradient)))
    scale = jnp.maximum(norm / settings.gradient_bound, 1.0)
    bounded = jax.tree.map(lambda each: each / scale, gradient)
    direction, moments = _ADAM.update(bounded, learner.moments)
    changes = jax.tree.map(lambda each: -rate * each, direction)
    return Learner(eqx.apply_updates(learner.network, changes), moments)
