"""The gradient learner: a discrete soft actor-critic on one-step episodes.

The critic learns y = 5 (reward + 1) of stored maps; the actor climbs the critic with a
straight-through one-hot of its most likely map, and an entropy bonus. What the population found
reaches it through the buffer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from loadmaster.mapping.egrl.paper import Settings
from loadmaster.mapping.egrl.paper.network import Actor, Critic, Graph

SCALE, SHIFT = 5.0, 1.0


class Learner(NamedTuple):
    """Parameters and the optimisers' states: all that training changes."""

    actor: Actor
    critic: Critic
    slow: Critic | None
    """The target critic; only with `target = "bootstrap"`."""
    actor_optimizer_state: Any
    critic_optimizer_state: Any


def optimizers(settings: Settings) -> tuple[optax.GradientTransformation, ...]:
    """The actor's and the critic's: clipped after the gradient exists, then Adam."""
    return tuple(
        optax.chain(optax.clip_by_global_norm(settings.gradient_clip), optax.adam(rate))
        for rate in (settings.actor_rate, settings.critic_rate)
    )


def first_learner(actor: Actor, critic: Critic, settings: Settings) -> Learner:
    """A learner that has learned nothing."""
    for_actor, for_critic = optimizers(settings)
    slow = critic if settings.target == "bootstrap" else None
    return Learner(
        actor,
        critic,
        slow,
        for_actor.init(eqx.filter(actor, eqx.is_array)),
        for_critic.init(eqx.filter(critic, eqx.is_array)),
    )


def improve(
    key: Array, learner: Learner, graph: Graph, maps: Array, rewards: Array, count: Array, settings: Settings
) -> tuple[Learner, Array]:
    """The first `count` of the updates that maps int8[U, batch, 2, n] and rewards [U, batch] hold: one compiled
    loop, whatever the count.

    Returns:
      The learner and the last critic loss.
    """
    arrays, rest = eqx.partition(learner, eqx.is_array)

    def body(number: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        now = eqx.combine(carry[0], rest)
        fresh = jax.random.fold_in(key, number)
        after, loss = _update(fresh, now, graph, maps[number], rewards[number], settings)
        return eqx.filter(after, eqx.is_array), loss

    arrays, loss = jax.lax.fori_loop(0, count, body, (arrays, jnp.float32(0)))
    return eqx.combine(arrays, rest), loss


def _update(
    key: Array, learner: Learner, graph: Graph, maps: Array, rewards: Array, settings: Settings
) -> tuple[Learner, Array]:
    for_actor, for_critic = optimizers(settings)
    noise = settings.action_noise * jax.random.normal(key, (*maps.shape, graph.memories))
    actions = jnp.clip(jax.nn.one_hot(maps, graph.memories) + noise, 0, 1)
    target = SCALE * (rewards + SHIFT)
    if settings.target == "bootstrap":
        target = target + settings.discount * _later(learner, graph, settings)

    def critic_loss(critic: Critic) -> Array:
        values = jax.vmap(lambda action: critic(graph, action))(actions)  # [batch, 2]
        return ((values - target[:, None]) ** 2).mean(axis=0).sum()

    def actor_loss(actor: Actor) -> Array:
        p = jax.nn.softmax(actor(graph), axis=-1)
        hard = jax.nn.one_hot(p.argmax(-1), graph.memories)
        value = critic(graph, hard + p - jax.lax.stop_gradient(p)).min()
        return -(value + settings.entropy * _entropy(p, graph))

    loss, gradient = eqx.filter_value_and_grad(critic_loss)(learner.critic)
    change, critic_optimizer_state = for_critic.update(gradient, learner.critic_optimizer_state)
    critic = eqx.apply_updates(learner.critic, change)
    gradient = eqx.filter_grad(actor_loss)(learner.actor)
    change, actor_optimizer_state = for_actor.update(gradient, learner.actor_optimizer_state)
    actor = eqx.apply_updates(learner.actor, change)
    slow = learner.slow
    if slow is not None:
        slow = jax.tree.map(
            lambda old, new: old + settings.polyak * (new - old) if eqx.is_array(old) else old, slow, critic
        )
    return Learner(actor, critic, slow, actor_optimizer_state, critic_optimizer_state), loss


def _later(learner: Learner, graph: Graph, settings: Settings) -> Array:
    """The circulated bootstrap: the value of what the actor would do next."""
    assert learner.slow is not None
    p = jax.nn.softmax(learner.actor(graph), axis=-1)
    value = learner.slow(graph, p).min() + 0.2 * settings.entropy * _entropy(p, graph)
    return jax.lax.stop_gradient(value)


def _entropy(p: Array, graph: Graph) -> Array:
    """Summed over the two heads, the mean over entries that decide something."""
    each = -(p * jnp.log(p + 1e-9)).sum(-1)
    return (jnp.where(graph.live, each, 0).sum(-1) / jnp.maximum(graph.live.sum(-1), 1)).sum()
