"""Lessons from the game itself: at every position of good games, and of games like them with some moves
changed, each legal move is tried and played out to the end. What a move is worth there is exact.

This is how a run may begin (`tutored`), after a warm start: it is not learned by self-play alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.muzero.learner import (
    Learner,
    Lesson,
    Losses,
    first_learner,
    improve,
    taken_up,
    unrolled,
)
from loadmaster.solvers.muzero.replay import Array, Record, Rng, Shelf, choices, played_out, returns, unit_ps
from loadmaster.solvers.muzero.settings import LEARNING, Settings

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
