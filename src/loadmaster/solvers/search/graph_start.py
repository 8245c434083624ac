"""What the searches of GraphOptimization share: where they begin, and random vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.problems.graph import GraphOptimization
from loadmaster.solvers.heuristic.graph_pipeline import seeds
from loadmaster.solvers.solver import Meter

Float64 = npt.NDArray[np.float64]
Rng = np.random.Generator

STARTS = ("base", "seeds", "random")
"""The base plan, the constructive solvers' plans beside it, or nothing."""


SEED_SHARE = 0.3
"""Of the time, at most, for making seeds."""


def check_start(start: str, known: tuple[str, ...] = STARTS) -> str:
    """The name, if it is one."""
    if start not in known:
        raise LoadmasterError(
            f"there is no start '{start}'", object="start", remedy=f"use one of {', '.join(known)}"
        )
    return start


def graph_of(meter: Meter) -> GraphOptimization:
    problem = meter.problem
    assert isinstance(problem, GraphOptimization)
    return problem


def starts(meter: Meter, start: str) -> list[Float64]:
    """Vectors to begin with: the base plan as it is and with the order left to the rule for ties,
    and, of 'seeds', what constructive solvers make in a part of the time."""
    problem, left = graph_of(meter), meter.seconds_left
    seconds = None if left is None else SEED_SHARE * left
    if start == "random":
        return []
    vectors = [problem.vector()]
    if "schedule" in problem.tasks:
        vectors.append(problem.vector(schedule=np.zeros(problem.nodes)))
    if start == "seeds":
        vectors += [vector for _, vector in seeds(problem, seconds)]
    return vectors


def random_vectors(problem: GraphOptimization, rng: Rng, count: int) -> Float64:
    """[count, V] uniform keys and devices."""
    vectors = rng.random((count, problem.width))
    at = problem.part("device")
    vectors[:, at] = np.floor(vectors[:, at] * problem.devices)
    return vectors


def batch_size(problem: GraphOptimization, most: int) -> int:
    """So many vectors that a batch takes well below a second; the same on every machine."""
    return int(np.clip(300_000 // max(1, problem.nodes), 4, most))
