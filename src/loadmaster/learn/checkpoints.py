"""What training goes on from: trees of arrays by name, and the file that holds them.

Not `eqx.tree_serialise_leaves`: it reads `.npy` blocks one after another and believes the sizes that they
claim, knows no names, and could not tell a file of another agent from a broken one. State files come from
anywhere, so they are npz without pickle, read by `loadmaster.arrays` as every other file is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.arrays import json_entry, read_npz
from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.search.solver import State

_MOST_STATE = 2**33
"""Bytes of a state file, also unpacked: games are full of zeros."""


class BadState(LoadmasterError):
    """A file that training can't go on from."""


def tree_arrays(tree: Any) -> State:
    """The arrays of a tree as 'leaf0', 'leaf1', … in JAX's order; other leaves are left out."""
    import jax

    arrays = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]
    return {f"leaf{number}": np.asarray(leaf) for number, leaf in enumerate(arrays)}


def restore_tree(like: Any, state: State) -> Any:
    """The tree that `tree_arrays` saw; `like` gives its shape, and the leaves that are no arrays."""
    import jax
    import jax.numpy as jnp

    leaves, tree = jax.tree.flatten(like)
    numbers = iter(range(len(leaves)))
    restored = [
        jnp.asarray(state[f"leaf{next(numbers)}"]) if hasattr(leaf, "shape") else leaf for leaf in leaves
    ]
    return jax.tree.unflatten(tree, restored)


def state_path(out: Path) -> Path:
    """Where the state of a training is kept that writes its policy to `out`."""
    return out.with_suffix(".state.npz")


def write_state(path: Path, state: State, about: Mapping[str, Any], *, compress: bool = True) -> None:
    """Write arrays by name, and what made them, as one npz."""
    header = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    arrays: dict[str, Any] = {f"array.{name}": array for name, array in state.items()}
    with replacing(path) as temporary, temporary.open("wb") as file:
        (np.savez_compressed if compress else np.savez)(file, about=header, **arrays)


def read_state(path: Path, agent: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays by name, what made them) of a file of `write_state`, by this agent or by one that it does not say."""

    def refuse(reason: str) -> BadState:
        return BadState(
            f"'{path}' can't be resumed: {reason}",
            object=str(path),
            remedy=f"give the .state.npz beside a policy of 'train {agent}'",
        )

    stored = read_npz(path, refuse, most_file=_MOST_STATE, most_bytes=_MOST_STATE)
    about = json_entry(stored, "about", refuse)
    if not isinstance(about, dict):
        raise refuse("it does not say what made it")
    if (whose := about.get("agent", agent)) != agent:
        raise refuse(f"it is of 'train {str(whose)[:80]}'")
    return {name.removeprefix("array."): stored[name] for name in stored if name != "about"}, about


def check_same(
    path: Path, about: Mapping[str, Any], options: Mapping[str, Any], seed: int, agent: str
) -> None:
    """Raise where a state was made with other options, or with another seed: it can't be gone on with then."""
    known = about.get("options")
    if not isinstance(known, dict):
        raise BadState(
            f"'{path}' can't be resumed: it does not say with which options it was trained",
            object=str(path),
            remedy=f"give the .state.npz beside a policy of 'train {agent}'",
        )
    theirs, ours = {**known, "seed": about.get("seed")}, {**options, "seed": seed}
    if theirs != ours:
        other = (
            f"{name} = {theirs.get(name)}" for name in theirs | ours if theirs.get(name) != ours.get(name)
        )
        raise LoadmasterError(
            f"'{path}' was trained with other options, or another seed",
            object=str(path),
            remedy=f"give the same ones again ({', '.join(other)}), or start from its policy with --init",
        )
