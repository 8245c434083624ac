"""Games to learn from. A game is its moves, what they earned, which were legal, and what its searches
said; what was seen is made again from the moves, so that many games fit in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.muzero.settings import Settings
from loadmaster.solvers.solver import State

Array = npt.NDArray[Any]
Rng = np.random.Generator
FLOOR = 0.1
"""Of the mean priority, added to each: bounds how much the rarest position weighs."""
RANKED = 512
"""Games among which a return is ranked."""


class Record(NamedTuple):
    """B games of one program, N moves each."""

    actions: Array
    """int8[B, N]"""
    rewards: Array
    """float32[B, N] shares of what can be saved"""
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


def empty_record(games: int, moves: int) -> Record:
    return Record(
        np.zeros((games, moves), np.int8), np.zeros((games, moves), np.float32),
        np.zeros((games, moves, 3), np.bool_), np.zeros((games, moves, 3), np.float16),
        np.zeros((games, moves), np.float32),
    )  # fmt: skip


def played_out(problem: MallocGame, preferences: Array) -> Record:
    """The games that prefer the moves [B, N], as if a search had been sure of each of them."""
    games = problem.games(len(preferences))
    record = empty_record(len(preferences), problem.moves)
    record.actions[:] = problem.play(preferences).actions
    for move in range(problem.moves):
        record.legal[:, move] = games.masks()
        record.rewards[:, move] = games.step(record.actions[:, move]) / problem.scale_ps
    record.policy[:] = np.eye(3, dtype=np.float16)[record.actions]
    record.value[:] = returns(record)
    return record


def returns(record: Record, td_steps: int = 0) -> Array:
    """[B, N] value targets: all that was earned from each move on; with `td_steps` = n > 0, of the
    next n moves, and what the search expected after them."""
    to_end = np.cumsum(record.rewards[:, ::-1], axis=1, dtype=np.float64)[:, ::-1]
    if 0 < td_steps < to_end.shape[1]:
        later = record.value[:, td_steps:] - to_end[:, td_steps:]
        to_end = to_end.copy()
        to_end[:, :-td_steps] += later
    return to_end.astype(np.float32)


def ranked(record: Record, recent: Array) -> Record:
    """With half the rank of its return among `recent` ones, in [0, 1/2], as a game's only reward."""
    total = record.rewards.sum(axis=1, dtype=np.float64)
    rewards = np.zeros_like(record.rewards)
    rewards[:, -1] = 0.5 * (recent[None] <= total[:, None] + 1e-9).mean(axis=1)
    return record._replace(rewards=rewards)


