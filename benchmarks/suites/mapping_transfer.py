"""Zero-shot transfer: a policy is trained on one model and decides at once for the others.

At a quarter, half and all of the training's evaluations, the fittest graph network and the
learner's actor each make one greedy map of every model. Nothing is learned there; the map is
rectified and timed, and whether it fitted as it was stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.suites import Row
from benchmarks.suites.mapping_cells import BUDGET, CELLS, WORKLOADS, Cell
from benchmarks.suites.mapping_run import Improvements, run_cell
from loadmaster.arrays import Int8
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Budget, Meter, State

if TYPE_CHECKING:
    from loadmaster.mapping.egrl.network import Actor

MACHINE = "nnp-i"
SHARES = (0.25, 0.5, 1.0)
TRANSFERS = {f"transfer/{model}": model for model in WORKLOADS} | {"transfer/none": ""}
"""Case -> what is trained on; 'none' are the maps that nobody trained for."""


class Snapshots(Improvements):
    """Also keeps the solver's state when it has used a share of its evaluations."""

    def __init__(self, budget: int) -> None:
        super().__init__()
        self.states: dict[float, State] = {}
        self._budget = budget

    def _due(self, meter: Meter) -> float | None:
        due = [
            share
            for share in SHARES
            if share not in self.states and (meter.evaluations >= share * self._budget or meter.exhausted)
        ]
        return due[0] if due else None

    def wants_checkpoint(self, meter: Meter) -> bool:
        return self._due(meter) is not None

    def checkpoint(self, meter: Meter, state: State) -> None:
        while (share := self._due(meter)) is not None:
            self.states[share] = {name: np.array(values) for name, values in state.items()}


def run_transfer(case: str, seed: int, budget: int = BUDGET) -> Iterator[Row]:
    """Rows 'transfer/TRAINED/TESTED' of one case, and the row of the training in its own cell."""
    trained = TRANSFERS[case]
    tests = {model: CELLS[f"{model}/{MACHINE}"] for model in WORKLOADS}
    problems = {model: cell.load() for model, cell in tests.items()}
    from loadmaster.mapping.egrl.agent import greedy_map, random_map, untrained_map

    if not trained:
        for model, problem in problems.items():
            maps = {"untrained": untrained_map(problem, seed), "random": random_map(problem, seed)}
            for name, decision in maps.items():
                yield _row(f"{case}/{model}", tests[model], problem, decision, name, seed, {})
        return
    source, observer = problems[trained], Snapshots(budget)
    training = run_cell(tests[trained], "egrl", seed, budget=budget, observer=observer)
    yield training
    about = {
        "trained_on": trained,
        "budget": budget,
        "training_value": training.value,
        "training_seconds": training.seconds,
    }
    for share, state in observer.states.items():
        for kind, actor in _policies(source, state, seed, budget).items():
            for model, problem in problems.items():
                decision = greedy_map(actor, problem)
                yield _row(
                    f"{case}/{model}", tests[model], problem, decision, f"{kind} {share:.0%}", seed, about
                )


def _policies(problem: Mapping, state: State, seed: int, budget: int) -> dict[str, Actor]:
    """The fittest graph network and the learner's actor of a state."""
    from loadmaster.mapping.egrl.session import Session
    from loadmaster.mapping.egrl.settings import Settings

    session = Session(Meter(problem, Budget(budget)), seed, Settings(), None, state)
    maps = np.asarray(session.forward(session.now.stack, session.graph)[0])
    fittest = int(np.argmax(problem.score(maps).reward))
    return {"gnn": session.unravel(session.now.stack[fittest]), "learner": session.now.learner.actor}


def _row(
    case: str, cell: Cell, problem: Mapping, decision: Int8, solver: str, seed: int, about: dict[str, Any]
) -> Row:
    time_ps, epsilon, rectified = problem.rectify(decision[None])
    value, bound = int(time_ps[0]), problem.bound().value
    refused = problem.violations(problem.plan(rectified[0]))
    return Row(
        case,
        float(value),
        "ps",
        "refused by the checker" if refused else "feasible",
        machine=cell.machine,
        solver=solver,
        seed=seed,
        evaluations=1,
        baseline=float(problem.compiler_ps),
        bound=float(bound),
        gap=value / bound - 1,
        extra={
            **about,
            "tested_on": cell.model,
            "valid": bool(epsilon[0] == 0),
            "epsilon": float(epsilon[0]),
            "best_speedup": problem.compiler_ps / value,
            "white_box": False,
            "all_slowest": problem.evaluate(problem.all_slowest()),
        },
    )
