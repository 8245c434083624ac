"""The three tasks one after another, each by a policy of its own: what deciding jointly adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.graph import Base, GraphOptimization
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State, solve

ORDER = ("placement", "fusion", "schedule")
"""Devices first: the other two are decided for the devices that were found."""


class Apart(Solver):
    """`solver` decides one task at a time with a third of the evaluations; the three answers together,
    and each alone, are then evaluated as plans of the whole problem."""

    problem_kind = "graph"
    deterministic = True
    summary = "each task by itself, then all three answers together"

    def __init__(self, name: str, solver: str, options: dict[str, Any]) -> None:
        self.name, self.solver, self.inner_options = name, solver, options
        self.options = {"solver": solver, **options}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        share = max(1, (meter.evaluations_left or 3 * len(ORDER)) // len(ORDER) - 1)
        fusion, device, schedule = problem.split(problem.vector())
        spent, tried = 0, []
        for task in ORDER:
            base = (
                problem.base
                if task == "placement"
                else Base(problem.base.fusion, device.astype(np.int32), problem.base.schedule)
            )
            alone = GraphOptimization(
                problem.program, problem.machine, tasks=(task,), base=base, tie=problem.tie
            )
            found = solve(make_labelled("graph", self.solver, self.inner_options), alone, Budget(share), seed)
            spent += found.evaluations
            if found.decision is not None:
                parts = alone.split(np.asarray(found.decision))
                fusion = parts[0] if task == "fusion" else fusion
                device = parts[1] if task == "placement" else device
                schedule = parts[2] if task == "schedule" else schedule
            tried.append(problem.vector(fusion, device, schedule))
        meter.evaluate_many(np.stack(tried))
        return meter.solution(inner_evaluations=spent)
