"""Players of the MallocGame plan for runs that follow each other (`problems.offload.streamed`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.malloc_game.games import NO_COPY
from loadmaster.offload.other_problems import try_filled
from loadmaster.offload.problem import Offload
from loadmaster.offload.streamed import Streamed
from loadmaster.search.problem import Decision, Scores
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Observer, PartMeter, Solution, Solver, State

_GAMES, _BEST = "games_played", "best_game"
"""What a checkpoint has beside the player's own state."""


class Played(Solver):
    """`solver` is any solver of the MallocGame, with its options, and `evaluations` its games. Before them comes
    the plan of the game that stays wherever it can."""

    name, problem_kind = "game", "offload"
    summary = "a solver of the MallocGame plays two runs in a row, judged by the plans that its games become"
    deterministic = True

    def __init__(self, solver: str = "es-moves", evaluations: int = 20_000, **options: Any) -> None:
        if evaluations < 1:
            raise ValueError("evaluations must be above 0")
        self.player, self.evaluations = make_solver("malloc-game", solver, options), evaluations
        self.options = {"solver": solver, "evaluations": evaluations, **options}
        self.scheduled = self.player.scheduled

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Offload)
        if meter.exhausted:
            return meter.solution()
        game = Streamed(problem)
        table = _Table(meter, game, self.evaluations)
        if state is None:  # a plan at once: learned players take minutes to their first game
            try_filled(meter, problem, game.kept(np.full(game.moves, NO_COPY, dtype=np.int8)))
        else:
            table.evaluations = int(state[_GAMES])
            if state[_BEST].size:
                table.restore(state[_BEST])
        self.player.run(table, seed, state)
        return meter.solution(games=table.evaluations)


class MuZeroPlayed(Played):
    """The learned player: the packaged network, which learns from these games too. Options are those of
    the MallocGame's `muzero`."""

    name = "muzero"
    summary = "mallocMuZero plays two runs in a row, judged by the plans that its games become"

    def __init__(self, evaluations: int = 1_000, **options: Any) -> None:
        super().__init__("muzero", evaluations, **options)
        self.options = {k: v for k, v in self.options.items() if k != "solver"}


class _Table(PartMeter):
    """Games within the budget of the whole: each is one of its evaluations."""

    def __init__(self, whole: Meter, game: Streamed, games: int) -> None:
        super().__init__(whole, game, Budget(games, whole.seconds_left))
        self.observer = _Maker(whole, game)
        self._granted = 0

    @property
    def evaluations_left(self) -> int | None:
        own, whole = super().evaluations_left, self.whole.evaluations_left
        if own is None or whole is None:
            return own
        return min(own, max(0, whole + self._granted - 1))  # one is for the plan of the last game

    def evaluate_many(self, decisions: Decision) -> Scores:
        self._granted = len(decisions[: self.evaluations_left])
        self.whole.evaluations += self._granted
        try:
            return super().evaluate_many(decisions)
        finally:
            self._granted = 0


class _Maker(Observer):
    """The best games become plans of the whole, with more weights in the room that is left too."""

    def __init__(self, whole: Meter, game: Streamed) -> None:
        super().__init__()
        self.whole, self.game = whole, game

    def improved(self, meter: Meter) -> None:
        assert meter.best is not None
        try_filled(self.whole, self.game.offload, self.game.kept(meter.best))

    def wants_checkpoint(self, meter: Meter) -> bool:
        return self.whole.observer.wants_checkpoint(self.whole)

    def checkpoint(self, meter: Meter, state: State) -> None:
        best = np.zeros(0) if meter.best is None else meter.best
        self.whole.checkpoint({**state, _GAMES: np.array(meter.evaluations), _BEST: best})
