"""`Auto`: one solver that runs others in turn, by a schedule.

Every kind of problem has its own, made by a function that the registry names:

    def schedule(problem: Problem) -> list[Stage]:
        assert isinstance(problem, PeakOrder)
        return [
            Stage("program-order", required=True),
            Stage("peak-cut", {"rounds": 24}),
            Stage("anneal", resumes=True),
        ]

    def make_auto() -> Auto:
        return Auto("order", schedule, summary="minimum cuts, then annealing", scheduled=True)

Whatever a stage evaluates goes through the one meter of the run, so that a later stage begins with the
best of all before it, and none makes the answer worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import LoadmasterError
from loadmaster.search.problem import Problem
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State, Status


@dataclass(frozen=True)
class Stage:
    """One solver of a schedule."""

    solver: str | Solver
    """One of `solver_labels`, or a solver that has no name there."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the solver, where it is named."""
    when: Callable[[Meter], bool] | None = None
    """Whether it has its turn; None: it has."""
    seconds_share: float = 1.0
    """It ends when so much of the whole run's seconds is over."""
    evaluations_share: float = 1.0
    """It ends when so much of the whole run's evaluations is used."""
    enough: float = 0.0
    """See `Meter.enough`."""
    seed_offset: int = 0
    """Added to the run's seed."""
    required: bool = False
    """It runs though the budget is spent or nothing is left to gain: it has its own way to end."""
    optional: bool = False
    """A `LoadmasterError` ends the stage alone; its message is among the solution's `refused`."""
    resumes: bool = False
    """Checkpoints are this stage's: a resumed run goes on with it, and leaves out those before."""

    def budget(self, whole: Budget) -> Budget:
        """What of the whole budget may be used when the stage ends."""
        seconds = None if whole.seconds is None else whole.seconds * self.seconds_share
        if whole.evaluations is None:
            return Budget(None, seconds)
        return Budget(whole.evaluations - int(whole.evaluations * (1 - self.evaluations_share)), seconds)


class Auto(Solver):
    """Runs the stages of a schedule in turn until the budget is spent, a stage proves that there is no
    solution, or the best found is proved to be optimal."""

    name = "auto"

    def __init__(
        self,
        kind: str,
        schedule: Callable[[Problem], Sequence[Stage]],
        *,
        summary: str,
        deterministic: bool = True,
        scheduled: bool = False,
    ) -> None:
        self.problem_kind = kind
        self.schedule = schedule
        self.summary = summary
        self.deterministic = deterministic
        self.scheduled = scheduled

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        """The solution of the last stage that had its turn."""
        stages = list(self.schedule(meter.problem))
        resumed = next((i for i, stage in enumerate(stages) if stage.resumes), None)
        if state is not None and resumed is not None:
            stages = stages[resumed:]
        whole = meter.budget
        solution: Solution | None = None
        refused: list[str] = []
        for stage in stages:
            meter.budget, meter.enough = stage.budget(whole), stage.enough
            if not self._has_turn(stage, meter):
                continue
            if stage.resumes:
                meter.progress()  # a search may prepare for a while: the best so far is reported before
            try:
                solver = self._solver(stage)
                solution = solver.run(meter, seed + stage.seed_offset, state if stage.resumes else None)
            except LoadmasterError as error:
                if not stage.optional:
                    raise
                refused.append(f"{stage.solver}: {error.message}")
                solution = meter.solution()  # it may have found something before
            if solution is not None and solution.status == Status.INFEASIBLE:
                break
        meter.budget, meter.enough = whole, 0.0
        solution = solution or meter.solution()
        solution.refused += refused
        return solution

    def _has_turn(self, stage: Stage, meter: Meter) -> bool:
        if not stage.required and meter.exhausted:
            return False
        return stage.when is None or stage.when(meter)

    def _solver(self, stage: Stage) -> Solver:
        if isinstance(stage.solver, str):
            return make_labelled(self.problem_kind, stage.solver, stage.options)
        return stage.solver
