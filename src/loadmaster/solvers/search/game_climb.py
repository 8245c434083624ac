"""Hill climbing in the MallocGame: at every site each other legal move is tried in the game itself, the
best changes are made together, and so on until none helps; then the best game is shaken and climbed again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.problems.malloc_game.moves import NO_COPY
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.heuristic.msa import Assigner, switches_of
from loadmaster.solvers.search.game import Rng, _Search
from loadmaster.solvers.solver import Meter, State
from loadmaster.solvers.state import generator_state

Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]

STARTS = ("nocopy", "msa")
AT_ONCE = 256
"""Sites that are tried between two looks at the clock."""


class Standing(NamedTuple):
    """A game as it was played, and its time."""

    game: Int8
    value: int


class Change(NamedTuple):
    """Other moves that would each improve a game, the best first."""

    site: Int64
    move: Int8


class Climb(_Search):
    """`start`: 'nocopy', or 'msa' for the moves of memory space assignment. `least` and `most` are the
    shares of the moves that are changed at random when no single change helps any more."""

    name = "climb"
    summary = "hill climbing over moves, each of them tried in the game"

    def __init__(self, start: str = "nocopy", least: float = 0.01, most: float = 0.03) -> None:
        if start not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, not {start!r}")
        if not 0 < least <= most <= 1:
            raise ValueError("least and most must be shares, the one not above the other")
        self.start, self.least, self.most = start, least, most
        self.switches = {"start": start, "least": least, "most": most}

    def search(self, meter: Meter, problem: MallocGame, rng: Rng, state: State | None) -> None:
        if problem.switches()["backup"] == "rewind":
            raise LoadmasterError(
                "games that rewind can't be climbed",
                object="backup",
                number="rewind",
                remedy="use backup = 'retroactive'",
            )
        if state is None:
            here = _played(meter, problem, self._first(problem)[None])
            top, rounds = here, 0
        else:
            here = Standing(np.array(state["game"]), int(state["value"]))
            top = Standing(np.array(state["top"]), int(state["top_value"]))
            rounds = int(state["rounds"])
        while not meter.exhausted:
            changes = _improving(meter, problem, here)
            if changes is None:
                return
            if len(changes.site):
                tried = together(here.game, changes)
            else:  # a summit
                rounds += 1
                top = min(here, top, key=_value)
                tried = self._shaken(rng, top.game)[None]
            if (left := meter.evaluations_left) is not None and left < len(tried):
                if left:
                    _played(meter, problem, tried[:left])
                return
            here = _played(meter, problem, tried)
            meter.checkpoint(
                {
                    "rng": generator_state(rng),
                    "game": here.game,
                    "value": np.array(here.value),
                    "top": top.game,
                    "top_value": np.array(top.value),
                    "rounds": np.array(rounds),
                }
            )
            meter.progress(rounds=rounds, reward=(problem.all_slow_ps - here.value) / problem.scale_ps)

    def _first(self, problem: MallocGame) -> Int8:
        if self.start == "nocopy":
            return np.full(problem.moves, NO_COPY, dtype=np.int8)
        switches = switches_of("2023", {})
        assigner = Assigner(problem.program, problem.machine, problem.model, switches)
        return problem.moves_of(assigner.plan())

    def _shaken(self, rng: Rng, game: Int8) -> Int8:
        """With some moves changed, two at least where there are as many."""
        share = rng.uniform(self.least, self.most)
        count = min(len(game), max(2, round(share * len(game))))
        site = rng.choice(len(game), count, replace=False)
        shaken = game.copy()
        shaken[site] = (game[site] + rng.integers(1, 3, count)) % 3
        return shaken


def together(game: Int8, changes: Change) -> Int8:
    """[K, N] the game with the best 1, 2, 3, 4, 6, 8, 12, … of the changes, and with all of them."""
    most = len(changes.site)
    counts = {min(most, count << twice) for twice in range(most.bit_length()) for count in (2, 3)}
    tried = np.repeat(game[None], len(counts | {1}), axis=0)
    for row, count in zip(tried, sorted(counts | {1}), strict=True):
        row[changes.site[:count]] = changes.move[:count]
    return tried


def _improving(meter: Meter, problem: MallocGame, here: Standing) -> Change | None:
    """Every other legal move at every site; None if there was no time, or no budget, for all of them.
    Each is one evaluation."""
    gain = np.zeros((problem.moves, 3), np.int64)
    first = 0
    while first < problem.moves:
        if meter.exhausted:
            return None
        last = min(problem.moves, first + min(AT_ONCE, meter.evaluations_left or AT_ONCE))
        totals = problem.try_all(here.game[None], first, last)[0]
        totals[np.arange(last - first), here.game[first:last]] = -1  # known
        site, move = (totals >= 0).nonzero()
        value = totals[site, move]
        gain[first + site, move] = here.value - value
        left = meter.evaluations_left
        meter.take_many(value, lambda row: _changed(here.game, first + site[row], move[row]))  # noqa: B023
        if left is not None and left < len(value):
            return None
        first = last
    best, move = gain.max(axis=1), gain.argmax(axis=1).astype(np.int8)
    order = np.argsort(-best, kind="stable")
    order = order[best[order] > 0]
    return Change(order, move[order])


def _changed(game: Int8, site: int, move: int) -> Int8:
    changed = game.copy()
    changed[site] = move
    return changed


def _played(meter: Meter, problem: MallocGame, games: Int8) -> Standing:
    """The best of these games, as it was played."""
    played = problem.play(games)
    best = int(played.total.argmin())
    meter.take_many(played.total, played.actions.__getitem__)
    return Standing(played.actions[best], int(played.total[best]))


def _value(standing: Standing) -> int:
    return standing.value
