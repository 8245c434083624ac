"""`Auto`: the order with the least peak that can be had, with a proof where one can be had in time."""

from __future__ import annotations

from loadmaster.order.problem import PeakOrder
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Meter, Solution, State

BY_CLOCK = ("auto", "peak-cut", "peak-dp", "peak-beam")
SEARCHABLE = 3_000
"""Up to so many ops the complete search has its turn."""


class Auto:
    """The program's order first, so that nothing is ever worse; then cuts, then the complete search
    where the program is small, and more cuts with what is left of the budget."""

    name, problem_kind = "auto", "order"
    summary = "minimum cuts, then complete search: never worse than the program's own order"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        make_solver("order", "program-order").run(meter, seed, None)
        steps = [("peak-cut", {"rounds": 24}), ("peak-dp", {"sets": 100_000}), ("peak-cut", {"rounds": 200})]
        for number, (name, options) in enumerate(steps):
            if meter.exhausted or (name == "peak-dp" and problem.nodes > SEARCHABLE):
                continue
            make_solver("order", name, options).run(meter, seed + number, None)
        return meter.solution(white_box=True)
