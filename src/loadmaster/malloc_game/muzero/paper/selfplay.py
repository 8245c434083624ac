"""Self-play: many games at once, of one or of several programs, one search a move for all of them.

A game is played from its start, or it begins in the middle of a known one (`Opening`): the moves
before are as they were there, a window of moves is searched, and what follows is as near to the known
game as is legal, without search. Games of several programs step together; those that are over earlier
are searched on, and what the search says of them is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from loadmaster.host import cores
from loadmaster.malloc_game.games import NO_COPY, Games, seen_arrays
from loadmaster.malloc_game.muzero.paper.network import Network
from loadmaster.malloc_game.muzero.paper.replay import (
    Array,
    ProgramReplay,
    Record,
    Rng,
    empty_record,
    helpers,
    unit_ps,
)
from loadmaster.malloc_game.muzero.paper.search import Found, Search
from loadmaster.malloc_game.problem import MallocGame


class Style(NamedTuple):
    """How moves are chosen."""

    search: Search
    simulations: int
    noise: float
    """Of the choice; none in a program's first game if `one_calm`."""
    one_calm: bool = False


class Opening(NamedTuple):
    """Games of one program that begin together."""

    problem: MallocGame
    rows: int
    start: int = 0
    """The first move that is searched."""
    known: Record | None = None
    """[rows] games that they are like, before the window and, as far as is legal, after it."""
    times: Array | None = None
    """[rows] judged times of those"""

    def length(self, window: int) -> int:
        """Moves that are searched; a `window` of 0 has no end."""
        left = self.problem.moves - self.start
        return min(window or left, left)


class Played(NamedTuple):
    """Games of one opening."""

    record: Record
    first: int
    """Moves [first, last) were searched."""
    last: int


def play(
    openings: Sequence[Opening],
    window: int,
    style: Style,
    network: Network,
    key: jax.Array,
    stopped: Callable[[], bool],
) -> tuple[list[Played], int, bool]:
    """(finished games of all openings; moves searched; whether all that were to be). If `stopped` says
    so, games are ended without search."""
    parallel = _ParallelGames(openings, style)
    longest, moves = max(opening.length(window) for opening in openings), 0
    for move, part in enumerate(jax.random.split(key, longest)):
        moves += parallel.move(parallel.look(network, part))
        if stopped() and move + 1 < longest:
            return parallel.end(), moves, False
    return parallel.end(), moves, True


