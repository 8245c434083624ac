"""From drawn positions to what the learner reads: targets are cut out of the stored games, what was
seen is made again by the native game, and the share to be reanalysed is searched anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from loadmaster.host import cores
from loadmaster.malloc_game.games import Seen, seen_arrays
from loadmaster.malloc_game.muzero.learner import (
    Learner,
    Lesson,
    Losses,
    first_learner,
    improve,
    taken_up,
    unrolled,
)
from loadmaster.malloc_game.muzero.network import Network
from loadmaster.malloc_game.muzero.replay import (
    Array,
    Picked,
    Record,
    Replay,
    Rng,
    Shelf,
    choices,
    helpers,
    played_out,
    returns,
    unit_ps,
)
from loadmaster.malloc_game.muzero.selfplay import Searching, masks_or_all
from loadmaster.malloc_game.muzero.settings import LEARNING, Settings
from loadmaster.malloc_game.problem import MallocGame

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


# ----------------------------------------------------------------------------
# Lessons from the game itself: at every position of good games, and of games like them with some moves
# changed, each legal move is tried and played out to the end. What a move is worth there is exact.
#
# This is how a run may begin (`tutored`), after a warm start: it is not learned by self-play alone.

CHANGED = (0.0, 0.0, 0.02, 0.05, 0.15)
"""Shares of the moves that are changed at random, in turn."""
SOFT = 0.2
"""Moves that are worth so much less, in units of `unit_ps`, are e times less likely."""
OWN = 0.5
"""Logits that the move of the good game has ahead of moves that are worth the same."""
AT_ONCE = 50
"""Gradient steps between two looks at the clock."""


class Course(NamedTuple):
    """P positions, all on the device."""

    lesson: Lesson
    positions: int


def course(shelves: Sequence[Shelf], settings: Settings, rng: Rng) -> Course:
    """Positions of all programs that have games, `tutor_positions` of them at most."""
    known = [shelf for shelf in shelves if len(shelf.best_times)]
    moves = np.array([shelf.problem.moves for shelf in known])
    # As in the replay: between as many of any program and as many as it has.
    most = np.ceil(settings.tutor_positions * np.sqrt(moves) / np.sqrt(moves).sum()).astype(int)
    parts = [_positions(shelf, int(count), settings, rng) for shelf, count in zip(known, most, strict=True)]
    joined = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
    return Course(jax.device_put(joined), len(joined.weight))


def _positions(shelf: Shelf, most: int, settings: Settings, rng: Rng) -> Lesson:
    problem, steps = shelf.problem, unrolled(settings)
    good = shelf.best.actions[rng.integers(0, len(shelf.best_times), len(CHANGED))]
    wanted = np.where(
        rng.random(good.shape) < np.array(CHANGED)[:, None], rng.integers(0, 3, good.shape), good
    )
    record = played_out(problem, wanted.astype(np.int8))
    policy = _policy(problem, record, good)
    game, move = choices(record).nonzero()
    if len(game) > most:
        kept = np.sort(rng.choice(len(game), most, replace=False))
        game, move = game[kept], move[kept]
    seen = problem.observe_at(record.actions[game], move)
    del seen["mask"]
    row, at = game[:, None], move[:, None] + np.arange(steps + 1)
    inside, at = at < problem.moves, np.minimum(at, problem.moves - 1)
    value = returns(record, settings.discount)
    legal = record.legal[row, at] & inside[..., None]
    return Lesson(
        seen,
        record.actions[row, at][:, :steps],
        (record.rewards[row, at] * inside)[:, :steps],
        legal | ~legal.any(-1, keepdims=True),
        policy[row, at],
        value[row, at] * inside,
        inside,
        np.ones(len(game), np.float32),
    )


def _policy(problem: MallocGame, record: Record, good: Array) -> Array:
    """float32[B, N, 3] the better a move's end, the likelier it is."""
    totals = problem.try_all(record.actions)
    legal = totals >= 0
    lost = totals - np.where(legal, totals, np.iinfo(np.int64).max).min(-1, keepdims=True)
    logits = np.where(legal, -lost / (SOFT * unit_ps(problem)) + OWN * np.eye(3)[good], -np.inf)
    forced = ~legal.any(-1)
    logits[forced] = np.where(np.eye(3, dtype=bool)[record.actions[forced]], 0, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    taught: Array = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return taught


def tutored(
    learner: Learner,
    course: Course,
    settings: Settings,
    key: jax.Array,
    told: Callable[[int, Learner, Losses], bool],
) -> Learner:
    """After `tutored` gradient steps, or when `told` (with the steps so far) says to stop."""
    own = replace(settings.only(LEARNING), horizon=max(1, settings.tutored))
    learner = first_learner(learner.network, own)
    step = compiled_steps(own, 2 * (settings.batch or 1), course.positions)
    for part in range(0, settings.tutored, AT_ONCE):
        learner, losses = step(learner, course.lesson, jax.random.fold_in(key, part))
        if not told(part + AT_ONCE, learner, jax.block_until_ready(losses)):
            break
    return taken_up(learner.network, settings, settings.tutored)


@lru_cache(maxsize=4)
def compiled_steps(settings: Settings, batch: int, count: int) -> Any:
    """(learner, lesson of `count` positions, key) -> (learner, losses) after `AT_ONCE` steps."""

    def one(frozen: Any, lesson: Lesson, learner: Any, key: jax.Array) -> tuple[Any, Losses]:
        drawn = jax.random.randint(key, (batch,), 0, count)
        some = jax.tree.map(lambda array: array[drawn], lesson)
        after, losses = improve(eqx.combine(learner, frozen), some, settings)
        return eqx.filter(after, eqx.is_array), losses

    def steps(learner: Learner, lesson: Lesson, key: jax.Array) -> tuple[Learner, Losses]:
        arrays, frozen = eqx.partition(learner, eqx.is_array)
        keys = jax.random.split(key, AT_ONCE)
        arrays, losses = jax.lax.scan(lambda now, key: one(frozen, lesson, now, key), arrays, keys)
        return eqx.combine(arrays, frozen), jax.tree.map(lambda each: each.mean(), losses)

    return eqx.filter_jit(steps)
