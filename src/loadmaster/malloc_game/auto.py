"""`Auto` and `Production`: the best game that can be had, and what a production compiler chose."""

from __future__ import annotations

from loadmaster.errors import LoadmasterError
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan import Plan
from loadmaster.plan.production import production_plan
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Meter, Solution, State

WHITE_BOX = frozenset(
    {"all-slow", "greedy-order", "greedy-density", "msa", "production", "cp-sat", "exhaustive"}
)
"""They make one plan, or prove something, instead of trying many."""
BY_CLOCK = ("auto", "cp-sat", "exhaustive")


class NoProduction(LoadmasterError):
    """No production placement is known."""


class Production:
    """The placement that the machine's own production compiler chose for this very program, where
    one was extracted; timed by our model, for which it was not tuned."""

    name, problem_kind = "production", "malloc-game"
    summary = "the production compiler's own placement, where one was extracted"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        plan = known_production(problem)
        if not meter.exhausted:
            meter.evaluate(problem.decision(plan))
        return meter.solution(white_box=True)


def known_production(problem: MallocGame) -> Plan:
    """The production placement; an error if none is known."""
    plan = production_plan(problem.program, problem.machine)
    if plan is None:
        raise NoProduction(
            f"no production placement of '{problem.program.name}' on '{problem.machine.name}' is known",
            object=problem.program.name,
            remedy="see 'loadmaster models' for those of tpu-v4i",
        )
    return plan


def has_production(problem: MallocGame) -> bool:
    """Whether `Production` has an answer here."""
    return production_plan(problem.program, problem.machine) is not None


class Auto:
    """Greedy, MSA and, where there is one, the production placement; then MSA's order is evolved
    until the budget is spent."""

    name, problem_kind = "auto", "malloc-game"
    summary = "known heuristics, then the order of memory space assignment is evolved"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if state is None:  # a state is the evolution's: go on with it
            known = ["all-slow", "greedy-order", "greedy-density"]
            for name in known + (["production"] if has_production(problem) else []):
                if not meter.exhausted:
                    make_solver("malloc-game", name).run(meter, seed, None)
        if not meter.exhausted:
            make_solver("malloc-game", "msa-order").run(meter, seed, state)
        return meter.solution(white_box=True)
