"""From drawn positions to what the learner reads: targets are cut out of the stored games, what was
seen is made again by the native game, and the share to be reanalysed is searched anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from loadmaster.problems.malloc_game.games import Seen, seen_arrays
from loadmaster.solvers.muzero.learner import Lesson, unrolled
from loadmaster.solvers.muzero.network import Network
from loadmaster.solvers.muzero.replay import Array, Picked, Replay
from loadmaster.solvers.muzero.selfplay import Searching, masks_or_all
from loadmaster.solvers.muzero.settings import Settings


class Prepared(NamedTuple):
    """U batches of R positions each, of which the last A are to be searched anew."""

    lesson: Lesson
    """Arrays [U, R, ...]; `seen` has the first R - A of each batch"""
    again: Seen
    """[U, A, K+1, ...]"""
    left: Array
    """int32[U, A, K+1] moves left at those"""
    played: Array | None
    """int8[U, A, N] the games they are of; only where all are of one program"""


def prepare(replay: Replay, picked: Picked, settings: Settings) -> Prepared:
    """Everything that needs no network."""
    steps = unrolled(settings)
    updates, rows = picked.shelf.shape
    fresh = replay.counts(rows)[0] if settings.reanalyse else rows
    cut = _cut(replay, picked, steps)
    seen, again = seen_arrays(updates, fresh), seen_arrays(updates, rows - fresh, steps + 1)
    for part, into, count in ((slice(0, fresh), seen, 1), (slice(fresh, rows), again, steps + 1)):
        _observe(replay, Picked(*(each[:, part] for each in picked)), into, count)
    left = np.array([shelf.problem.moves for shelf in replay.shelves])[picked.shelf[:, fresh:]]
    left = left[..., None] - picked.move[:, fresh:, None] - np.arange(steps + 1)
    for views in (seen, again):
        del views["mask"]
    played = None
    if settings.model == "true":
        played = _moves(replay, 0, picked.best[:, fresh:], picked.game[:, fresh:])
    return Prepared(cut._replace(seen=seen), again, np.maximum(left, 0).astype(np.int32), played)


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
        seen={}, actions=np.zeros((*shape, steps), np.int8),
        rewards=np.zeros((*shape, steps), np.float32), legal=np.zeros((*shape, steps + 1, 3), np.bool_),
        policy=np.zeros((*shape, steps + 1, 3), np.float32),
        value=np.zeros((*shape, steps + 1), np.float32),
        inside=np.zeros((*shape, steps + 1), np.bool_), weight=picked.weight,
    )  # fmt: skip
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
            lesson.policy[where] = record.policy[game, move]
            lesson.value[where] = target[game, move] * inside
    return lesson


def _observe(replay: Replay, picked: Picked, into: Seen, count: int) -> None:
    """Fill arrays [U, R, count, ...] (or [U, R, ...] for one)."""
    if not picked.shelf.size:
        return
    for number in np.unique(picked.shelf).tolist():
        where = np.nonzero(picked.shelf == number)
        moves = _moves(replay, number, picked.best[where], picked.game[where])
        problem = replay.shelves[number].problem
        seen = problem.observe_at(moves, picked.move[where], count)
        for name, array in seen.items():
            into[name][where] = array.reshape(-1, *into[name].shape[2:])


def finish(prepared: Prepared, number: int, search: Searching, target: Network, key: jax.Array,
           settings: Settings) -> Lesson:  # fmt: skip
    """Batch `number`, its last positions searched anew with the target network."""
    seen = {name: jnp.asarray(array[number]) for name, array in prepared.lesson.seen.items()}
    lesson = Lesson(seen, *(array[number] for array in prepared.lesson[1:]))
    count, steps = prepared.left.shape[1:]
    if not count:
        return lesson
    again = {name: jnp.asarray(array[number].reshape(count * steps, *array.shape[3:]))
             for name, array in prepared.again.items()}  # fmt: skip
    played = None if prepared.played is None else np.repeat(prepared.played[number], steps, axis=0)
    found = search(
        target, key, again, prepared.left[number].reshape(-1), lesson.legal[-count:].reshape(-1, 3),
        simulations=settings.simulations or 0, gumbel_scale=settings.gumbel_scale, played=played,
    )  # fmt: skip
    return Lesson(*_retaught(lesson, again, found.weights, found.value, settings.search_value))


@jax.jit  # type: ignore[untyped-decorator]
def _retaught(lesson: Lesson, again: Seen, weights: Any, value: Any, share: Any) -> Lesson:
    """With what a new search said of the last positions."""
    steps = lesson.policy.shape[1]
    count = len(weights) // steps
    fresh = len(lesson.weight) - count
    value = value.reshape(count, steps) * lesson.inside[fresh:]
    mixed = (1 - share) * lesson.value[fresh:] + share * value
    return lesson._replace(
        seen={name: jnp.concatenate([array, again[name][::steps]])
              for name, array in lesson.seen.items()},
        policy=jnp.concatenate([lesson.policy[:fresh], weights.reshape(count, steps, 3)]),
        value=jnp.concatenate([lesson.value[:fresh], mixed]),
    )  # fmt: skip
