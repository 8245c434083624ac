"""`Auto`: all rules, then annealing until the budget ends."""

from __future__ import annotations

from loadmaster.errors import LoadmasterError
from loadmaster.problems.offload.problem import Offload
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Meter, Solution, State

RULES = ("all-resident", "prefetch", "layerwise", "belady", "static", "stream", "msa")
"""Tried first, quickest first; annealing begins with those of `spread` as well."""
WHITE_BOX = frozenset({*RULES, "spread"})


class Auto:
    """Never worse than the best rule."""

    name, problem_kind = "auto", "offload"
    summary = "all rules, then annealing until the budget ends"
    deterministic = False  # a time limit decides how far it gets

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert isinstance(meter.problem, Offload)
        refused: list[str] = []
        for name in RULES if state is None else ():
            if meter.exhausted:
                break
            try:
                make_solver("offload", name).run(meter, seed, None)
            except LoadmasterError as error:  # one rule that can't be followed stops no other
                refused.append(f"{name}: {error.message}")
        if not meter.exhausted:
            make_solver("offload", "anneal").run(meter, seed, state)
        return meter.solution(white_box=True, refused=refused)
