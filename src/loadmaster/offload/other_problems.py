"""Decisions of the other problems' solvers: use by use (as XLA does it) and for life (Mapping)."""

from __future__ import annotations

import numpy as np

from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.gaps import filled, gaps_of_mapping, gaps_of_plan
from loadmaster.offload.heuristics import submit
from loadmaster.offload.problem import Offload
from loadmaster.search.problem import Decision
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State, solve


class FromMsa(Solver):
    """Memory space assignment decides on the same program and machine; what it holds in fast memory from one
    use to the next stays. Weights that fit in the room that is left lie there between runs. Other
    solvers of the MallocGame: `game`."""

    name, problem_kind = "msa", "offload"
    summary = "memory space assignment in the style of XLA, and weights in what room is left (white box)"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Offload)
        game = MallocGame(problem.program, problem.machine.with_reach("all"))
        found = solve(make_solver("malloc-game", "msa"), game, Budget(), seed)
        if found.decision is not None:
            try_filled(meter, problem, gaps_of_plan(problem.model, game.plan(found.decision)))
        return meter.solution()


class FromMapping(Solver):
    """A solver of the Mapping problem gives every tensor one memory for life."""

    name, problem_kind = "egrl", "offload"
    summary = "EGRL or another solver of the Mapping problem: one memory for life"
    deterministic = True

    def __init__(self, solver: str = "egrl", evaluations: int = 4_000) -> None:
        self.solver, self.evaluations = solver, evaluations
        self.options = {"solver": solver, "evaluations": evaluations}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Offload)
        mapping = Mapping(problem.program, problem.machine.with_reach("all"))
        left = meter.seconds_left  # some of it is for the tries afterwards
        budget = Budget(self.evaluations, None if left is None else 0.97 * left)
        found = solve(make_solver("mapping", self.solver), mapping, budget, seed)
        if found.decision is not None:
            memory = np.full(problem.program.n_tensors, -1, dtype=np.int64)
            for stay in mapping.plan(found.decision).residency_rows:
                memory[stay.tensor] = stay.memory
            try_filled(meter, problem, gaps_of_mapping(problem.model, memory))
        return meter.solution()


def try_filled(meter: Meter, problem: Offload, keep: Decision) -> None:
    """As it is, and with more weights in the room that is left. What took all the time there was to find is
    tried nevertheless: it must not be lost."""
    model = problem.model
    tries = [keep]
    for share in (0.95, 0.8):
        order = np.argsort(-model.size[model.gap_item], kind="stable")
        tries.append(filled(model, keep, max(problem.least, int(model.capacity * share)), order))
    for number, each in enumerate(tries):
        late = (number == 0 or meter.best is None) and meter.evaluations_left != 0
        if late or not meter.exhausted:
            submit(meter, problem.vector(each))