def split_evenly(rows: int, hands: int) -> list[int]:
    """As evenly as can be, and at least one each."""
    return [max(1, rows // hands + (number < rows % hands)) for number in range(hands)]


class _OpeningGames:
    """The games of one opening."""

    def __init__(self, opening: Opening, rows: slice, alone: bool) -> None:
        self.opening, self.rows, self.at = opening, rows, opening.start
        problem, known = opening.problem, opening.known
        self.games: Games = problem.games(opening.rows, None if alone else 1)
        self.record = empty_record(opening.rows, problem.moves)
        if known is not None and opening.start:
            for mine, its in zip(self.record, known, strict=True):
                mine[:, : opening.start] = its[:, : opening.start]
            self.games.replay(known.actions[:, : opening.start])

    def move(self, action: Array, weights: Array, value: Array, legal: Array) -> int:
        problem, record, rows = self.opening.problem, self.record, self.rows
        if self.at >= problem.moves:
            return 0
        record.actions[:, self.at], record.policy[:, self.at] = action[rows], weights[rows]
        record.value[:, self.at], record.legal[:, self.at] = value[rows], legal[rows]
        record.rewards[:, self.at] = self.games.step(action[rows]) / unit_ps(problem)
        self.at += 1
        return self.opening.rows

    def end(self) -> Played:
        """What is left is played as in the known game, or without copies where there is none."""
        problem, record, known = self.opening.problem, self.record, self.opening.known
        if self.at < problem.moves:
            rest = slice(self.at, None)
            preferred = np.full_like(record.actions, NO_COPY) if known is None else known.actions
            actions, earned, legal = self.games.finish(preferred)
            record.actions[:, rest], record.legal[:, rest] = actions[:, rest], legal[:, rest]
            record.rewards[:, rest] = earned[:, rest] / unit_ps(problem)
            record.policy[:, rest] = np.eye(3, dtype=np.float16)[actions[:, rest]]
        return Played(record, self.opening.start, self.at)


class _ParallelGames:
    """Games of all openings that are searched in one batch."""

    def __init__(self, openings: Sequence[Opening], style: Style) -> None:
        self.style, self.at = style, 0
        counts = [opening.rows for opening in openings]
        edges = np.concatenate([[0], np.cumsum(counts)]).tolist()
        alone = len(openings) < cores()
        self.openings = [
            _OpeningGames(opening, slice(edges[i], edges[i + 1]), alone) for i, opening in enumerate(openings)
        ]
        self.each = map if alone else helpers().map
        self.seen = seen_arrays(edges[-1])
        left = [opening.problem.moves - opening.start for opening in openings]
        self.left = np.repeat(left, counts).astype(np.int32)
        self.noise = np.full((edges[-1], 1), style.noise, np.float32)
        if style.one_calm:
            self.noise[edges[:-1]] = 0

    def look(self, network: Network, key: jax.Array) -> Found:
        """Search all positions."""

        def observe(opened: _OpeningGames) -> None:
            opened.games.observe({name: array[opened.rows] for name, array in self.seen.items()})

        list(self.each(observe, self.openings))
        masks = np.where(self.left[:, None] > self.at, self.seen["mask"], 1)
        seen = {name: array for name, array in self.seen.items() if name != "mask"}
        # Not copied: nothing writes over these arrays before the search is done.
        seen = jax.device_put(seen)
        alike = len({id(opened.opening.problem) for opened in self.openings}) == 1
        played = np.concatenate([opened.record.actions for opened in self.openings]) if alike else None
        return self.style.search(
            network,
            key,
            seen,
            np.maximum(self.left - self.at, 0),
            masks,
            simulations=self.style.simulations,
            gumbel_scale=self.noise,
            played=played,
        )

    def move(self, found: Found) -> int:
        """Make the moves that were found; how many."""
        action = np.asarray(found.action).astype(np.int8)
        weights, value, legal = (np.asarray(found.weights), np.asarray(found.value), self.seen["mask"])
        self.at += 1
        return sum(self.each(lambda opened: opened.move(action, weights, value, legal), self.openings))

    def end(self) -> list[Played]:
        return list(self.each(_OpeningGames.end, self.openings))


def masks_or_all(legal: Array) -> Array:
    """Masks [..., 3] with every move where none is legal: the game is over there."""
    return legal | ~legal.any(axis=-1, keepdims=True)


# Where the games of a batch begin: at the start, or at a window of one of the best games so far.

LENGTH_RATIO = 1.5
"""Most that the longest game of a bucket may have of the shortest's moves, unless it has few."""
FEW = 64
MOST = 32
"""Programs of one batch: each costs time that does not depend on how many of its games there are."""


def whole_games(problems: Sequence[MallocGame], rows: int) -> list[Opening]:
    """From the start, of each problem about as many."""
    return [
        Opening(problem, count)
        for problem, count in zip(problems, split_evenly(rows, len(problems)), strict=True)
    ]


def windows(programs: Sequence[ProgramReplay], rows: int, window: int, rng: Rng) -> list[Opening]:
    """Anywhere in the best games, the better ones more often; at many places of few programs."""
    counts = [
        (program, part)
        for program, count in zip(programs, split_evenly(rows, len(programs)), strict=True)
        for part in split_evenly(count, min(count, max(1, MOST // len(programs))))
    ]
    return [_window(program, count, window, rng) for program, count in counts]


def _window(program: ProgramReplay, count: int, window: int, rng: Rng) -> Opening:
    moves = program.problem.moves
    # Moves near the ends are in as many windows as others.
    start = int(np.clip(rng.integers(1 - window, moves), 0, max(0, moves - window)))
    share = 1 / (1 + np.arange(len(program.best_times)))
    rows = rng.choice(len(share), count, p=share / share.sum())
    return Opening(program.problem, count, start, program.best.take(rows), program.best_times[rows])


class Gain(NamedTuple):
    """A window of a game that was better than the game it began in."""

    saved: int
    first: int
    last: int
    actions: Array
    """int8[N] of the whole game"""


def combine_gains(best: Array, gains: Sequence[Gain]) -> list[Array]:
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
        if found and moves[number] <= max(FEW, LENGTH_RATIO * moves[found[-1][0]]):
            found[-1].append(number)
        else:
            found.append([number])
    return found
