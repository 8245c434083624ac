"""Orders that need no search: the program's own, and what simple rules make of it."""

from __future__ import annotations

from loadmaster.order.problem import PeakOrder
from loadmaster.search.solver import Meter, Solution, Solver, State


class ProgramOrder(Solver):
    """The order that the program came with."""

    name, problem_kind = "program-order", "order"
    summary = "the order that the program came with"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        if not meter.exhausted:
            meter.evaluate(problem.program_order)
        return meter.solution()


class _Simple(Solver):
    """One native rule by name."""

    problem_kind = "order"
    deterministic = True
    rule: str

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, PeakOrder)
        if not meter.exhausted:
            meter.evaluate(problem.native.simple(self.rule))
        return meter.solution()


class PeakGreedy(_Simple):
    name, rule = "peak-greedy", "greedy"
    summary = "always the ready op that leaves the fewest bytes alive"


class DepthFirst(_Simple):
    name, rule = "depth-first", "depth-first"
    summary = "always the op that became ready last"


class ReversePostOrder(_Simple):
    name, rule = "reverse-post-order", "reverse-post-order"
    summary = "from the results back to what they need"
