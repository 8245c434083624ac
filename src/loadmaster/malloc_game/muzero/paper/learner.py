"""The learner: from positions and what followed them, the model is unrolled K moves, and at each the
policy, value, reward and legality that it predicts are held against what the search and the game said.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from loadmaster.malloc_game.muzero.paper import Settings
from loadmaster.malloc_game.muzero.paper.network import FAR, REWARDS, VALUES, Network, two_hot


class Batch(NamedTuple):
    """R positions and the K moves after each. What is past the end of a game is not `inside`."""

    seen: dict[str, Any]
    """[R, ...] observations of the first of them"""
    actions: Any
    """int8[R, K]"""
    rewards: Any
    """float32[R, K]"""
    legal: Any
    """bool[R, K+1, 3]"""
    policy: Any
    """float32[R, K+1, 3]"""
    value: Any
    """float32[R, K+1]"""
    inside: Any
    """bool[R, K+1]"""
    weight: Any
    """float32[R]"""


class Learner(NamedTuple):
    """All that training changes."""

    network: Network
    target: Any
    """As `network` was some steps ago: what reanalysis searches with."""
    optimizer_state: Any


class Losses(NamedTuple):
    """Means over a batch, before weights."""

    policy: Array
    value: Array
    reward: Array
    legality: Array


def optimizer(settings: Settings) -> optax.GradientTransformation:
    """AdamW with clipped gradients and a falling rate; only matrices decay."""
    share = settings.final_rate / settings.learning_rate
    rate = optax.cosine_decay_schedule(settings.learning_rate, settings.horizon, alpha=share)

    def matrices(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, tree)

    return optax.chain(
        optax.clip_by_global_norm(settings.gradient_clip),
        optax.adamw(rate, weight_decay=settings.weight_decay, mask=matrices),
    )


def first_learner(network: Network, settings: Settings) -> Learner:
    """A learner that has learned nothing but what the network knows."""
    state = optimizer(settings).init(eqx.filter(network, eqx.is_inexact_array))
    return Learner(network, network, state)


def resume_learner(network: Network, settings: Settings, steps: int) -> Learner:
    """A learner that goes on after so many steps with nothing but the network: the optimiser knows how
    far the rate has fallen, and has seen no gradients yet."""
    learner = first_learner(network, settings)
    state = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, steps) if leaf.dtype.kind == "i" else leaf, learner.optimizer_state
    )
    return learner._replace(optimizer_state=state)


def unrolled(settings: Settings) -> int:
    """K; the true game has no model to unroll."""
    return settings.unroll if settings.model == "learned" else 0


def loss(network: Network, batch: Batch, settings: Settings) -> tuple[Array, Losses]:
    """Of one batch: the first step counts as much as all unrolled ones together."""
    latent = jax.vmap(network.represent)(batch.seen)
    first = _step_losses(network, latent, _at(batch, 0))
    steps = unrolled(settings)
    if not steps:
        return _total(first, batch.weight, settings), _mean(first)

    def unroll(latent: Array, step: Any) -> tuple[Array, Losses]:
        action, reward, moved, following = step
        latent = _scaled(latent, settings.gradient_scale)
        latent, logits = jax.vmap(network.dynamics)(latent, action)
        target = two_hot(reward, *REWARDS, settings.bins)
        losses = _step_losses(network, latent, following)
        return latent, losses._replace(reward=_cross_entropy(target, logits) * moved)

    later = [_at(batch, step) for step in range(1, steps + 1)]
    following = jax.tree.map(lambda *each: jnp.stack(each), *later)
    moved = batch.inside[:, :-1].astype(jnp.float32)
    along = (batch.actions.T.astype(jnp.int32), batch.rewards.T, moved.T, following)
    _, rest = jax.lax.scan(unroll, latent, along)
    summed = jax.tree.map(lambda each, all_steps: each + all_steps.sum(0) / steps, first, rest)
    return _total(summed, batch.weight, settings), _mean(summed)


def _at(batch: Batch, step: int) -> tuple[Array, ...]:
    """(legal, policy, value, inside) after `step` moves."""
    inside = batch.inside[:, step].astype(jnp.float32)
    return batch.legal[:, step], batch.policy[:, step], batch.value[:, step], inside


def _step_losses(network: Network, latent: Array, target: tuple[Array, ...]) -> Losses:
    """[R] each; none for what is past the end."""
    legal, policy, value, inside = target
    logits, value_logits, legality = jax.vmap(network.predict)(latent)
    # Among legal moves only: which ones are legal is what the legality head has to say.
    of_policy = _cross_entropy(policy, jnp.where(legal, logits, FAR))
    of_value = _cross_entropy(two_hot(value, *VALUES, value_logits.shape[-1]), value_logits)
    of_legality = optax.sigmoid_binary_cross_entropy(legality, legal.astype(jnp.float32)).sum(-1)
    return Losses(of_policy * inside, of_value * inside, jnp.zeros_like(inside), of_legality * inside)


def _cross_entropy(target: Array, logits: Array) -> Array:
    return -(target * jax.nn.log_softmax(logits)).sum(-1)


def _total(losses: Losses, weight: Array, settings: Settings) -> Array:
    parts = (
        losses.policy
        + settings.value_weight * losses.value
        + settings.reward_weight * losses.reward
        + settings.legality_weight * losses.legality
    )
    return (parts * weight).mean()


def _mean(losses: Losses) -> Losses:
    return Losses(*(each.mean() for each in losses))


def _scaled(x: Array, share: float) -> Array:
    """The same number with a smaller gradient."""
    return x * share + jax.lax.stop_gradient(x) * (1 - share)


def improve(learner: Learner, batch: Batch, settings: Settings) -> tuple[Learner, Losses]:
    """One gradient step."""
    (_, losses), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(learner.network, batch, settings)
    parameters = eqx.filter(learner.network, eqx.is_inexact_array)
    change, state = optimizer(settings).update(gradient, learner.optimizer_state, parameters)
    network = eqx.apply_updates(learner.network, change)
    return learner._replace(network=network, optimizer_state=state), losses


@lru_cache(maxsize=8)
def compiled_improve(settings: Settings) -> Any:
    """(learner, batch) -> (learner, losses); kept, so that a second run does not compile again."""

    def step(learner: Learner, batch: Batch) -> tuple[Learner, Losses]:
        return improve(learner, batch, settings)

    return eqx.filter_jit(step)
