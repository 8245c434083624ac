"""`PartMeter`: for a part of the work that is about another problem, within the budget of the whole."""

from __future__ import annotations

from loadmaster.problems.problem import Decision, Problem
from loadmaster.solvers.solver import Budget, Meter


class PartMeter(Meter):
    """What is evaluated here counts for the whole too; its best stays here, and so do checkpoints."""

    def __init__(self, whole: Meter, problem: Problem, budget: Budget) -> None:
        super().__init__(problem, budget, clock=whole.clock)
        self.whole = whole

    @property
    def spent(self) -> bool:
        return self.whole.spent or super().spent

    def evaluate(self, decision: Decision) -> int | None:
        self.whole.evaluations += 1
        return super().evaluate(decision)

    def progress(self, **metrics: float) -> None:
        self.whole.progress(**metrics)
