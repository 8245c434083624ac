"""Networks, games and made-up models that are small enough for tests of mallocMuZero."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from loadmaster.machine import load_machine
from loadmaster.malloc_game.muzero.paper import Settings
from loadmaster.malloc_game.muzero.paper.network import REWARDS, VALUES, two_hot
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.zoo.synthetic import synthetic

TINY: dict[str, Any] = {
    "width": 16,
    "channels": 4,
    "grid_blocks": 1,
    "dynamics_blocks": 1,
    "prediction_blocks": 1,
    "bins": 11,
}
BINS = 101
DEPTH = 3
NODES = sum(3**depth for depth in range(DEPTH + 2))
"""Of the tree of three moves, and one more for what should not be looked at."""


def tiny(**switches: Any) -> Settings:
    return Settings(**(TINY | switches))


def made_up(number: int = 0) -> MallocGame:
    """One of the synthetic games; number 0 has 14 moves, and the greedy ones are not best."""
    return MallocGame(synthetic(number), load_machine("tpu-v4i:cmem=1MiB"), starts="hidden")


def random_positions(problem: MallocGame, count: int, seed: int) -> tuple[Any, ...]:
    """(moves [B, N], how many are played [B], observations, masks) somewhere in random games."""
    rng = np.random.default_rng(seed)
    wanted = rng.integers(0, 3, (count, problem.moves)).astype(np.int8)
    moves = problem.play(wanted).actions
    at = rng.integers(0, problem.moves, count).astype(np.int32)
    seen = problem.observe_at(moves, at)
    return moves, at, seen, seen.pop("mask")


class Tree(eqx.Module):  # type: ignore[misc]
    """A model that knows its game by heart. The nodes of a tree of three moves are numbered: the
    children of `n` are 3n + 1, 3n + 2, 3n + 3. A latent is a number; `globals` has the root's."""

    rewards: jax.Array
    """[NODES] of the move that leads to each node"""
    values: jax.Array
    """[NODES]"""
    policy: jax.Array
    """[NODES, 3]"""
    legality: jax.Array
    """[NODES, 3]"""

    def represent(self, observation: Any) -> jax.Array:
        return observation["globals"][:1]

    def dynamics(self, latent: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        child = jnp.minimum(3 * latent.astype(int) + 1 + action, NODES - 1)
        return child.astype(jnp.float32), _logits(self.rewards[child[0]], REWARDS)

    def predict(self, latent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        node = latent[0].astype(int)
        return self.policy[node], _logits(self.values[node], VALUES), self.legality[node]


def tree(rewards: dict[int, float], **openings: Any) -> Tree:
    """A tree with rewards by node; all else is 0, and every move is thought legal."""
    given = np.zeros(NODES, np.float32)
    for node, reward in rewards.items():
        given[node] = reward
    zeros = jnp.zeros((NODES, 3))
    rest = {"values": jnp.zeros(NODES), "policy": zeros, "legality": zeros + 20} | openings
    return Tree(rewards=jnp.asarray(given), **rest)


def at_nodes(*nodes: int) -> dict[str, Any]:
    """Observations of a tree's nodes."""
    seen = np.zeros((len(nodes), 8), np.float32)
    seen[:, 0] = nodes
    return {"globals": seen}


def _logits(x: jax.Array, ends: tuple[float, float]) -> jax.Array:
    return jnp.log(jnp.maximum(two_hot(x, *ends, BINS), 1e-30))
