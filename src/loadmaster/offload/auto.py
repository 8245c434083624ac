"""`Auto`: all rules, then annealing, then a choice among the best: the plan that bears the most."""

from __future__ import annotations

from loadmaster.errors import LoadmasterError
from loadmaster.offload.problem import Offload
from loadmaster.offload.steady import ENOUGH, SHARE, choose_steady
from loadmaster.search.problem import repeatable
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Meter, Solution, State

RULES = ("all-resident", "prefetch", "layerwise", "belady", "static", "stream", "msa")
"""Tried first, quickest first; annealing begins with those of `spread` as well."""
WHITE_BOX = frozenset({*RULES, "spread"})


class Auto:
    """Never worse than the best rule, but for the price of a steadier plan (`steady.PRICE`)."""

    name, problem_kind = "auto", "offload"
    summary = "all rules, then annealing, then the steadiest of the best plans"
    deterministic = scheduled = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert isinstance(meter.problem, Offload)
        whole = meter.budget
        if repeatable(meter.problem):
            meter.budget, meter.enough = whole.without(SHARE), ENOUGH
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
        meter.budget, meter.enough = whole, 0.0
        if repeatable(meter.problem):
            choose_steady(meter, seed)
        return meter.solution(white_box=True, refused=refused, fastest_ps=meter.best_value)
