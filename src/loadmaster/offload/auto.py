"""`auto`: all rules, then annealing, then a choice among the best: the plan that bears the most.

Plans of nearly the same simulated time differ in how much they bear: with copies just in time every
delay of a link is one of the run. So `auto` ends with the plan that is fastest where links are slower,
of those that cost next to nothing as simulated.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.offload.problem import Offload, is_vector, options_of
from loadmaster.offload.residencies import plan_of
from loadmaster.offload.search import Anneal
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.solver import Budget, Meter, PartMeter, Solution, Solver, State
from loadmaster.simulate.simulator import simulator

PRICE = 0.002
"""Of the simulated time, that a steadier plan may cost."""
ENOUGH = PRICE / 4
"""Above the bound, that needs no search: what is left of the budget makes the plan steadier."""
SLOWER, LATER = 0.9, 2
"""Of a link's bandwidth and latency: plans that copy both ways take 5 to 12 % longer as CUDA graphs than
op by op."""
SHARE = 1 / 3
"""Of the budget."""
_LENGTH = 8_000
"""Evaluations, if the budget does not say."""
_PENALTY = 10
"""Times what a plan costs too much: it is no answer, and may be on the way to one."""
RULES = ("all-resident", "prefetch", "layerwise", "belady", "static", "stream", "msa")
"""Tried first, quickest first; annealing begins with those of `spread` as well."""
WHITE_BOX = frozenset({*RULES, "spread"})


def make_auto() -> Auto:
    """Never worse than the best rule, but for the price of a steadier plan (`steady.PRICE`)."""
    summary = "all rules, then annealing, then the steadiest of the best plans"
    return Auto("offload", _schedule, summary=summary, scheduled=True)


def _schedule(problem: Problem) -> list[Stage]:
    if not problem.repeatable:  # nothing is left for a choice: what was measured is compared elsewhere
        return [*(Stage(name, optional=True) for name in RULES), Stage("anneal", resumes=True)]
    share = 1 - SHARE
    rules = [
        Stage(name, seconds_share=share, evaluations_share=share, enough=ENOUGH, optional=True)
        for name in RULES
    ]
    search = Stage("anneal", seconds_share=share, evaluations_share=share, enough=ENOUGH, resumes=True)
    return [*rules, search, Stage(ChooseSteady(), required=True)]


class Steady(Offload):
    """The same decisions and plans as those of a problem. The value is the time with slower links; of what takes
    over `most_ps` as simulated it is no better than the champion's, so that is never the answer."""

    def __init__(self, problem: Offload, champion: Decision, most_ps: int) -> None:
        super().__init__(problem.program, problem.machine, **options_of(problem))
        self.most_ps, self.slower = most_ps, slower(problem.machine)
        self._slow_bound = Offload(problem.program, self.slower, **options_of(problem)).bound()
        self.champion_ps = self._times(champion)[1]

    def evaluate(self, decision: Decision) -> int | None:
        nominal, slow = self._times(decision)
        if nominal <= self.most_ps:
            return slow
        return max(slow, self.champion_ps) + _PENALTY * (nominal - self.most_ps)

    def _times(self, decision: Decision) -> tuple[int, int]:
        """As simulated, and with slower links; offsets make no difference."""
        plan = (
            plan_of(self.model, self.program.n_ops, self.scheduled(decision))
            if is_vector(decision)
            else self.plan(decision)
        )
        return (
            int(simulator(self.program, self.machine).run(plan).total_ps),
            int(simulator(self.program, self.slower).run(plan).total_ps),
        )

    def bound(self) -> Bound:
        return self._slow_bound


def slower(machine: Machine) -> Machine:
    """The machine with slower links."""
    return replace(
        machine,
        links=tuple(
            replace(link, bandwidth=max(1, int(link.bandwidth * SLOWER)), latency=link.latency * LATER)
            for link in machine.links
        ),
    )


class ChooseSteady(Solver):
    """Lets the meter end with the steadiest plan that is found with the rest of its budget."""

    name, problem_kind = "steady", "offload"
    summary = "the steadiest of the best plans"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, best = meter.problem, meter.best
        assert isinstance(problem, Offload)
        left = meter.evaluations_left
        if best is None or meter.best_value is None or meter.spent or (left is not None and left < 3):
            return meter.solution()
        # One evaluation is for the choice itself.
        limits = Budget(_LENGTH if left is None else left - 1, meter.seconds_left)
        part = PartMeter(meter, Steady(problem, best, int(meter.best_value * (1 + PRICE))), limits)
        search = Anneal()
        if is_vector(best):
            search.starts = [best]
        else:
            part.evaluate(best)
        search.run(part, seed, None)
        if part.best is not None and not np.array_equal(part.best, best):
            meter.choose(part.best)
        return meter.solution()
