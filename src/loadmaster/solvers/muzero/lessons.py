"""From drawn positions to what the learner reads: targets are cut out of the stored games, what was
seen is made again by the native game, and the share to be reanalysed is searched anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from loadmaster.host import cores
from loadmaster.problems.malloc_game.games import Seen, seen_arrays
from loadmaster.solvers.muzero.learner import Lesson, unrolled
from loadmaster.solvers.muzero.network import Network
from loadmaster.solvers.muzero.replay import Array, Picked, Replay, helpers
from loadmaster.solvers.muzero.selfplay import Searching, masks_or_all
from loadmaster.solvers.muzero.settings import Settings

ONE_HOT = np.eye(3, dtype=np.float32)


class Prepared(NamedTuple):
    """U batches of R positions each, of which the last A are to be searched anew."""

    lesson: Lesson
    """Arrays [U, R, ...]"""
    left: Array
    """int32[U, A] moves left at those"""
    played: Array | None
    """int8[U, A, N] the games they are of; only where all are of one program"""


def prepare(replay: Replay, picked: Picked, settings: Settings) -> Prepared:
    """Everything that needs no network."""
    updates, rows = picked.shelf.shape
    fresh = replay.counts(rows)[0] if settings.reanalyse else rows
    seen = seen_arrays(updates, rows)
    _observe(replay, picked, seen)
    del seen["mask"]
    left = np.array([shelf.problem.moves for shelf in replay.shelves])[picked.shelf] - picked.move
    played = None
    if settings.model == "true":
        played = _moves(replay, 0, picked.best[:, fresh:], picked.game[:, fresh:])
    lesson = _cut(replay, picked, unrolled(settings))._replace(seen=seen)
    return Prepared(lesson, left[:, fresh:].astype(np.int32), played)


def _moves(replay: Replay, shelf: int, best: Array, game: Array) -> Array:
    """int8[..., N] of stored games, by number."""
    mine = replay.shelves[shelf]
    moves = mine.ring.actions[np.where(best, 0, game)]
    moves[best] = mine.best.actions[game[best]]
    return moves


def _cut(replay: Replay, picked: Picked, steps: int) -> Lesson:
    """The targets; without what was seen."""
    shape = picked.shelf.shape
    lesson = Lesson(
        seen={},
        actions=np.zeros((*shape, steps), np.int8),
        rewards=np.zeros((*shape, steps), np.float32),
        legal=np.zeros((*shape, steps + 1, 3), np.bool_),
        policy=np.zeros((*shape, steps + 1, 3), np.float32),
        value=np.zeros((*shape, steps + 1), np.float32),
        inside=np.zeros((*shape, steps + 1), np.bool_),
        weight=picked.weight,
    )
    for number in np.unique(picked.shelf).tolist():
        shelf = replay.shelves[number]
        for of_best in (False, True):
            where = np.nonzero((picked.shelf == number) & (picked.best == of_best))
            if not len(where[0]):
                continue
            record = shelf.best if of_best else shelf.ring
            target = shelf.best_target if of_best else shelf.target
            game = picked.game[where][:, None]
            move = picked.move[where][:, None] + np.arange(steps + 1)
            inside = move < shelf.problem.moves
            move = np.minimum(move, shelf.problem.moves - 1)
            lesson.inside[where] = inside
            lesson.actions[where] = record.actions[game, move][:, :steps]
            lesson.rewards[where] = (record.rewards[game, move] * inside)[:, :steps]
            lesson.legal[where] = masks_or_all(record.legal[game, move] & inside[..., None])
            lesson.policy[where] = (
                ONE_HOT[record.actions[game, move]] if of_best else record.policy[game, move]
            )
            lesson.value[where] = target[game, move] * inside
    return lesson


def _observe(replay: Replay, picked: Picked, into: Seen) -> None:
    """Fill arrays [U, R, ...]."""
    numbers = np.unique(picked.shelf).tolist()
    alone = len(numbers) < cores()

    def observe(number: int) -> None:
        where = np.nonzero(picked.shelf == number)
        moves = _moves(replay, number, picked.best[where], picked.game[where])
        problem = replay.shelves[number].problem
        seen = problem.observe_at(moves, picked.move[where], threads=None if alone else 1)
        for name, array in seen.items():
            into[name][where] = array

    list((map if alone else helpers().map)(observe, numbers))


def finish(
    prepared: Prepared, number: int, search: Searching, target: Network, key: jax.Array, settings: Settings
) -> Lesson:
    """Batch `number`, its last positions searched anew with the target network. The moves after them
    are taught as they were played: to search them too would take most of the time of learning."""
    count = prepared.left.shape[1]
    seen = jax.device_put({name: array[number] for name, array in prepared.lesson.seen.items()})
    lesson = Lesson(seen, *(array[number] for array in prepared.lesson[1:]))
    if not count:
        return lesson
    found = search(
        target,
        key,
        {name: array[-count:] for name, array in seen.items()},
        prepared.left[number],
        lesson.legal[-count:, 0],
        simulations=settings.simulations or 0,
        gumbel_scale=settings.gumbel_scale,
        played=None if prepared.played is None else prepared.played[number],
    )
    best = np.arange(count) < round(settings.best * len(lesson.weight))
    kept = np.where(best, settings.imitated, 0)[:, None].astype(np.float32)
    return Lesson(*_retaught(lesson, found.weights, found.value, settings.search_value, kept))


@jax.jit  # type: ignore[untyped-decorator]
def _retaught(lesson: Lesson, weights: Any, value: Any, share: Any, kept: Any) -> Lesson:
    """With what a new search said of the last positions; `kept` of what was played there stays."""
    fresh = len(lesson.weight) - len(weights)
    policy, values = jnp.asarray(lesson.policy), jnp.asarray(lesson.value)
    mixed = (1 - share) * values[fresh:, 0] + share * value
    weights = kept * policy[fresh:, 0] + (1 - kept) * weights
    return lesson._replace(policy=policy.at[fresh:, 0].set(weights), value=values.at[fresh:, 0].set(mixed))
