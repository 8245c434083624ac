"""Which of the many networks of a run becomes its policy: the one that decides best on the workload
that it was trained on and, if there are any, on workloads that it was only tried on.

Nothing flows back: neither training nor the search for maps knows of these trials, and they are not
counted as evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.problems.mapping import Mapping
from loadmaster.program.models import load_model
from loadmaster.solvers.egrl.graph import make_graph
from loadmaster.solvers.solver import State

Float32 = npt.NDArray[np.float32]
EVERY = 10
"""Generations between two looks."""


class PolicyChoice:
    """Keeps the best network so far. `validate` names models, separated by semicolons."""

    def __init__(self, problem: Mapping, validate: str, forward: Callable[..., Any]) -> None:
        self.problem, self.forward = problem, forward
        names = validate.split(";") if validate else []
        self.others = [Mapping(load_model(name), problem.machine) for name in names]
        self.graphs = [make_graph(other) for other in self.others]
        self.weights: Float32 | None = None
        self.worth = -np.inf

    def consider(self, stack: Float32, rewards: npt.NDArray[np.float64]) -> None:
        """Networks [G, W] and what their maps earned in training: > 0 where they fitted."""
        # Speed-ups over the compiler as logarithms, so that no workload outweighs another.
        worth = np.where(rewards > 0, np.log(np.maximum(rewards, 1e-9)) / self.problem.power, -np.inf)
        if not np.isfinite(worth).any():
            return
        for other, graph in zip(self.others, self.graphs, strict=True):
            maps = np.asarray(self.forward(stack, graph)[0])
            worth = worth + np.log(other.compiler_ps / other.rectify(maps)[0])
        best = int(np.argmax(worth))
        if worth[best] > self.worth:
            self.weights, self.worth = np.array(stack[best]), float(worth[best])

    def arrays(self) -> State:
        """For a checkpoint."""
        if self.weights is None:
            return {}
        return {"choice.weights": self.weights, "choice.worth": np.array(self.worth)}

    def restore(self, state: State) -> None:
        if "choice.weights" in state:
            self.weights, self.worth = (np.array(state["choice.weights"]), float(state["choice.worth"]))
