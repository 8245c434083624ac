"""`Auto`: the best map that can be had, with a proof where one can be had in time.

Which solvers of the Mapping problem read the program (white box) and which see rewards only
(black box) is said here once: the two kinds are never ranked against each other unlabelled.
"""

from __future__ import annotations

from importlib.util import find_spec

from loadmaster.mapping.problem import Mapping
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Meter, Solution, State

WHITE_BOX = frozenset(
    {"auto", "exact", "all-slowest", "role-split", "compiler", "density", "one-arena", "greedy-by-size"}
)
EXACT_TENSORS = 3_000
"""Above so many decided tensors the exact solver is left out: its model is too large to gain."""


class Auto:
    """Greedy by density first; then the exact solver from there if OR-tools is installed and the
    program is small enough, else annealing. Measured problems have no model: they are annealed."""

    name, problem_kind = "auto", "mapping"
    summary = "density, then exact with a proof, or annealing where that is out of reach (white box)"
    deterministic = False  # how far the exact solver gets depends on the clock
    scheduled = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Mapping)
        if state is None:  # a state is annealing's: go on with it
            make_solver("mapping", "density").run(meter, seed, None)
            if can_prove(problem) and not meter.exhausted:
                return make_solver("mapping", "exact").run(meter, seed, None)
        if not meter.exhausted:
            return make_solver("mapping", "annealing").run(meter, seed, state)
        return meter.solution(white_box=True)


def can_prove(problem: Mapping) -> bool:
    """Whether the exact solver is worth a try here."""
    small = int(problem.live.sum()) <= EXACT_TENSORS
    return problem.repeatable and small and find_spec("ortools") is not None
