"""Every game of a few moves: the best that the game's own rules allow.

Depth first, a batch of unfinished games at a time. A batch is left as soon as even its best end,
with every open site as fast as can be, is no better than the best game known.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.problems.malloc_game.games import Games
from loadmaster.problems.malloc_game.model import GameModel
from loadmaster.problems.malloc_game.moves import DROP, NO_COPY
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.solver import Meter, Solution, State

Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]
BATCH = 1024


class Exhaustive:
    """Says in `complete` whether no game is better. Plans that no game plays may still be."""

    name = "exhaustive"
    problem_kind = "malloc-game"
    summary = "all games of at most 16 moves: the best of them (white box)"
    deterministic = True

    def __init__(self, most_moves: int = 16) -> None:
        self.most_moves = int(most_moves)

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        self._check(problem)
        complete = not meter.exhausted and self._search(meter, problem)
        return meter.solution(white_box=True, complete=complete)

    def _check(self, problem: MallocGame) -> None:
        if problem.moves > self.most_moves:
            raise LoadmasterError(
                f"'{problem.program.name}' has {problem.moves} moves, too many to try all games",
                object=problem.program.name,
                number=problem.moves,
                remedy=f"use cp-sat, or give most_moves (now {self.most_moves}) and time",
            )
        if problem.switches()["backup"] == "rewind":
            raise LoadmasterError(
                "games that rewind can't be tried one after another",
                object="backup",
                remedy="use backup = 'retroactive'",
            )

    def _search(self, meter: Meter, problem: MallocGame) -> bool:
        simple = np.array([[DROP] * problem.moves, [NO_COPY] * problem.moves], dtype=np.int8)
        meter.evaluate_many(simple)
        games = Games(problem, 1, threads=1)
        open_batches = [np.empty((1, 0), dtype=np.int8)]
        while open_batches and not meter.exhausted:
            batch = open_batches.pop()
            worth = _least(problem.model, batch) < _known(meter)
            batch = batch[worth]
            if not len(batch):
                continue
            games.native.reset(len(batch), 1)
            games.replay(batch)
            if batch.shape[1] == problem.moves:
                meter.take_many(games.judged()[0], batch.__getitem__)
                continue
            parent, action = np.nonzero(games.masks())
            children = np.concatenate([batch[parent], action[:, None].astype(np.int8)], axis=1)
            # The last batch is taken up first: that of the smallest bounds.
            order = np.argsort(-_least(problem.model, children), kind="stable")
            starts = range(0, len(order), BATCH)
            open_batches += [children[order[begin : begin + BATCH]] for begin in starts]
        # A search that ends because nothing can be better is complete as well.
        return not open_batches or meter.optimal


def _known(meter: Meter) -> int:
    assert meter.best_value is not None
    return meter.best_value


def _least(model: GameModel, moves: Int8) -> Int64:
    """[B] no game that begins with moves [B, d] takes less: what was dropped stays slow; what is
    fast may be dropped by a later dead end; what is open may be either."""
    count, depth = moves.shape
    least = np.zeros((count, model.sites), dtype=np.int64)
    if not model.parallel:
        least[:] = np.minimum(model.site_slow, model.site_fast)
    least[:, :depth] = np.where(moves == DROP, model.site_slow[:depth], least[:, :depth])
    sums = np.concatenate([np.zeros((count, 1), dtype=np.int64), least.cumsum(axis=1)], axis=1)
    memory = model.base_slow + np.diff(sums[:, model.site_start])
    small, large = np.minimum(model.compute, memory), np.maximum(model.compute, memory)
    body = large + -((-small * model.overlap) // 10**6)
    total: Int64 = (np.maximum(1, model.launch + body) * model.repeat).sum(axis=1)
    return total
