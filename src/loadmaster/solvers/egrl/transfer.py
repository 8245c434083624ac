"""Trained policies as files: saved, loaded, and run on a problem that they have never seen."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping as Dict
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.problems.mapping import Mapping
from loadmaster.solvers.egrl.network import Actor
from loadmaster.solvers.egrl.settings import Settings

PRETRAINED = "pretrained:"
FORMAT = 1
Policy = Dict[str, npt.NDArray[Any]]


class BadPolicy(LoadmasterError):
    """A policy file that can't be used."""


def policy_arrays(actor: Actor) -> dict[str, npt.NDArray[Any]]:
    """The parameters by name, such as 'body.first.weight'."""
    return {
        _name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(actor)[0]
    }


def save_policy(path: Path, policy: Policy, about: Dict[str, Any]) -> None:
    """Write a policy with what made it (command, seed, model, machine, versions) as one npz."""
    header = json.dumps({"loadmaster_policy": FORMAT, **about}).encode()
    arrays: dict[str, Any] = {f"policy.{name}": value for name, value in policy.items()}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, about=np.frombuffer(header, dtype=np.uint8), **arrays)


def read_policy(name: str | Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """(parameters by name, what made it) of 'pretrained:NAME' or a file."""
    data = _bytes(str(name))
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            arrays = {
                key.removeprefix("policy."): stored[key] for key in stored.files if key != "about"
            }
    except Exception as error:  # NumPy and zipfile raise many kinds
        raise BadPolicy(f"'{name}' is no policy: {error}", object=str(name),
                        remedy="give a file of 'loadmaster train egrl'") from None  # fmt: skip
    if not isinstance(about, dict) or about.get("loadmaster_policy") != FORMAT:
        raise BadPolicy(f"'{name}' is no policy of format {FORMAT}", object=str(name),
                        remedy="train it again with this version")  # fmt: skip
    return arrays, about


def load_policy(name: str | Path, like: Actor) -> Actor:
    """A policy as an actor of the same shapes as `like`."""
    arrays, about = read_policy(name)
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        stored = arrays.get(_name(path))
        if stored is not None and not _usable(stored):
            raise BadPolicy(f"policy '{name}' holds no finite numbers for '{_name(path)}'", object=str(name),
                            remedy="train it again")  # fmt: skip
        if stored is None or stored.shape != leaf.shape:
            has = "nothing" if stored is None else f"{list(stored.shape)}"
            raise BadPolicy(
                f"policy '{name}' has {has} for '{_name(path)}', where {list(leaf.shape)} is needed (it was "
                f"trained for {about.get('memories', '?')} memories)", object=str(name), number=has,
                remedy="use it with a machine of as many memories, and the same width, heads and depth",
            )  # fmt: skip
        leaves.append(jnp.asarray(stored, dtype=leaf.dtype))
    actor: Actor = jax.tree_util.tree_unflatten(tree, leaves)
    return actor


def _usable(stored: npt.NDArray[Any]) -> bool:
    return stored.dtype.kind == "f" and bool(np.isfinite(stored).all())


def zero_shot(
    policy: str | Path, problem: Mapping, settings: Settings | None = None
) -> npt.NDArray[np.int8]:
    """int8[2N]: one greedy forward pass of a policy on a problem, nothing learned."""
    from loadmaster.solvers.egrl.graph import make_graph
    from loadmaster.solvers.egrl.session import decide

    like = Actor(len(problem.memories), settings or Settings(), jax.random.key(0))
    actor = load_policy(policy, like)
    found, _ = jax.jit(decide)(actor, make_graph(problem))
    return np.where(problem.live, np.asarray(found), np.int8(problem.slowest)).astype(np.int8)


def pretrained_names() -> list[str]:
    """The policies that come with the package."""
    return sorted(
        file.name.removesuffix(".npz") for file in _folder().iterdir() if file.name.endswith(".npz")
    )


def _folder() -> Any:
    return resources.files("loadmaster.solvers.egrl") / "pretrained"


def _bytes(name: str) -> bytes:
    if name.startswith(PRETRAINED):
        known = pretrained_names()
        wanted = name.removeprefix(PRETRAINED)
        if wanted not in known:
            raise BadPolicy(
                f"there is no pretrained policy '{wanted}'",
                object=name,
                remedy=f"use {', '.join(known)}",
            )
        return bytes((_folder() / f"{wanted}.npz").read_bytes())
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise BadPolicy(f"policy {name!r} can't be read: {why}", object=name,
                        remedy=f"give a file, or {PRETRAINED}NAME") from None  # fmt: skip


def _name(path: Any) -> str:
    return ".".join(str(getattr(part, "name", getattr(part, "idx", part))) for part in path)
