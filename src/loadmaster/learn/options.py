"""How the options of a learned agent become its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.search.solver import State

Settings = TypeVar("Settings")


def settings_from(
    kind: type[Settings], solver: str, options: Mapping[str, Any], fixed: Mapping[str, Any]
) -> Settings:
    """Settings, a frozen dataclass, from what a user gave; `fixed` ones make the solver what it is."""
    known = [field.name for field in fields(kind) if field.name not in fixed]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise LoadmasterError(
                f"solver '{solver}' has no option '{name}'", object=name, remedy=f"use {', '.join(known)}"
            )
    try:
        return kind(**{**options, **fixed})
    except (ValueError, TypeError) as error:
        raise LoadmasterError(str(error), object=solver, remedy="give another value") from None


def free_settings(settings: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not fixed: they make the solver again for a run that is resumed."""
    return {name: value for name, value in asdict(settings).items() if name not in fixed}


# ----------------------------------------------------------------------------
# A tree of arrays by name, and back: what a checkpoint holds of networks and optimisers.


def arrays_of(tree: Any) -> State:
    """Its leaves, by number."""
    return {f"leaf{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def restored(like: Any, state: State) -> Any:
    """The tree that `arrays_of` saw, in the shape of `like`."""
    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(tree, [jnp.asarray(state[f"leaf{number}"]) for number in range(len(leaves))])
