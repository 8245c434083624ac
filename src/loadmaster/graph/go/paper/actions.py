"""What the policy chooses: a level per key and a device per group; and vectors from and to them.

Equal fusion levels fuse from the end of the graph, as the fixed pass does, and from `WITHIN` on an op
is fused only if all its readers are on its own device. Equal schedule levels leave the order to the
problem's rule for ties. So a constant policy is already a sensible plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.graph import GraphOptimization
from loadmaster.graph.decoder import leaves
from loadmaster.graph.features import LEVELS
from loadmaster.graph.go.paper.network import Logits

Float64 = npt.NDArray[np.float64]
Int8 = npt.NDArray[np.int8]


WITHIN = 8
"""From this fusion level on, nothing is fused from one device into another."""


class Actions(NamedTuple):
    """int8 arrays [..., n], [..., G], [..., n]; padded ones where the network makes them."""

    fusion: Any
    device: Any
    schedule: Any


def vectors_of(problem: GraphOptimization, actions: Actions) -> Float64:
    """float64[..., V]; what stands beyond the problem's own nodes and groups is padding, and parts
    that are not decided may be empty."""
    n, groups = problem.nodes, problem.groups
    batch = np.shape(actions.device)[:-1]
    vectors = np.empty((*batch, problem.width))
    for name, values in (("device", actions.device), ("schedule", actions.schedule)):
        at = problem.part(name)
        if at.stop > at.start:
            kept = np.asarray(values)[..., : at.stop - at.start]
            vectors[..., at] = kept if name == "device" else kept / (LEVELS - 1)
    at = problem.part("fusion")
    if at.stop > at.start:
        level = np.asarray(actions.fusion)[..., :n].astype(np.int64)
        device = (
            np.asarray(actions.device)[..., :groups]
            if "placement" in problem.tasks
            else (np.broadcast_to(problem.split(problem.vector())[1], (*batch, groups)))
        )
        never = (level < 1) | ((level >= WITHIN) & leaves(problem, device))
        vectors[..., at] = np.where(never, 0.0, (level + np.arange(n) / max(1, n)) / LEVELS)
    return vectors


def padded(actions: Actions, nodes: int, groups: int) -> Actions:
    """With room for padding behind."""
    widths = (nodes, groups, nodes)
    return Actions(
        *(
            np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])])
            for part, width in zip(actions, widths, strict=True)
        )
    )


# Plans of a policy with NumPy alone: the likeliest, and draws with the log-probability of each decision.

Rng = np.random.Generator
Float32 = npt.NDArray[np.float32]


class Drawn(NamedTuple):
    """Plans without padding; parts that are not decided are zeros."""

    actions: Actions
    """[plans, …] int8"""
    log_prob: Actions
    """[plans, …] float32"""


def likeliest(problem: GraphOptimization, logits: Logits) -> Actions:
    """[1, …]"""
    return Actions(
        *(
            part.argmax(axis=1).astype(np.int8)[None] if decided else np.zeros((1, len(part)), np.int8)
            for part, decided in _own(problem, logits)
        )
    )


def draw(problem: GraphOptimization, logits: Logits, rng: Rng, plans: int) -> Drawn:
    """So many plans, every decision for itself."""
    found = [_drawn(part, decided, rng, plans) for part, decided in _own(problem, logits)]
    return Drawn(Actions(*(each[0] for each in found)), Actions(*(each[1] for each in found)))


def joined(*parts: Actions) -> Actions:
    """The plans of all of them, one after another."""
    return Actions(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))


def _own(problem: GraphOptimization, logits: Logits) -> list[tuple[Float32, bool]]:
    """(logits without padding, whether they decide anything) of fusion, device and schedule."""
    n, groups, devices = problem.nodes, problem.groups, problem.devices
    parts: tuple[Any, ...] = (
        np.asarray(logits.fusion)[:n],
        np.asarray(logits.device)[:groups, :devices],
        np.asarray(logits.schedule)[:n],
    )
    tasks = ("placement" if name == "device" else name for name in Logits._fields)
    return [(part, task in problem.tasks) for part, task in zip(parts, tasks, strict=True)]


def _drawn(logits: Float32, decided: bool, rng: Rng, plans: int) -> tuple[Int8, Float32]:
    rows = len(logits)
    actions, log_prob = np.zeros((plans, rows), np.int8), np.zeros((plans, rows), np.float32)
    if not decided or not rows:
        return actions, log_prob
    logs = logits - logits.max(axis=1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
    edges = np.exp(logs).cumsum(axis=1, dtype=np.float32)
    # Rounding must not choose what has no probability, so the last column with any is the last one.
    last = (edges < edges[:, -1:]).sum(axis=1)
    at = np.arange(rows)
    for plan in range(plans):  # a plan at a time: [plans, n, 16] need not fit in memory
        level = rng.random(rows, dtype=np.float32) * edges[:, -1]
        chosen = np.minimum((edges <= level[:, None]).sum(axis=1), last)
        actions[plan], log_prob[plan] = chosen, logs[at, chosen]
    return actions, log_prob
