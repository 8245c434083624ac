"""Games that are rounded from the solution of the linear bound.

The relaxation says how much of each use is best fast, in view of all others. Each tensor counts
as fast where that is above a threshold: one for all tensors at first, then one of chance for each,
around those that did best.
"""

from __future__ import annotations

import numpy as np

from loadmaster.errors import require
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.exact.game_bound import METHOD, Relaxed, relaxed_game
from loadmaster.solvers.exact.game_rounding import moves_from
from loadmaster.solvers.solver import Meter, Solution, State

EQUAL = (0.5, 0.25, 0.75, 0.01, 0.99, 0.1, 0.4, 0.6, 0.9)
EVALUATIONS = 1_000
"""Where the budget counts none."""
BATCH = 32
SHARE = 0.5
"""Of the time that is left, for the linear program."""


class Rounded:
    """The bound that it proves on the way is kept."""

    name = "rounded"
    problem_kind = "malloc-game"
    summary = "the linear bound's solution, rounded (white box; needs: pip install 'loadmaster[exact]')"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        require("ortools", "exact")
        if not meter.exhausted:
            left = meter.seconds_left
            relaxed = relaxed_game(problem, 120.0 if left is None else SHARE * left)
            meter.raise_bound(relaxed.bound, METHOD)
            _round(meter, problem, relaxed, np.random.default_rng(seed))
        return meter.solution(white_box=True)


def _round(meter: Meter, problem: MallocGame, relaxed: Relaxed, rng: np.random.Generator) -> None:
    if relaxed.values is None:
        meter.evaluate(problem.all_slow())
        return
    game, values, tensors = relaxed.game, relaxed.values, len(relaxed.game.ties.sites)
    best, best_value = np.full(tensors, 0.5), None
    tries = np.array([[limit] * tensors for limit in EQUAL])
    end = meter.evaluations + EVALUATIONS
    while not meter.exhausted and (meter.budget.evaluations is not None or meter.evaluations < end):
        moves = np.array([moves_from(game, values, limits) for limits in tries])
        found = meter.evaluate_many(moves).value
        if best_value is None or found.min() < best_value:
            best, best_value = tries[found.argmin()], int(found.min())
        # A few tensors of the best get other thresholds.
        drawn = rng.uniform(0.02, 0.98, (BATCH, tensors))
        tries = np.where(rng.random((BATCH, tensors)) < rng.uniform(0.0, 0.3, (BATCH, 1)), drawn, best)
