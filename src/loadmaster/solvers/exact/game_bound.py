"""Lower bounds of a MallocGame that a linear program gives: a few seconds for a thousand sites."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.clock import now
from loadmaster.errors import require
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.problems.problem import Bound
from loadmaster.solvers.exact.game_linear import game_linear
from loadmaster.solvers.exact.game_variables import GameLinear
from loadmaster.solvers.exact.game_windows import add_turns, add_window, broken
from loadmaster.solvers.exact.linear_worker import solve_whole
from loadmaster.solvers.exact.mapping_engines import Float64, relaxation
from loadmaster.solvers.exact.mapping_linear import Linear

METHOD = "linear relaxation"
LOOKBACK = 20
"""Steps over which the room of a copy under way is counted; more hardly ever raised a bound."""
MOST_WINDOWS = 500
"""In each round."""
TOLERANCE = 1e-7
"""Of the all-slow time: windows that are broken by less are let be."""


def game_bound(problem: MallocGame, seconds: float = 60.0, *, whole: bool = False) -> Bound:
    """The best of the problem's own bound and of the linear one; `whole`: what is left of the time
    is for HiGHS to prove that whole tensors do no better."""
    require("ortools", "exact")
    deadline = now() + seconds
    relaxed = relaxed_game(problem, seconds)
    found = Bound(relaxed.bound, METHOD)
    left = deadline - now()
    if whole and left > 0 and problem.moves:
        answer = solve_whole(relaxed.game.linear, problem.all_slow_ps + 1, left)
        if answer is not None and answer.bound > relaxed.bound:
            found = Bound(min(answer.bound, problem.all_slow_ps), "HiGHS")
    return max(problem.bound(), found, key=lambda bound: bound.value)


@dataclass(frozen=True)
class Relaxed:
    """What the linear relaxation of a game gives."""

    game: GameLinear
    """With the windows that matter."""
    values: Float64 | None
    """Of its variables; None: time ran out before the first were there."""
    bound: int
    """Picoseconds: that of the dual solution in exact arithmetic. Rounding errors of the engine can
    make it smaller, and never wrong."""


def relaxed_game(problem: MallocGame, seconds: float) -> Relaxed:
    """Solve, add the windows that are broken, and again until none is; when time runs out, what
    the rounds before gave stands."""
    deadline = now() + seconds
    model, machine = problem.model, problem.machine
    unit = max(1, model.all_slow_ps // 10**6)
    game = game_linear(problem.program, model, machine, lookback=LOOKBACK, unit=unit)
    turns, best, known = add_turns(game), 0, None
    for turn in turns:
        add_window(game, turn, -1, model.steps)
    while True:
        bound, values = _solved(game.linear, deadline - now())
        best, known = max(best, bound), known if values is None else values
        if values is None or now() >= deadline:
            break
        windows = broken(game, turns, values, TOLERANCE * model.all_slow_ps, MOST_WINDOWS)
        for number, first, last in windows:
            add_window(game, turns[number], first, last)
        if not windows:
            break
    return Relaxed(game, known, min(best, model.all_slow_ps))


def _solved(linear: Linear, seconds: float) -> tuple[int, Float64 | None]:
    try:
        return relaxation(linear, seconds, "HIGHS")
    except Exception:  # whatever it may raise: an internal error of one engine is not the other's
        return relaxation(linear, seconds, "GLOP")
