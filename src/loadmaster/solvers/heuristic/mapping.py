"""White-box baselines of the Mapping problem: they read the program and the machine.

Each makes one map and submits it once. They are never ranked against solvers that see rewards
only without saying so: their solutions carry `white_box`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from loadmaster.problems.first_fit import sparse_tables
from loadmaster.problems.mapping import Mapping
from loadmaster.solvers.heuristic.mapping_climb import Climb
from loadmaster.solvers.solver import Meter, Solution, State

Int8 = npt.NDArray[np.int8]


class OneMap(ABC):
    """Makes a map and submits it."""

    name: str
    problem_kind = "mapping"
    deterministic = True

    @abstractmethod
    def make(self, problem: Mapping, meter: Meter) -> Int8:
        """A map that fits."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Mapping)
        if not meter.exhausted:
            decision = self.make(problem, meter)
            meter.evaluate(problem.packable(decision) if problem.pins else decision)
        return meter.solution(white_box=True)


class AllSlowest(OneMap):
    name = "all-slowest"
    summary = "everything in the slowest memory (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        return problem.all_slowest()


class RoleSplit(OneMap):
    """Activations in memory 0, weights in memory 1, in program order; what does not fit there, and
    sparse tables, in the slowest."""

    name = "role-split"
    summary = "activations in the fastest memory, weights in the second (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        slowest, weights = problem.slowest, np.arange(2 * problem.nodes) >= problem.nodes
        decision = problem.all_slowest()
        for chosen, memory in ((~weights, 0), (weights & ~_sparse(problem), 1)):
            # One role at a time: what one role leaves over must not take the other's room.
            wanted = np.where(chosen, np.int8(min(memory, slowest)), np.int8(slowest))
            fitted = problem.rectify(wanted[None])[2][0]
            decision[chosen & (fitted == wanted)] = min(memory, slowest)
        return decision


class Compiler(OneMap):
    """The frozen first fit in program order that rewards are measured against."""

    name = "compiler"
    summary = "first fit in program order, activations before weights (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        fitted: Int8 = problem.rectify(problem.compiler[None])[2][0]
        return fitted


class Density(OneMap):
    """From all-slowest, again and again the move to a faster memory that saves most time per byte
    and op of life, as long as one saves anything."""

    name = "density"
    summary = "greedy by time saved per byte and step (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        climb = Climb(problem)
        while not meter.exhausted and climb.step():
            pass
        return climb.decision


def _sparse(problem: Mapping) -> npt.NDArray[np.bool_]:
    """[2N] entries that hold a table of which less than half is read."""
    of_tensor = problem.entries.of_tensor
    sparse = np.zeros(2 * problem.nodes, dtype=np.bool_)
    sparse[of_tensor[sparse_tables(problem.program) & (of_tensor >= 0)]] = True
    return sparse