class Shelf:
    """The newest games of one program, in a ring, and its best ones."""

    def __init__(self, problem: MallocGame, capacity: int, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        self.ring = empty_record(capacity, problem.moves)
        self.target = np.zeros((capacity, problem.moves), np.float32)
        self.stored = 0
        """Games ever stored."""
        self.best = empty_record(0, problem.moves)
        self.best_times = np.zeros(0, np.int64)
        self.recent = np.zeros(0)
        """The last returns."""

    @property
    def best_target(self) -> Array:
        """[best, N]: what was really earned from each move on."""
        return returns(self.best)

    @property
    def capacity(self) -> int:
        return len(self.target)

    @property
    def filled(self) -> int:
        return min(self.stored, self.capacity)

    def store(self, record: Record, times: Array) -> None:
        """Finished games and their judged times [B]."""
        total = record.rewards.sum(axis=1, dtype=np.float64)
        self.recent = np.concatenate([self.recent, total])[-RANKED:]
        if self.settings.rank_returns:
            record = ranked(record, self.recent)
        at = (self.stored + np.arange(len(times))) % self.capacity
        for kept, new in zip(self.ring, record, strict=True):
            kept[at] = new
        self.target[at] = returns(record, self.settings.td_steps)
        self.stored += len(times)
        self._keep_best(record, times)

    def _keep_best(self, record: Record, times: Array) -> None:
        both = self.best.join(record.take(np.argsort(times, kind="stable")))
        all_times = np.concatenate([self.best_times, np.sort(times, kind="stable")])
        first = np.sort(np.unique(both.actions, axis=0, return_index=True)[1])
        order = first[np.argsort(all_times[first], kind="stable")][: self.settings.best_games]
        self.best, self.best_times = both.take(order), all_times[order]

    def priorities(self) -> Array:
        """[filled * N] chances to be drawn, up to a factor."""
        if not self.settings.prioritised:
            return np.ones(self.filled * self.problem.moves)
        wrong = np.abs(self.ring.value[: self.filled] - self.target[: self.filled]).ravel()
        chances: Array = np.maximum(wrong + FLOOR * wrong.mean(dtype=np.float64), 1e-6)
        return chances

    def arrays(self, ring: bool = True) -> State:
        """For a checkpoint; without `ring` only what is small."""
        kept = self.ring.take(slice(0, self.filled if ring else 0))
        return {
            "stored": np.array(self.stored if ring else 0), "recent": self.recent,
            "times": self.best_times,
            **{f"best.{name}": array for name, array in self.best._asdict().items()},
            **{f"ring.{name}": array for name, array in kept._asdict().items()},
        }  # fmt: skip

    def restore(self, state: State) -> None:
        self.stored, self.recent = int(state["stored"]), np.array(state["recent"])
        self.best_times = np.array(state["times"])
        self.best = Record(*(np.array(state[f"best.{name}"]) for name in Record._fields))
        kept = Record(*(np.array(state[f"ring.{name}"]) for name in Record._fields))
        for room, array in zip(self.ring, kept, strict=True):
            room[: len(array)] = array
        self.target[: self.filled] = returns(kept, self.settings.td_steps)


class Picked(NamedTuple):
    """R positions of one draw: first those taught as they were played, then those searched anew."""

    shelf: Array
    best: Array
    """bool: of the shelf's best games"""
    game: Array
    move: Array
    weight: Array
    """float32, to undo what priorities do to the mean"""


class Replay:
    """All shelves; each program that has games is drawn as often as any other."""

    def __init__(self, problems: Sequence[MallocGame], settings: Settings) -> None:
        each = max(1, settings.replay_games // len(problems))
        self.settings = settings
        self.shelves = [Shelf(problem, each, settings) for problem in problems]

    def counts(self, batch: int) -> tuple[int, int, int]:
        """(as played, best, reanalysed) positions of a batch."""
        best, again = round(self.settings.best * batch), round(self.settings.reanalysed * batch)
        again = min(again, batch - best)
        return batch - best - again, best, again

    def draw(self, rng: Rng, updates: int, batch: int) -> Picked:
        """[updates, batch] positions: as played, then best, then reanalysed ones."""
        fresh, best, _ = self.counts(batch)
        known = [number for number, shelf in enumerate(self.shelves) if shelf.stored]
        picked = Picked(
            shelf=np.array(known)[rng.integers(0, len(known), (updates, batch))],
            best=np.zeros((updates, batch), np.bool_),
            game=np.zeros((updates, batch), np.int64), move=np.zeros((updates, batch), np.int64),
            weight=np.ones((updates, batch), np.float32),
        )  # fmt: skip
        column = np.arange(batch)
        picked.best[:] = (column >= fresh) & (column < fresh + best)
        for number in known:
            shelf, mine = self.shelves[number], picked.shelf == number
            moves = shelf.problem.moves
            for is_best in (False, True):
                where = mine & (picked.best == is_best)
                count = int(where.sum())
                if not count:
                    continue
                if is_best:
                    flat = rng.integers(0, len(shelf.best_times) * moves, count)
                else:
                    chance = np.cumsum(shelf.priorities())
                    flat = np.searchsorted(chance, rng.random(count) * chance[-1], side="right")
                    flat = np.minimum(flat, len(chance) - 1)
                    each = np.diff(chance, prepend=0.0)[flat]
                    picked.weight[where] = chance[-1] / len(chance) / each
                picked.game[where], picked.move[where] = np.divmod(flat, moves)
        return picked
