"""GraphOptimization of small graphs by CP-SAT: a plan that is timed like any other, and a bound.

Where fusion is decided there are two models: one of the base plan's clusters for an answer, and one
of single nodes at their least costs for the bound (see `graph_units`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, require
from loadmaster.problems.graph import GraphOptimization
from loadmaster.solvers.exact.cp_solver import make_cp_solver
from loadmaster.solvers.exact.graph_model import GraphModel
from loadmaster.solvers.exact.graph_units import Units, units_of
from loadmaster.solvers.solver import Meter, Solution, State

Float64 = npt.NDArray[np.float64]

MOST_DEVICES = 4
ANSWER_SHARE = 0.5
"""Of the time, where an answer and a bound have models of their own."""


class CpSat:
    """`most_groups`, `most_steps`: larger graphs are refused, since nothing would be proved. `work`:
    see `make_cp_solver`."""

    name, problem_kind = "cp-sat", "graph"
    summary = "OR-tools' CP-SAT on small graphs, with a bound (needs: pip install 'loadmaster[exact]')"
    deterministic = True

    def __init__(self, most_groups: int = 150, most_steps: int = 1_000, work: float | None = None) -> None:
        self.most_groups, self.most_steps = int(most_groups), int(most_steps)
        self.work = work

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        self._check(problem)
        cp_model = require("ortools.sat.python.cp_model", "exact")
        if not meter.exhausted:
            meter.evaluate(problem.vector())
        if not meter.exhausted and "schedule" in problem.tasks:
            meter.evaluate(problem.vector(schedule=np.zeros(problem.nodes)))
        infeasible = False
        if "fusion" in problem.tasks:
            if not meter.exhausted:
                answer = units_of(problem, problem.base_clusters)
                _solve(cp_model, meter, problem, answer, seed, self.work, share=ANSWER_SHARE, proves=False)
            if not meter.exhausted:
                infeasible = _solve(
                    cp_model, meter, problem, units_of(problem), seed, self.work, answers=False
                )
        elif not meter.exhausted:
            infeasible = _solve(cp_model, meter, problem, units_of(problem), seed, self.work)
        return meter.solution(infeasible=infeasible, white_box=True)

    def _check(self, problem: GraphOptimization) -> None:
        for what, count, most in (
            ("groups", problem.groups, self.most_groups),
            ("devices", problem.devices, MOST_DEVICES),
            ("ops", problem.nodes, self.most_steps),
        ):
            if count > most:
                raise LoadmasterError(
                    f"'{problem.program.name}' has {count} {what}, too many for cp-sat (at most {most})",
                    object=problem.program.name,
                    number=count,
                    remedy="use anneal or brkga",
                )


def _solve(
    cp_model: Any,
    meter: Meter,
    problem: GraphOptimization,
    units: Units,
    seed: int,
    work: float | None,
    *,
    share: float = 1.0,
    answers: bool = True,
    proves: bool = True,
) -> bool:
    """Solve one model: submit what it finds if it `answers`, raise the bound if it `proves`. True:
    no plan fits."""
    # The best so far is a plan of the model, unless its clusters are others.
    most = meter.best_value if proves else None
    made = GraphModel(cp_model, problem, units, most, memory=answers)
    solver = make_cp_solver(cp_model, meter, seed, work, share)

    class Found(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            if answers:
                devices = [next(d for d in made.devices if self.boolean_value(row[d])) for row in made.on]
                _submit(meter, problem, units, devices, [self.value(v) for v in made.start])
            if meter.exhausted:
                self.stop_search()

    def bounded(bound: float) -> None:
        if meter.exhausted:
            solver.stop_search()

    solver.best_bound_callback = bounded
    status = solver.solve(made.model, Found())
    if not proves:
        return False
    if status == cp_model.INFEASIBLE:
        return most is None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        bound = math.ceil(solver.best_objective_bound - 1e-6) * made.unit
        if most is not None:
            bound = min(bound, meter.best_value if meter.best_value is not None else most)
        meter.raise_bound(bound, "CP-SAT")
    return False


def _submit(
    meter: Meter, problem: GraphOptimization, units: Units, devices: list[int], starts: list[int]
) -> None:
    """The devices with the order in which steps start, and with the order left to the ties."""
    device = problem.split(problem.vector())[1].copy()
    for group, where in zip(units.group, devices, strict=True):
        if group >= 0:
            device[group] = where
    keys: list[Float64 | None] = [None]
    if "schedule" in problem.tasks:
        rank = np.unique(np.array(starts), return_inverse=True)[1][units.step]
        keys = [1.0 - rank / (rank.max(initial=0) + 1), np.zeros(problem.nodes)]
    for key in keys:
        if meter.evaluations_left != 0:
            meter.evaluate(problem.vector(device=device, schedule=key))
