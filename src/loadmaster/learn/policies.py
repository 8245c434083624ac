"""Trained policies as files: parameters by name and what made them, as plain arrays in one npz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import json_entry, read_npz
from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing

PRETRAINED = "pretrained:"
FORMAT = 1
Policy = Mapping[str, npt.NDArray[Any]]


class BadPolicy(LoadmasterError):
    """A policy file that can't be used."""


def policy_arrays(tree: Any) -> dict[str, npt.NDArray[Any]]:
    """The parameters of a network by name, such as 'body.first.weight'."""
    import jax

    return {_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def save_policy(path: Path, policy: Policy, about: Mapping[str, Any]) -> None:
    """Write a policy with what made it (command, seed, model, machine, versions) as one npz."""
    header = json.dumps({"loadmaster_policy": FORMAT, **about}).encode()
    arrays: dict[str, Any] = {f"policy.{name}": value for name, value in policy.items()}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, about=np.frombuffer(header, dtype=np.uint8), **arrays)


def read_policy(name: str | Path, agent: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """(parameters by name, what made it) of 'pretrained:NAME' or a file; `agent` is the package of
    solvers that the policy is for."""

    def refuse(reason: str) -> BadPolicy:
        return BadPolicy(
            f"'{name}' is no policy: {reason}",
            object=str(name),
            remedy=f"give a file of 'loadmaster train {agent}'",
        )

    stored = read_npz(_source(str(name), agent), refuse)
    about = json_entry(stored, "about", refuse)
    arrays = {key.removeprefix("policy."): stored[key] for key in stored if key != "about"}
    if isinstance(about, dict) and "loadmaster_policy" not in about and {"options", "seed"} <= about.keys():
        raise BadPolicy(
            f"'{name}' is the state of a training, not a policy",
            object=str(name),
            remedy="give the policy beside it, without '.state' in its name, or go on with 'train --resume'",
        )
    if not isinstance(about, dict) or about.get("loadmaster_policy") != FORMAT:
        raise BadPolicy(
            f"'{name}' is no policy of format {FORMAT}",
            object=str(name),
            remedy="train it again with this version",
        )
    if about.get("agent", agent) != agent:
        raise BadPolicy(
            f"'{name}' is a policy of {about['agent']}, not of {agent}",
            object=str(name),
            number=str(about["agent"]),
            remedy=f"give a file of 'loadmaster train {agent}'",
        )
    return arrays, about


def load_policy(name: str | Path, like: Any, agent: str, made_for: str, remedy: str) -> Any:
    """A policy as a network of the same shapes as `like`. `made_for` (with what made the policy in
    braces) and `remedy` tell what to do if the shapes are others."""
    import jax
    import jax.numpy as jnp

    arrays, about = read_policy(name, agent)
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        stored = arrays.get(_name(path))
        if stored is not None and not _usable(stored):
            raise BadPolicy(
                f"policy '{name}' holds no finite numbers for '{_name(path)}'",
                object=str(name),
                remedy="train it again",
            )
        if stored is None or stored.shape != leaf.shape:
            has = "nothing" if stored is None else f"{list(stored.shape)}"
            raise BadPolicy(
                f"policy '{name}' has {has} for '{_name(path)}', where {list(leaf.shape)} is needed "
                f"({made_for.format_map(_Known(about))})",
                object=str(name),
                number=has,
                remedy=remedy,
            )
        leaves.append(jnp.asarray(stored, dtype=leaf.dtype))
    return jax.tree_util.tree_unflatten(tree, leaves)


def fill_policy(name: str, like: Any, arrays: Policy) -> Any:
    """The tree `like`, of tuples and named tuples, with a policy's arrays; needs NumPy alone."""
    return _filled(name, like, arrays, "")


def _filled(name: str, like: Any, arrays: Policy, path: str) -> Any:
    if isinstance(like, tuple):
        fields = getattr(like, "_fields", range(len(like)))
        parts = [
            _filled(name, each, arrays, f"{path}.{field}" if path else str(field))
            for field, each in zip(fields, like, strict=True)
        ]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    stored = arrays.get(path)
    if stored is None or stored.shape != like.shape or not np.isfinite(stored).all():
        raise BadPolicy(
            f"policy '{name}' has no fitting '{path}'",
            object=name,
            number=str(like.shape),
            remedy="train it again with this version",
        )
    return stored.astype(np.float32)


_PACKAGES = {
    "egrl": "loadmaster.mapping.egrl",
    "muzero": "loadmaster.malloc_game.muzero",
    "go": "loadmaster.graph.go",
}
"""Agent -> the package that its policies come with."""


class _Known(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _usable(stored: npt.NDArray[Any]) -> bool:
    return stored.dtype.kind == "f" and bool(np.isfinite(stored).all())


def pretrained_names(agent: str) -> list[str]:
    """The policies that come with the package."""
    folder = _folder(agent)
    if not folder.is_dir():
        return []
    return sorted(file.name.removesuffix(".npz") for file in folder.iterdir() if file.name.endswith(".npz"))


def _folder(agent: str) -> Any:
    return resources.files(_PACKAGES[agent]) / "pretrained"


def _source(name: str, agent: str) -> Path | bytes:
    if not name.startswith(PRETRAINED):
        return Path(name)
    known, chosen = pretrained_names(agent), name.removeprefix(PRETRAINED)
    if chosen not in known:
        raise BadPolicy(
            f"there is no pretrained policy '{chosen}'",
            object=name,
            remedy=f"use {', '.join(known)}" if known else "give a file",
        )
    return bytes((_folder(agent) / f"{chosen}.npz").read_bytes())


def _name(path: Any) -> str:
    return ".".join(str(getattr(part, "name", getattr(part, "idx", part))) for part in path)
