"""Hardware in the loop: what measured rewards find beside what the simulator found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.bench import Row
from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.problems.champion import Champion, remeasure
from loadmaster.problems.evaluator import Evaluator
from loadmaster.problems.measured import MeasuredMapping
from loadmaster.problems.offload.measured import MeasuredOffload
from loadmaster.problems.offload.problem import Offload
from loadmaster.problems.problem import Decision
from loadmaster.program.program import Program
from loadmaster.solvers.offload.refined import Refined, refine
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, Solution, solve

REFINED = "refined"
MAPPED: Mapping[str, Mapping[str, Any]] = {
    "annealing": {},
    "ageing-evolution": {"population": 12, "sample": 4},
    "egrl": {"population": 8, "burn_in": 8, "horizon": 60, "width": 32, "heads": 2, "depth": 1, "batch": 8},
}  # fmt: skip
"""Black-box searches of the Mapping problem, with populations for few measurements."""
SEARCHES = (REFINED, *MAPPED)
REFINED_SHARE = 0.5
"""Of a model's time."""


@dataclass(frozen=True)
class Loop:
    """One model under one budget with something that measures."""

    case: str
    program: Program
    machine: Machine
    evaluator: Evaluator
    candidates: Sequence[Decision]
    """Of a simulated search, its champion first."""
    options: Mapping[str, Any]
    """Of the offload problem: what kernels need."""
    evaluations: int = 60
    repeats: int = 2
    times: int = 20
    together: int = 4

    def row(self, search: str, seconds: float, seed: int = 0) -> Row:
        """Run one search for about so long, re-measuring included."""
        began = time.perf_counter()
        try:
            value, base, bound, solution, extra = self._run(search, Budget(self.evaluations, 0.6 * seconds), seed)  # fmt: skip
        except LoadmasterError as error:
            return Row(self.case, -1.0, "ps", "failed", machine=self.machine.name, solver=self._name(search),
                       seed=seed, seconds=time.perf_counter() - began,
                       extra={"kind": "loop", "reason": error.message})  # fmt: skip
        return Row(
            self.case, value, "ps", "ok", machine=self.machine.name, solver=self._name(search), seed=seed,
            evaluations=solution, seconds=time.perf_counter() - began, baseline=base, bound=bound,
            gap=value / bound - 1 if bound else None, extra={"kind": "loop", **extra},
        )  # fmt: skip

    def _name(self, search: str) -> str:
        return f"{search}+hardware"

    def _run(self, search: str, budget: Budget, seed: int) -> tuple[float, float, float, int, dict[str, Any]]:  # fmt: skip
        """(winner's time, time of what it is compared with, bound, evaluations, the rest)"""
        if search == REFINED:
            return self._refined(budget, seed)
        # Every map is made to fit: few measurements are too precious for penalties.
        problem = MeasuredMapping(self.program, self.machine, self.evaluator, repeats=self.repeats,
                                  warmups=0, invalid="repair")  # fmt: skip
        try:
            found = solve(
                make_solver("mapping", search, dict(MAPPED[search])), problem, budget, seed
            )
            best = remeasure(problem, problem.leaders.decisions()[:2], times=2 * self.together,
                             seed=seed, together=self.together)  # fmt: skip
            return self._mapped(problem, found, best)
        finally:
            problem.close()

    def _refined(self, budget: Budget, seed: int) -> tuple[float, float, float, int, dict[str, Any]]:  # fmt: skip
        problem = MeasuredOffload(self.program, self.machine, self.evaluator, repeats=self.repeats,
                                  warmups=0, **self.options)  # fmt: skip
        solver = Refined()
        solver.candidates = list(self.candidates)
        try:
            found = refine(problem, budget, seed, solver=solver, times=self.times, together=self.together,
                           leaders=3, first_times=2 * self.together)  # fmt: skip
        finally:
            problem.close()
        told = found.as_json()
        # What to use: where nothing was gained, that is the simulator's plan.
        value = told["median_ps"] if found.gained else told["baseline_ps"]
        return value, told["baseline_ps"], float(found.bound_ps), found.evaluations, told

    def _mapped(self, problem: MeasuredMapping, found: Solution, best: Champion) -> tuple[float, float, float, int, dict[str, Any]]:  # fmt: skip
        told = {**best.as_json(), "first_baseline_ps": problem.baselines[0][0] * 1e12,
                "measurements": problem.measurements, "failures": problem.failures}  # fmt: skip
        bound = float(Offload(self.program, self.machine, **self.options).bound().value)
        return told["median_ps"], told["baseline_ps"], bound, found.evaluations, told


def shares(searches: Sequence[str], seconds: float) -> dict[str, float]:
    """How long each search may take: the refinement half of the time, the others the rest."""
    others = [name for name in searches if name != REFINED]
    first = (REFINED_SHARE if others else 1.0) * seconds if REFINED in searches else 0.0
    return {name: first if name == REFINED else (seconds - first) / len(others) for name in searches}  # fmt: skip


def loop_rows(loop: Loop, searches: Sequence[str], left: Callable[[], float], keep: Callable[[Row], None]) -> None:  # fmt: skip
    """Each search in turn, as long as there is time; `keep` gets each row when it is there."""
    waiting = list(searches)
    while waiting and left() > 0:
        allowed = shares(waiting, left())[waiting[0]]
        keep(loop.row(waiting.pop(0), allowed))
