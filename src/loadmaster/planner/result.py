"""`Result`: a checked plan beside known methods' plans and the bound, and where it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from loadmaster.allocation.auto import Blame, Unfit
from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.runs.history import compute_gap
from loadmaster.search.kind import Row
from loadmaster.search.problem import Bound, Problem
from loadmaster.search.solver import Recalled, Solution, Status
from loadmaster.simulate import Timeline, simulate


@dataclass(frozen=True, eq=False)
class Result:
    """What `plan` found. There is no plan that the checker would refuse."""

    problem: Problem
    machine: Machine
    """That the plan is for."""
    solution: Solution
    solver: str
    plan: Plan | None
    origin: str
    """Whose plan it is: the solver's, or the known method's or optimum's row that is better."""
    value: int | None
    """The plan's."""
    unit: str
    """Of values: 'ps' or 'bytes'"""
    bound: Bound
    """No plan of this problem has a value below it; of measured values, 0."""
    rows: list[Row]
    """Known methods' plans, the solver's, the optimum where it is known, the bound."""
    before: str | None = None
    """The baseline that plans are held against: what the user has today, or has named."""
    space: str = ""
    """The plans that the bound, and 'optimal', are about."""
    left_out: str = ""
    """What none of them does, though another plan might gain by it."""
    places: list[dict[str, Any]] = field(default_factory=list)
    """How full memories get, or how busy devices are."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Sizes of the problem, and what the plan moves, by name."""
    notes: list[str] = field(default_factory=list)
    """The same in sentences."""
    remeasured: str | None = None
    """How the best plans did when they were measured again, in a sentence."""
    measured: bool = False
    """Values are times on hardware."""
    kept: Path | None = None
    """The file of the plan, where one was written."""
    error: LoadmasterError | None = None
    """Why there is no plan, or why the search ended early."""

    @property
    def blame(self) -> Blame | None:
        """Why buffers do not fit, where that is proven."""
        return self.error.blame if isinstance(self.error, Unfit) else None

    @property
    def baselines(self) -> list[Row]:
        """Known methods' plans."""
        return [row for row in self.rows if row.role == "baseline"]

    @property
    def status(self) -> Status:
        """What is known of the plan."""
        if self.plan is None or self.origin == self.solver:
            return self.solution.status
        return (
            Status.OPTIMAL if self.value is not None and self.value <= self.bound.value else Status.FEASIBLE
        )

    @property
    def gap(self) -> float | None:
        """value / bound - 1"""
        return compute_gap(self.value, self.bound.value)

    @property
    def evaluations(self) -> int:
        return self.solution.evaluations

    @property
    def seconds(self) -> float:
        return self.solution.seconds

    @property
    def run(self) -> Path | None:
        """The run's folder, where one was written."""
        return self.solution.run

    @property
    def recalled(self) -> Recalled | None:
        """What came from a bank of plans, if anything did."""
        return self.solution.recalled

    @property
    def warnings(self) -> list[str]:
        """What a user should know of the search."""
        return [*self.solution.warnings, *self.solution.refused]

    @property
    def program(self) -> Program:
        """That the plan is about: with the ops that it runs again."""
        return self.problem.program

    @cached_property
    def timeline(self) -> Timeline | None:
        """What the plan costs, simulated."""
        return None if self.plan is None else simulate(self.program, self.machine, self.plan)
