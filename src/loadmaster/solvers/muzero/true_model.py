"""Search in the game itself (AlphaZero): a reference for what the learned model loses.

A node of the tree is the moves that lead to it from the root. To look at one, the native game plays
from its start: nothing is kept between calls, so that a compiled search may call it at any time.
Masks hold in the whole tree, and `dynamics` is not used.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mctx
import numpy as np
from jax import Array

from loadmaster.problems.malloc_game.games import SHAPES
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.muzero.network import Network, Observation
from loadmaster.solvers.muzero.search import Found, Model, Root, among_legal, look, search_from, value_of
from loadmaster.solvers.muzero.settings import Settings

DEEPEST = 32
"""Moves that a search looks ahead at most; a tree of some hundred nodes is rarely as deep."""
RETURN = 1
"""Where `globals` has what all moves so far earned."""


class TrueSearch:
    """As `Search`, for games of one problem; `played` [B, N] has the moves that led to each
    position, and anything after them."""

    def __init__(self, settings: Settings, problem: MallocGame) -> None:
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
        gumbel_scale: float = 1.0,
        played: Any = None,
    ) -> Found:
        assert played is not None, "the game can't go on from a position it does not know"
        found: Found = _search(
            network,
            key,
            observations,
            moves_left,
            masks,
            jnp.asarray(played, jnp.int8),
            jnp.float32(gumbel_scale),
            simulations,
            self.settings,
            self.problem,
        )
        return found


@eqx.filter_jit  # type: ignore[untyped-decorator]
def _search(
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
