"""Games to learn from. A game is its moves, what they earned, which were legal, and what its searches
said; what was seen is made again from the moves, so that many games fit in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.host import cores
from loadmaster.learn.session import Ring
from loadmaster.malloc_game.muzero.paper import Settings
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.solver import State

Array = npt.NDArray[Any]
Rng = np.random.Generator
FLOOR = 0.1
"""Of the mean priority, added to each: bounds how much the rarest position weighs."""


class Record(NamedTuple):
    """B games of one program, N moves each."""

    actions: Array
    """int8[B, N]"""
    rewards: Array
    """float32[B, N] in units of `unit_ps`"""
    legal: Array
    """bool[B, N, 3]"""
    policy: Array
    """float16[B, N, 3] what the search would play"""
    value: Array
    """float32[B, N] what the search expected from there on"""

    def take(self, rows: Any) -> Record:
        return Record(*(array[rows] for array in self))

    def join(self, other: Record) -> Record:
        return Record(*map(np.concatenate, zip(self, other, strict=True)))


@lru_cache(maxsize=1)
def helpers() -> ThreadPoolExecutor:
    """Threads that work for one program each, where there are many."""
    return ThreadPoolExecutor(cores())


def unit_ps(problem: MallocGame) -> float:
    """What a move of an optimal game earns in the mean: rewards of all programs are of one size."""
    return problem.scale_ps / problem.moves


def empty_record(games: int, moves: int) -> Record:
    """Zeros for so many games of so many moves, to be filled in as they are played."""
    return Record(
        np.zeros((games, moves), np.int8),
        np.zeros((games, moves), np.float32),
        np.zeros((games, moves, 3), np.bool_),
        np.zeros((games, moves, 3), np.float16),
        np.zeros((games, moves), np.float32),
    )


def played_out(problem: MallocGame, preferences: Array) -> Record:
    """The games that prefer the moves [B, N], as if a search had been sure of each of them."""
    games = problem.games(len(preferences))
    actions, earned, legal = games.finish(preferences)
    record = Record(
        actions.astype(np.int8),
        (earned / unit_ps(problem)).astype(np.float32),
        legal.astype(np.bool_),
        np.eye(3, dtype=np.float16)[actions],
        np.zeros(actions.shape, np.float32),
    )
    return record._replace(value=returns(record))


def returns(record: Record, discount: float = 1.0) -> Array:
    """[B, N] value targets: all that was earned from each move on, what comes later for less."""
    to_end = record.rewards.astype(np.float64)
    for move in range(to_end.shape[1] - 2, -1, -1):
        to_end[:, move] += discount * to_end[:, move + 1]
    return to_end.astype(np.float32)


def choices(record: Record) -> Array:
    """bool[B, N] where more than one move is legal; in a game that has no such move, everywhere."""
    free: Array = record.legal.sum(axis=-1) > 1
    free |= ~free.any(axis=1, keepdims=True)
    return free


class ProgramReplay(Ring):
    """The newest games of one program, in a ring, and its best ones."""

    def __init__(self, problem: MallocGame, capacity: int, settings: Settings) -> None:
        super().__init__(capacity)
        self.problem, self.settings = problem, settings
        self.games = empty_record(capacity, problem.moves)
        self.target = np.zeros((capacity, problem.moves), np.float32)
        self.searched = np.zeros((capacity, 2), np.int64)
        """Moves [first, last) of each: only they are drawn, and of them those that have a choice."""
        self.choice = np.zeros((capacity, problem.moves), np.bool_)
        self.best = empty_record(0, problem.moves)
        self.best_times = np.zeros(0, np.int64)

    @property
    def best_target(self) -> Array:
        """[best, N]: what was really earned from each move on."""
        return returns(self.best, self.settings.discount)

    def add(self, record: Record, times: Array, first: int = 0, last: int | None = None) -> None:
        """Finished games, of which moves [first, last) were searched, and their judged times [B]."""
        self.store(
            len(times),
            *zip(self.games, record, strict=True),
            (self.target, returns(record, self.settings.discount)),
            (self.searched, (first, self.problem.moves if last is None else last)),
            (self.choice, choices(record)),
        )
        self._keep_best(record, times)

    def _keep_best(self, record: Record, times: Array) -> None:
        both = self.best.join(record.take(np.argsort(times, kind="stable")))
        all_times = np.concatenate([self.best_times, np.sort(times, kind="stable")])
        first = np.sort(np.unique(both.actions, axis=0, return_index=True)[1])
        order = first[np.argsort(all_times[first], kind="stable")][: self.settings.best_games]
        self.best, self.best_times = both.take(order), all_times[order]

    def priorities(self) -> Array:
        """[filled * N] how likely each position is to be drawn, up to a factor."""
        move = np.arange(self.problem.moves)
        searched = self.searched[: self.filled, :, None]
        drawn = (searched[:, 0] <= move) & (move < searched[:, 1]) & self.choice[: self.filled]
        if not self.settings.prioritised:
            return drawn.astype(np.float64).ravel()
        wrong = np.abs(self.games.value[: self.filled] - self.target[: self.filled])
        mean = wrong.mean(where=drawn, dtype=np.float64)
        priority: Array = np.where(drawn, np.maximum(wrong + FLOOR * mean, 1e-6), 0.0).ravel()
        return priority

    def arrays(self, full: bool = True) -> State:
        """For a checkpoint; without `full` only what is small."""
        kept = self.games.take(slice(0, self.filled if full else 0))
        return {
            "stored": np.array(self.stored if full else 0),
            "times": self.best_times,
            "searched": self.searched[: len(kept.value)],
            **{f"best.{name}": array for name, array in self.best._asdict().items()},
            **{f"ring.{name}": array for name, array in kept._asdict().items()},
        }

    def restore(self, state: State) -> None:
        self.stored = int(state["stored"])
        self.best_times = np.array(state["times"])
        self.best = Record(*(np.array(state[f"best.{name}"]) for name in Record._fields))
        kept = Record(*(np.array(state[f"ring.{name}"]) for name in Record._fields))
        for room, array in zip(self.games, kept, strict=True):
            room[: len(array)] = array
        self.searched[: len(kept.value)], self.choice[: len(kept.value)] = (state["searched"], choices(kept))
        self.target[: self.filled] = returns(kept, self.settings.discount)


class Picked(NamedTuple):
    """R positions of one draw: first those taught as they were played, then those searched anew."""

    program: Array
    best: Array
    """bool: of the program's best games"""
    game: Array
    move: Array
    weight: Array
    """float32, to undo what priorities do to the mean"""


