"""Search: what a look ahead in the learned model makes of a batch of positions.

The searches themselves are mctx's, Gumbel MuZero by default and plain MuZero as an option. Here is
what they search: positions as latents beside the number of moves left, which is known, so that the
end of a game need not be learned. The true mask of legal moves holds at the root alone; below it
the network's own belief about legality stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mctx
import numpy as np
from jax import Array

from loadmaster.malloc_game.games import SHAPES
from loadmaster.malloc_game.muzero.paper import Settings
from loadmaster.malloc_game.muzero.paper.network import (
    FAR,
    REWARDS,
    VALUES,
    Network,
    Observation,
    expectation,
)
from loadmaster.malloc_game.problem import MallocGame

LEAST_LEGALITY = -8.0
"""The most, in logits, that a move is held back for being thought illegal: the belief may be wrong."""


class Found(NamedTuple):
    """What a search found; B positions."""

    action: Array
    """[B] the move to play; 0 in a game that is over"""
    weights: Array
    """[B, 3] how likely the policy should make each move"""
    value: Array
    """[B] what is still to be earned"""
    prior: Array
    """[B, 3] how likely the policy makes each move without search"""


class Root(NamedTuple):
    """B positions where searches begin."""

    logits: Array
    """[B, 3] of legal moves; FAR where illegal"""
    value: Array
    """[B]"""
    embedding: Any
    """What the model goes on from; leaves [B, ...]"""


Model = Callable[[Any, Array, Array, Any], tuple[Any, Any]]
"""(network, key, action [B], embedding) -> (mctx.RecurrentFnOutput, embedding)"""


class Search:
    """Searches by the rules of `settings`; compiled once per number of simulations and positions. With a
    `problem`, games of it are searched in the game itself."""

    def __init__(self, settings: Settings, problem: MallocGame | None = None) -> None:
        self.settings, self.problem = settings, problem

    def __call__(
        self,
        network: Network,
        key: Array,
        observations: Observation,
        moves_left: Array,
        masks: Array,
        *,
        simulations: int,
        gumbel_scale: Any = 1.0,
        played: Any = None,
    ) -> Found:
        """For observations [B, ...], moves left [B] (0: the game is over) and masks [B, 3] of legal
        moves. `gumbel_scale` is how random the choice of a move is, 0: not at all. `played` [B, N] has the
        moves that led to each position, and anything after them; only the game itself needs it."""
        noise = jnp.float32(gumbel_scale)
        position = (network, key, observations, moves_left, masks)
        found: Found
        if self.problem is None:
            found = _search(*position, noise, simulations, self.settings)
        else:
            assert played is not None, "the game can't go on from a position it does not know"
            moves = jnp.asarray(played, jnp.int8)
            found = _search_true_model(*position, moves, noise, simulations, self.settings, self.problem)
        return found


@eqx.filter_jit  # type: ignore[untyped-decorator]
def _search(
    network: Network,
    key: Array,
    observations: Observation,
    moves_left: Array,
    masks: Array,
    gumbel_scale: Array,
    simulations: int,
    settings: Settings,
) -> Found:
    root = look(network, observations, moves_left, masks)
    model = partial(learned_model, discount=settings.discount)
    return search_from(root, model, network, key, masks, gumbel_scale, simulations, settings)


def look(network: Network, observations: Observation, moves_left: Array, masks: Array) -> Root:
    """The roots of searches in the learned model."""
    latent = jax.vmap(network.represent)(observations)
    policy, value, _ = jax.vmap(network.predict)(latent)
    left = jnp.asarray(moves_left, jnp.int32)
    return Root(among_legal(policy, masks), value_of(value, left), (latent, left))


def learned_model(
    network: Network, key: Array, action: Array, embedding: Any, *, discount: float
) -> tuple[Any, Any]:
    """One move further, as the network believes that the game goes on."""
    latent, left = embedding
    latent, reward = jax.vmap(network.dynamics)(latent, action)
    policy, value, legality = jax.vmap(network.predict)(latent)
    believed = jnp.maximum(jax.nn.log_sigmoid(legality), LEAST_LEGALITY)
    after = jnp.maximum(left - 1, 0)
    output = mctx.RecurrentFnOutput(
        reward=jnp.where(left > 0, expectation(reward, *REWARDS), 0),
        discount=discount * (after > 0),
        prior_logits=policy + believed,
        value=value_of(value, after),
    )
    return output, (latent, after)


def search_from(
    root: Root,
    model: Model,
    network: Any,
    key: Array,
    masks: Array,
    gumbel_scale: Array,
    simulations: int,
    settings: Settings,
    max_depth: int | None = None,
) -> Found:
    """The moves that `simulations` looks ahead in `model` speak for; without any, the policy's."""
    prior = jax.nn.softmax(root.logits)
    if simulations == 0:
        noise = gumbel_scale * jax.random.gumbel(key, root.logits.shape)
        action = jnp.argmax(jnp.where(masks.astype(bool), root.logits + noise, -jnp.inf), axis=-1)
        return Found(action.astype(jnp.int32), prior, root.value, prior)
    start = mctx.RootFnOutput(prior_logits=root.logits, value=root.value, embedding=root.embedding)
    policy = _gumbel if settings.policy == "gumbel" else _puct
    found = policy(settings, gumbel_scale)(
        params=network,
        rng_key=key,
        root=start,
        recurrent_fn=model,
        num_simulations=simulations,
        invalid_actions=~masks.astype(bool),
        max_depth=max_depth,
    )
    return Found(found.action, found.action_weights, found.search_tree.summary().value, prior)


