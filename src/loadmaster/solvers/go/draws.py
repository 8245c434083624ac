"""Plans of a policy with NumPy alone: the likeliest, and draws with the chance of each decision."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph import GraphOptimization
from loadmaster.solvers.go.actions import Actions
from loadmaster.solvers.go.network import Logits

Rng = np.random.Generator
Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]


class Drawn(NamedTuple):
    """Plans without padding; parts that are not decided are zeros."""

    actions: Actions
    """[plans, …] int8"""
    chance: Actions
    """[plans, …] float32 log-probabilities"""


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


def row_of(actions: Actions, row: int) -> Actions:
    return Actions(*(part[row] for part in actions))


def _own(problem: GraphOptimization, logits: Logits) -> list[tuple[Float32, bool]]:
    """(logits without padding, whether they decide anything) of fusion, device and schedule."""
    n, groups, devices = problem.nodes, problem.groups, problem.devices
    parts: tuple[Any, ...] = (
        np.asarray(logits.fusion)[:n],
        np.asarray(logits.device)[:groups, :devices],
        np.asarray(logits.schedule)[:n],
    )
    wanted = ("placement" if name == "device" else name for name in Logits._fields)
    return [(part, name in problem.tasks) for part, name in zip(parts, wanted, strict=True)]


def _drawn(logits: Float32, decided: bool, rng: Rng, plans: int) -> tuple[Int8, Float32]:
    rows = len(logits)
    actions, chance = np.zeros((plans, rows), np.int8), np.zeros((plans, rows), np.float32)
    if not decided or not rows:
        return actions, chance
    logs = logits - logits.max(axis=1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
    edges = np.exp(logs).cumsum(axis=1, dtype=np.float32)
    # Rounding must not choose what has no chance, so the last column with any is the last one.
    last = (edges < edges[:, -1:]).sum(axis=1)
    at = np.arange(rows)
    for plan in range(plans):  # a plan at a time: [plans, n, 16] need not fit in memory
        level = rng.random(rows, dtype=np.float32) * edges[:, -1]
        chosen = np.minimum((edges <= level[:, None]).sum(axis=1), last)
        actions[plan], chance[plan] = chosen, logs[at, chosen]
    return actions, chance