class Replay:
    """The games of all programs."""

    def __init__(self, problems: Sequence[MallocGame], settings: Settings) -> None:
        each = max(1, settings.replay_games // len(problems))
        self.settings = settings
        self.programs = [ProgramReplay(problem, each, settings) for problem in problems]

    def counts(self, batch: int) -> tuple[int, int, int]:
        """(as played, best, reanalysed) positions of a batch."""
        best, again = round(self.settings.best * batch), round(self.settings.reanalysed * batch)
        again = min(again, batch - best)
        return batch - best - again, best, again

    def draw(self, rng: Rng, updates: int, batch: int) -> Picked:
        """[updates, batch] positions: as played, then best, then reanalysed ones."""
        fresh, best, _ = self.counts(batch)
        known = [number for number, program in enumerate(self.programs) if program.stored]
        # Between as often as any other program and as often as any other position.
        share = np.sqrt([self.programs[number].problem.moves for number in known])
        picked = Picked(
            program=rng.choice(known, (updates, batch), p=share / share.sum()),
            best=np.zeros((updates, batch), np.bool_),
            game=np.zeros((updates, batch), np.int64),
            move=np.zeros((updates, batch), np.int64),
            weight=np.ones((updates, batch), np.float32),
        )
        column = np.arange(batch)
        picked.best[:] = (column >= fresh) & (column < fresh + best)
        for number in known:
            program, mine = self.programs[number], picked.program == number
            moves = program.problem.moves
            for is_best in (False, True):
                where = mine & (picked.best == is_best)
                count = int(where.sum())
                if not count:
                    continue
                if is_best:
                    flat = rng.choice(choices(program.best).ravel().nonzero()[0], count)
                else:
                    priority = program.priorities()
                    upto = np.cumsum(priority)
                    flat = np.searchsorted(upto, rng.random(count) * upto[-1], side="right")
                    flat = np.minimum(flat, priority.nonzero()[0][-1])
                    each = np.diff(upto, prepend=0.0)[flat]
                    picked.weight[where] = upto[-1] / np.count_nonzero(priority) / each
                picked.game[where], picked.move[where] = np.divmod(flat, moves)
        return picked
