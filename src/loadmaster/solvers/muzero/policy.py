"""Trained networks of mallocMuZero as files, and which one a run begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.solvers import policies
from loadmaster.solvers.muzero.network import Network
from loadmaster.solvers.muzero.settings import NETWORK, Settings
from loadmaster.solvers.policies import PRETRAINED, policy_arrays, save_policy

__all__ = ["load_policy", "policy_arrays", "save_small", "start_of"]
AGENT = "muzero"
DEFAULT = "suite"
"""The packaged network that runs begin with."""
AUTO, SCRATCH = "auto", "scratch"


def load_policy(name: str | Path, like: Network) -> Network:
    """A trained network of the same shapes as `like`."""
    network: Network = policies.load_policy(
        name,
        like,
        AGENT,
        "it was trained with {network}",
        f"give the same {', '.join(NETWORK[:-1])} and {NETWORK[-1]} with --set",
    )
    return network


def save_small(
    path: Path, policy: dict[str, npt.NDArray[Any]], about: dict[str, Any], settings: Settings
) -> None:
    """Half precision: all that play needs, and half the size."""
    shapes = ", ".join(f"{name} = {getattr(settings, name)}" for name in NETWORK)
    small = {name: array.astype(np.float16) for name, array in policy.items()}
    save_policy(path, small, {"network": shapes, **about})


def start_of(init: str, settings: Settings) -> str | None:
    """What `init` stands for: a file or 'pretrained:NAME'; 'auto' is the packaged network where it
    fits, 'scratch' is nothing."""
    if init == SCRATCH:
        return None
    if init != AUTO:
        return init
    fits = settings.has_default_network and DEFAULT in policies.pretrained_names(AGENT)
    return PRETRAINED + DEFAULT if fits else None
