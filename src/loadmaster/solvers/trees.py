"""A tree of arrays by name, and back: what a checkpoint holds of networks and optimisers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loadmaster.solvers.solver import State


def arrays_of(tree: Any) -> State:
    """Its leaves, by number."""
    return {f"leaf{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def restored(like: Any, state: State) -> Any:
    """The tree that `arrays_of` saw, in the shape of `like`."""
    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(tree, [jnp.asarray(state[f"leaf{number}"]) for number in range(len(leaves))])
