"""Self-play: many games at once, of one or of several programs, one search a move for all of them.

Games of several programs step together; those of the shorter ones are over earlier, and what the
search says of them then is thrown away. On an accelerator the games are dealt to two lanes, so that
one searches while the native game moves and observes the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from loadmaster.problems.malloc_game.games import seen_arrays
from loadmaster.problems.malloc_game.moves import NO_COPY
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.muzero.network import Network
from loadmaster.solvers.muzero.replay import Array, Record, empty_record
from loadmaster.solvers.muzero.search import Found


class Searching(Protocol):
    """`Search` or `TrueSearch`."""

    def __call__(self, network: Network, key: jax.Array, observations: Any, moves_left: Any,
                 masks: Any, *, simulations: int, gumbel_scale: Any = 1.0,
                 played: Any = None) -> Found: ...  # fmt: skip


class Style(NamedTuple):
    """How moves are chosen."""

    search: Searching
    simulations: int
    noise: float
    """Of the choice; none in a program's first game if `one_calm`."""
    one_calm: bool = False


def play(problems: Sequence[MallocGame], rows: int, style: Style, network: Network, key: jax.Array,
         stopped: Callable[[], bool], lanes: int = 1) -> tuple[list[Record], int]:  # fmt: skip
    """(finished games of each problem, moves made): `rows` games, dealt out evenly. If `stopped`
    says so they are ended without search, NoCopy where that is legal."""
    lanes = max(1, min(lanes, rows // len(problems)))
    tables = [_Lane(problems, dealt(rows, lanes)[lane], style._replace(one_calm=style.one_calm and not lane))
              for lane in range(lanes)]  # fmt: skip
    longest, moves = max(problem.moves for problem in problems), 0
    keys = jax.random.split(key, longest * lanes)
    found = [table.look(network, keys[lane]) for lane, table in enumerate(tables)]
    for move in range(longest):
        for lane, table in enumerate(tables):
            moves += table.move(found[lane])
            if move + 1 < longest:
                found[lane] = table.look(network, keys[(move + 1) * lanes + lane])
        if stopped():
            for table in tables:
                table.end()
            break
    records = [table.records for table in tables]
    return [_joined([mine[number] for mine in records]) for number in range(len(problems))], moves


def dealt(rows: int, hands: int) -> list[int]:
    """As evenly as can be, and at least one each."""
    return [max(1, rows // hands + (number < rows % hands)) for number in range(hands)]


def _joined(parts: Sequence[Record]) -> Record:
    return Record(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class _Lane:
    """Games of all problems that are searched in one batch."""

    def __init__(self, problems: Sequence[MallocGame], rows: int, style: Style) -> None:
        self.problems, self.style, self.at = problems, style, 0
        counts = dealt(rows, len(problems))
        self.games = [problem.games(count) for problem, count in zip(problems, counts, strict=True)]
        edges = np.concatenate([[0], np.cumsum(counts)])
        self.slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
        self.seen = seen_arrays(int(edges[-1]))
        self.records = [empty_record(count, problem.moves) for problem, count in zip(problems, counts, strict=True)]  # fmt: skip
        self.left = np.repeat([problem.moves for problem in problems], counts).astype(np.int32)
        self.noise = np.full((int(edges[-1]), 1), style.noise, np.float32)
        if style.one_calm:
            self.noise[edges[:-1]] = 0

    def look(self, network: Network, key: jax.Array) -> Found:
        """Begin to search all positions; does not wait for the end."""
        for games, mine in zip(self.games, self.slices, strict=True):
            games.observe({name: array[mine] for name, array in self.seen.items()})
        masks = np.where(self.left[:, None] > self.at, self.seen["mask"], 1)
        seen = {name: array for name, array in self.seen.items() if name != "mask"}
        # Handed over as copies: the next look writes over these arrays while a search may run.
        seen = jax.tree.map(lambda array: jax.numpy.array(array, copy=True), seen)
        played = self.records[0].actions.copy() if len(self.problems) == 1 else None
        return self.style.search(
            network, key, seen, np.maximum(self.left - self.at, 0), masks,
            simulations=self.style.simulations, gumbel_scale=self.noise, played=played,
        )  # fmt: skip

    def move(self, found: Found) -> int:
        """Make the moves that were found; how many."""
        action = np.asarray(found.action).astype(np.int8)
        weights, value = np.asarray(found.weights), np.asarray(found.value)
        made = 0
        for games, mine, record in zip(self.games, self.slices, self.records, strict=True):
            if self.at >= games.problem.moves:
                continue
            record.actions[:, self.at], record.policy[:, self.at] = action[mine], weights[mine]
            record.value[:, self.at] = value[mine]
            record.legal[:, self.at] = self.seen["mask"][mine]
            record.rewards[:, self.at] = games.step(action[mine]) / games.problem.scale_ps
            made += games.count
        self.at += 1
        return made

    def end(self) -> None:
        """Finish without search; such games are not for learning."""
        for record in self.records:
            record.actions[:, self.at :] = NO_COPY


def masks_or_all(legal: Array) -> Array:
    """Masks [..., 3] with every move where none is legal: the game is over there."""
    return legal | ~legal.any(axis=-1, keepdims=True)
