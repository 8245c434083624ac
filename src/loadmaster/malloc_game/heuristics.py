"""White-box baselines of the MallocGame: each makes one list of moves and submits it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from loadmaster.malloc_game.games import COPY, DROP, NO_COPY, neighbours, site_gains
from loadmaster.malloc_game.model import GameModel
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.solver import Meter, Solution, State

Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]


class _OneGame(ABC):
    """Makes moves and submits them."""

    name: str
    problem_kind = "malloc-game"
    deterministic = True

    @abstractmethod
    def make(self, problem: MallocGame) -> Int8:
        """[N] preferred moves."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if not meter.exhausted:
            meter.evaluate(self.make(problem))
        return meter.solution(white_box=True)


class AllSlow(_OneGame):
    name = "all-slow"
    summary = "everything stays in slow memory (white box)"

    def make(self, problem: MallocGame) -> Int8:
        return np.full(problem.moves, DROP, dtype=np.int8)


class GreedyOrder(_OneGame):
    """In program order: NoCopy if legal, else Copy, else Drop. `gain`: only where a fast access
    saves time by itself, so that nothing is moved for nothing."""

    name = "greedy-order"
    summary = "in program order: stay, else copy, else drop (white box)"

    def __init__(self, gain: bool = False) -> None:
        self.gain = gain
        self.switches = {"gain": gain}

    def make(self, problem: MallocGame) -> Int8:
        moves = np.full(problem.moves, NO_COPY, dtype=np.int8)
        if self.gain:
            moves[site_gains(problem.model) <= 0] = DROP
        return moves


class GreedyDensity(_OneGame):
    """Segments, from a site of a tensor to its next one, by time saved per byte and second of
    residency: each is taken if its bytes fit beside those taken before. A tensor that comes from
    slow memory has a segment as long as its copy takes."""

    name = "greedy-density"
    summary = "segments by time saved per byte and second of residency (white box)"

    def make(self, problem: MallocGame) -> Int8:
        model = problem.model
        begin, stays = _segments(model)
        gains, size = site_gains(model), model.tensors.size[model.site_tensor]
        clock = np.concatenate([[0], np.cumsum(model.all_slow * model.repeat)])
        held = size * np.maximum(1, clock[model.site_step + 1] - clock[begin])
        moves = np.full(problem.moves, DROP, dtype=np.int8)
        used = np.zeros(model.steps, dtype=np.int64)
        for site in np.argsort(-gains / held, kind="stable").tolist():
            window = slice(int(begin[site]), int(model.site_step[site]) + 1)
            if gains[site] <= 0 or int(used[window].max()) + int(size[site]) > model.capacity:
                continue
            used[window] += size[site]
            moves[site] = NO_COPY if stays[site] else COPY
        return _linked(model, moves)


def _segments(model: GameModel) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """([N] first step of the segment that ends at each site, [N] whether it begins at a site)."""
    before, _ = neighbours(model)
    begin, stays = model.site_step.copy(), model.site_write != 0
    supply = np.concatenate([[0], np.cumsum(model.all_slow)])
    for site in np.flatnonzero(model.site_write == 0).tolist():
        step, earlier = int(model.site_step[site]), int(before[site])
        need = int(model.tensors.copy_in[model.site_tensor[site]])
        start = int(np.searchsorted(supply, supply[step] - max(0, need), side="right")) - 1
        if earlier >= 0 and model.site_step[earlier] >= start:
            begin[site], stays[site] = model.site_step[earlier], True
        else:
            begin[site] = max(0, min(start, step))
    return begin, stays


def _linked(model: GameModel, moves: Int8) -> Int8:
    """A stay is only possible after a fast site, so the site before it is kept fast too."""
    before, _ = neighbours(model)
    for site in np.flatnonzero(moves == NO_COPY)[::-1].tolist():
        earlier = int(before[site])
        if earlier >= 0 and moves[earlier] == DROP:
            moves[earlier] = NO_COPY if model.site_write[earlier] else COPY
    return moves
