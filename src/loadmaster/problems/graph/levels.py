"""Vectors in levels: what an agent with sixteen choices per key hands in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph.problem import GraphOptimization

LEVELS = 16
"""Level l is the key l / 15."""


def vector_of_levels(
    problem: GraphOptimization, action: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.float64]:
    """float64[..., V] of whole numbers [..., V]: levels become keys, devices stay."""
    vector = np.asarray(action) / (LEVELS - 1)
    at = problem.part("device")
    vector[..., at] = np.asarray(action)[..., at]
    return vector
