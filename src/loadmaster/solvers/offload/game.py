"""Players of the MallocGame plan for runs that follow each other.

A game begins with nothing in fast memory, so it can't tell which weights stay there between runs. A game
over two runs in a row can: what is held from the last use in the first to the first use in the second.
And it lets ops read slow memory, which these machines can't: so games are judged by the plans that they
become, and by nothing else. What players learn move by move is still the game's.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from loadmaster.problems.malloc_game.moves import NO_COPY
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.problems.offload.gaps import gaps_of_plan
from loadmaster.problems.offload.model import Bool, Int8, Int64
from loadmaster.problems.offload.problem import Offload
from loadmaster.problems.problem import Bound, Decision, Scores
from loadmaster.program.twice import twice
from loadmaster.solvers.offload.others import try_filled
from loadmaster.solvers.part import PartMeter
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, Meter, Observer, Solution, State

RUNS = 2
_GAMES, _BEST = "games_played", "best_game"
"""What a checkpoint has beside the player's own state."""


class Streamed(MallocGame):
    """Two runs in a row; the value of a game is what two runs of its plan take."""

    def __init__(self, problem: Offload) -> None:
        super().__init__(twice(problem.program), problem.machine)
        self.offload = problem
        bound = problem.bound()
        self._bound = Bound(RUNS * bound.value, bound.method)

    @cached_property
    def gap_site(self) -> Int64:
        """[G] the site at the end of each gap of the offload problem: in the second run, of one between runs.
        -1: nothing is decided there."""
        model, own, run = self.offload.model, self.model, self.offload.program.n_ops
        root, op = own.tensors.root[own.site_tensor], own.step_op[own.site_step]
        # Of what an op reads and writes, it reads first.
        sites = {
            key: site
            for site, key in reversed(list(enumerate(zip(root.tolist(), op.tolist(), strict=True))))
        }
        found = np.full(model.gaps, -1, dtype=np.int64)
        for gap in np.flatnonzero(model.gap_to < model.steps).tolist():
            at = int(model.step_op[model.gap_to[gap]]) + (run if model.gap_from[gap] < 0 else 0)
            found[gap] = sites.get((int(model.root[model.gap_item[gap]]), at), -1)
        return found

    def kept(self, decision: Decision) -> Bool:
        """The gaps of the offload problem that a game keeps."""
        if np.asarray(decision).ndim == 1:
            return self._stays(self.play(np.asarray(decision)[None]).actions[0])
        return gaps_of_plan(self.offload.model, self.plan(decision), self.offload.program.n_ops)

    def _stays(self, actions: Int8) -> Bool:
        """A tensor is still there for a use that needs no copy. A game takes that back if the tensor was not
        written to slow memory and can't stay to the end; plans copy it out then."""
        stays: Bool = (self.gap_site >= 0) & (actions[self.gap_site] == NO_COPY)
        return stays

    def _total(self, kept: Bool) -> int | None:
        found = self.offload.evaluate(self.offload.vector(kept))
        return None if found is None else RUNS * found

    def evaluate(self, decision: Decision) -> int | None:
        return self._total(self.kept(decision))

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        played = self.play(decisions).actions
        found = [self._total(self._stays(each)) for each in played]
        total = np.array([self.all_slow_ps if each is None else each for each in found], np.int64)
        return Scores(total, (self.all_slow_ps - total) / self.scale_ps)


class Played:
    """`solver` is any solver of the MallocGame, with its options, and `evaluations` its games. Before them comes
    the plan of the game that stays wherever it can."""

    name, problem_kind = "game", "offload"
    summary = "a solver of the MallocGame plays two runs in a row, judged by the plans that its games become"
    deterministic = True

    def __init__(self, solver: str = "es-moves", evaluations: int = 20_000, **options: Any) -> None:
        if evaluations < 1:
            raise ValueError("evaluations must be above 0")
        self.player, self.evaluations = make_solver("malloc-game", solver, options), evaluations
        self.switches = {"solver": solver, "evaluations": evaluations, **options}

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
        del self.switches["solver"]


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
