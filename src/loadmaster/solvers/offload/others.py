"""Decisions of the other problems' solvers: use by use (MallocGame) and for life (Mapping)."""

from __future__ import annotations

import numpy as np

from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.problems.mapping import Mapping
from loadmaster.problems.offload.gaps import filled, gaps_of_mapping, gaps_of_plan
from loadmaster.problems.offload.problem import Offload
from loadmaster.problems.problem import Decision
from loadmaster.solvers.offload.simple import submit
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, Meter, Solution, State, solve


class FromGame:
    """The game's own solver decides on the same program and machine; what it holds in fast memory from
    one use to the next stays. Weights that fit in the room that is left lie there between runs."""

    name, problem_kind = "msa", "offload"
    summary = "memory space assignment or another solver of the MallocGame (white box)"
    deterministic = True

    def __init__(self, solver: str = "msa", evaluations: int = 1_000) -> None:
        self.solver, self.evaluations = solver, evaluations
        self.switches = {"solver": solver, "evaluations": evaluations}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Offload)
        game = MallocGame(problem.program, problem.machine)
        budget = Budget(self.evaluations, meter.seconds_left)
        found = solve(make_solver("malloc-game", self.solver), game, budget, seed)
        if found.decision is not None:
            keep = gaps_of_plan(problem.model, game.plan(found.decision))
            _try_filled(meter, problem, keep)
        return meter.solution(white_box=True)


class FromMapping:
    """A solver of the Mapping problem gives every tensor one memory for life."""

    name, problem_kind = "egrl", "offload"
    summary = "EGRL or another solver of the Mapping problem: one memory for life"
    deterministic = True

    def __init__(self, solver: str = "egrl", evaluations: int = 4_000) -> None:
        self.solver, self.evaluations = solver, evaluations
        self.switches = {"solver": solver, "evaluations": evaluations}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Offload)
        mapping = Mapping(problem.program, problem.machine)
        budget = Budget(self.evaluations, meter.seconds_left)
        found = solve(make_solver("mapping", self.solver), mapping, budget, seed)
        if found.decision is not None:
            memory = np.full(problem.program.n_tensors, -1, dtype=np.int64)
            for stay in mapping.plan(found.decision).residency_rows:
                memory[stay.tensor] = stay.memory
            _try_filled(meter, problem, gaps_of_mapping(problem.model, memory))
        return meter.solution()


def _try_filled(meter: Meter, problem: Offload, keep: Decision) -> None:
    """As it is, and with more weights in the room that is left."""
    model = problem.model
    tries = [keep]
    for share in (0.95, 0.8):
        order = np.argsort(-model.size[model.gap_item], kind="stable")
        tries.append(filled(model, keep, max(problem.least, int(model.capacity * share)), order))
    for each in tries:
        if not meter.exhausted:
            submit(meter, problem.vector(each))
