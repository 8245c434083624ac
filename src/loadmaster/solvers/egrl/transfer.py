"""Trained policies of EGRL: loaded, and run on a problem that they have never seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from loadmaster.problems.mapping import Mapping
from loadmaster.solvers import policies
from loadmaster.solvers.egrl.network import Actor
from loadmaster.solvers.egrl.settings import Settings
from loadmaster.solvers.policies import PRETRAINED, BadPolicy, policy_arrays, save_policy

__all__ = [
    "PRETRAINED",
    "BadPolicy",
    "load_policy",
    "policy_arrays",
    "pretrained_names",
    "read_policy",
    "save_policy",
    "zero_shot",
]
AGENT = "egrl"


def read_policy(name: str | Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """(parameters by name, what made it) of 'pretrained:NAME' or a file."""
    return policies.read_policy(name, AGENT)


def load_policy(name: str | Path, like: Actor) -> Actor:
    """A policy as an actor of the same shapes as `like`."""
    actor: Actor = policies.load_policy(
        name,
        like,
        AGENT,
        "it was trained for {memories} memories",
        "use it with a machine of as many memories, and the same width, heads and depth",
    )
    return actor


def zero_shot(policy: str | Path, problem: Mapping, settings: Settings | None = None) -> npt.NDArray[np.int8]:
    """int8[2N]: one greedy forward pass of a policy on a problem, nothing learned."""
    from loadmaster.solvers.egrl.graph import make_graph
    from loadmaster.solvers.egrl.session import decide

    like = Actor(len(problem.memories), settings or Settings(), jax.random.key(0))
    actor = load_policy(policy, like)
    found, _ = jax.jit(decide)(actor, make_graph(problem))
    return np.where(problem.live, np.asarray(found), np.int8(problem.slowest)).astype(np.int8)


def pretrained_names() -> list[str]:
    """The policies that come with the package."""
    return policies.pretrained_names(AGENT)