def _gumbel(settings: Settings, gumbel_scale: Array) -> Callable[..., Any]:
    # Stretched to [0, 1], Q of moves that are worth the same are all noise: a large `value_scale` makes
    # near certainties of it, and a small one of 0.02 moves the policy by a logit or two.
    qtransform = partial(
        mctx.qtransform_completed_by_mix_value,
        value_scale=settings.value_scale,
        maxvisit_init=settings.maxvisit_init,
        rescale_values=settings.rescale_values,
    )
    return partial(
        mctx.gumbel_muzero_policy,
        qtransform=qtransform,
        gumbel_scale=gumbel_scale,
        max_num_considered_actions=settings.considered,
    )


def _puct(settings: Settings, gumbel_scale: Array) -> Callable[..., Any]:
    return partial(
        mctx.muzero_policy,
        temperature=gumbel_scale,
        dirichlet_alpha=settings.dirichlet_alpha,
        dirichlet_fraction=settings.dirichlet_fraction * jnp.minimum(gumbel_scale, 1),
        pb_c_init=settings.pb_c_init,
        pb_c_base=settings.pb_c_base,
    )


def among_legal(logits: Array, masks: Array) -> Array:
    """Logits of the legal moves; where none is legal, all are alike."""
    return jnp.where(masks.astype(bool), logits, FAR)


def value_of(logits: Array, left: Array) -> Array:
    """What value logits [B, bins] say, and nothing where no moves are left."""
    return jnp.where(left > 0, expectation(logits, *VALUES), 0)


# Search in the game itself (AlphaZero): a reference for what the learned model loses.
#
# A node of the tree is the moves that lead to it from the root. To look at one, the native game plays
# from its start: nothing is kept between calls, so that a compiled search may call it at any time.
# Masks hold in the whole tree, and `dynamics` is not used.

DEEPEST = 32
"""Moves that a search looks ahead at most; a tree of some hundred nodes is rarely as deep."""
RETURN = 1
"""Where `globals` has what all moves so far earned."""


@eqx.filter_jit  # type: ignore[untyped-decorator]
def _search_true_model(
    network: Network,
    key: Array,
    observations: Observation,
    moves_left: Array,
    masks: Array,
    played: Array,
    gumbel_scale: Array,
    simulations: int,
    settings: Settings,
    problem: MallocGame,
) -> Found:
    seen = look(network, observations, moves_left, masks)
    left = jnp.asarray(moves_left, jnp.int32)
    path = jnp.zeros((len(left), DEEPEST), jnp.int8)
    depth = jnp.zeros(len(left), jnp.int32)
    earned = jnp.asarray(observations["globals"])[:, RETURN]
    root = Root(seen.logits, seen.value, (path, depth, earned))
    model = true_model(problem, played, problem.moves - left, settings.discount)
    return search_from(
        root,
        model,
        network,
        key,
        masks,
        gumbel_scale,
        simulations,
        settings,
        min(DEEPEST, max(1, simulations)),
    )


def true_model(problem: MallocGame, played: Array, count: Array, discount: float) -> Model:
    """The game as a model, for roots after the first `count` [B] moves of `played` [B, N]."""
    games = len(count)
    shapes = {name: jax.ShapeDtypeStruct((games, *shape), kind) for name, (shape, kind) in SHAPES.items()}

    def observe(played: Any, count: Any, path: Any, depth: Any) -> dict[str, Any]:
        moves, at = joined(np.array(played), np.array(count), np.array(path), np.array(depth))
        return problem.observe_at(moves, at)

    def model(network: Network, key: Array, action: Array, embedding: Any) -> tuple[Any, Any]:
        path, depth, before = embedding
        path = path.at[jnp.arange(games), depth].set(action.astype(jnp.int8))
        depth = depth + 1
        seen = dict(jax.pure_callback(observe, shapes, played, count, path, depth))
        masks, earned = seen.pop("mask"), seen["globals"][:, RETURN]
        left = jnp.maximum(played.shape[1] - count - depth, 0)
        policy, value, _ = jax.vmap(network.predict)(jax.vmap(network.represent)(seen))
        output = mctx.RecurrentFnOutput(
            reward=(earned - before) * played.shape[1],
            discount=discount * (left > 0),
            prior_logits=among_legal(policy, masks),
            value=value_of(value, left),
        )
        return output, (path, depth, earned)

    return model


def joined(played: Any, count: Any, path: Any, depth: Any) -> tuple[Any, Any]:
    """(moves [B, N], how many of them to play [B]): each root's own, then those of its path. What a
    path has beyond the end of the game is left out."""
    games, moves = played.shape
    longer = np.concatenate([played, np.zeros_like(path)], axis=1)
    columns = count[:, None] + np.arange(path.shape[1])
    longer[np.arange(games)[:, None], columns] = path
    return np.ascontiguousarray(longer[:, :moves]), np.minimum(count + depth, moves).astype(np.int32)
