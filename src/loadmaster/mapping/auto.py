"""`auto`: the best map that can be had, with a proof where one can be had in time.

Which solvers of the Mapping problem read the program (white box) and which see rewards only
(black box) is said here once: the two kinds are never ranked against each other unlabelled.
"""

from __future__ import annotations

from importlib.util import find_spec

from loadmaster.mapping.problem import Mapping
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem

HEURISTICS = ("all-slowest", "role-split", "compiler", "density", "one-arena", "greedy-by-size")
WHITE_BOX = frozenset({"auto", "exact", *HEURISTICS})
EXACT_TENSORS = 3_000
"""Above so many decided tensors the exact solver is left out: its model is too large to gain."""


def make_auto() -> Auto:
    """Greedy by density first; then the exact solver from there if OR-tools is installed and the
    program is small enough, else EGRL. Measured problems have no model: EGRL searches them."""
    summary = "density, then exact with a proof, or EGRL where that is out of reach (white box)"
    # How far the exact solver gets depends on the clock.
    return Auto("mapping", _schedule, summary=summary, deterministic=False, scheduled=True)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, Mapping)
    search = Stage("exact") if can_prove(problem) else Stage("egrl", resumes=True)
    return [Stage("density"), search]


def can_prove(problem: Mapping) -> bool:
    """Whether the exact solver can be expected to gain here."""
    small = int(problem.live.sum()) <= EXACT_TENSORS
    return problem.repeatable and small and find_spec("ortools") is not None
