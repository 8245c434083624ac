"""Where the games of a batch begin: at the start, or at a window of one of the best games so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.muzero.replay import Array, Rng, Shelf
from loadmaster.solvers.muzero.selfplay import Opening, dealt

SPREAD = 1.5
"""Most that the longest game of a bucket may have of the shortest's moves, unless it has few."""
FEW = 64
MOST = 32
"""Programs of one batch: each costs time that does not depend on how many of its games there are."""


def whole_games(problems: Sequence[MallocGame], rows: int) -> list[Opening]:
    """From the start, of each problem about as many."""
    return [
        Opening(problem, count) for problem, count in zip(problems, dealt(rows, len(problems)), strict=True)
    ]


def windows(shelves: Sequence[Shelf], rows: int, window: int, rng: Rng) -> list[Opening]:
    """Anywhere in the best games, the better ones more often; at many places of few programs."""
    counts = [
        (shelf, part)
        for shelf, count in zip(shelves, dealt(rows, len(shelves)), strict=True)
        for part in dealt(count, min(count, max(1, MOST // len(shelves))))
    ]
    return [_window(shelf, count, window, rng) for shelf, count in counts]


def _window(shelf: Shelf, count: int, window: int, rng: Rng) -> Opening:
    moves = shelf.problem.moves
    # Moves near the ends are in as many windows as others.
    start = int(np.clip(rng.integers(1 - window, moves), 0, max(0, moves - window)))
    chance = 1 / (1 + np.arange(len(shelf.best_times)))
    rows = rng.choice(len(chance), count, p=chance / chance.sum())
    return Opening(shelf.problem, count, start, shelf.best.take(rows), shelf.best_times[rows])


class Gain(NamedTuple):
    """A window of a game that was better than the game it began in."""

    saved: int
    first: int
    last: int
    actions: Array
    """int8[N] of the whole game"""


def crossed(best: Array, gains: Sequence[Gain]) -> list[Array]:
    """The best game with several windows at once that each made some game better: the best 2, 4, 8 …
    of those that do not overlap."""
    chosen: list[Gain] = []
    for gain in sorted(gains, key=lambda gain: -gain.saved):
        if all(gain.last <= other.first or other.last <= gain.first for other in chosen):
            chosen.append(gain)
    sizes = [2**power for power in range(1, 6) if 2**power < len(chosen)] + [len(chosen)]
    found = []
    for size in sizes if len(chosen) > 1 else []:
        moves = best.copy()
        for gain in chosen[:size]:
            moves[gain.first : gain.last] = gain.actions[gain.first : gain.last]
        found.append(moves)
    return found


def buckets(moves: Sequence[int]) -> list[list[int]]:
    """Programs whose games are of about the same length, by number: they step together."""
    found: list[list[int]] = []
    for number in np.argsort(moves, kind="stable").tolist():
        if found and moves[number] <= max(FEW, SPREAD * moves[found[-1][0]]):
            found[-1].append(number)
        else:
            found.append([number])
    return found
