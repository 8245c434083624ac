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
from loadmaster.learn.session import keep_only
from loadmaster.malloc_game.games import Seen, seen_arrays
from loadmaster.malloc_game.muzero.paper import LEARNING, Settings
from loadmaster.malloc_game.muzero.paper.learner import (
    Batch,
    Learner,
    Losses,
    first_learner,
    improve,
    resume_learner,
    unrolled,
)
from loadmaster.malloc_game.muzero.paper.network import Network
from loadmaster.malloc_game.muzero.paper.replay import (
    Array,
    Picked,
    ProgramReplay,
    Record,
    Replay,
    Rng,
    choices,
    helpers,
    played_out,
    returns,
    unit_ps,
)
from loadmaster.malloc_game.muzero.paper.search import Search
from loadmaster.malloc_game.muzero.paper.selfplay import masks_or_all
from loadmaster.malloc_game.problem import MallocGame

ONE_HOT = np.eye(3, dtype=np.float32)


class Prepared(NamedTuple):
    """U batches of R positions each, of which the last A are to be searched anew."""

    batch: Batch
    """Arrays [U, R, ...]"""
    left: Array
    """int32[U, A] moves left at those"""
    played: Array | None
    """int8[U, A, N] the games they are of; only where all are of one program"""


def prepare(replay: Replay, picked: Picked, settings: Settings) -> Prepared:
    """U batches of drawn positions, as far as they need no network."""
    updates, rows = picked.program.shape
    fresh = replay.counts(rows)[0] if settings.reanalyse else rows
    seen = seen_arrays(updates, rows)
    _observe(replay, picked, seen)
    del seen["mask"]
    left = np.array([program.problem.moves for program in replay.programs])[picked.program] - picked.move
    played = None
    if settings.model == "true":
        played = _moves(replay, 0, picked.best[:, fresh:], picked.game[:, fresh:])
    batch = _cut(replay, picked, unrolled(settings))._replace(seen=seen)
    return Prepared(batch, left[:, fresh:].astype(np.int32), played)


def _moves(replay: Replay, program: int, best: Array, game: Array) -> Array:
    """int8[..., N] of stored games, by number."""
    mine = replay.programs[program]
    moves = mine.games.actions[np.where(best, 0, game)]
    moves[best] = mine.best.actions[game[best]]
    return moves


def _cut(replay: Replay, picked: Picked, steps: int) -> Batch:
    """The targets; without what was seen."""
    shape = picked.program.shape
    batch = Batch(
        seen={},
        actions=np.zeros((*shape, steps), np.int8),
        rewards=np.zeros((*shape, steps), np.float32),
        legal=np.zeros((*shape, steps + 1, 3), np.bool_),
        policy=np.zeros((*shape, steps + 1, 3), np.float32),
        value=np.zeros((*shape, steps + 1), np.float32),
        inside=np.zeros((*shape, steps + 1), np.bool_),
        weight=picked.weight,
    )
    for number in np.unique(picked.program).tolist():
        program = replay.programs[number]
        for of_best in (False, True):
            where = np.nonzero((picked.program == number) & (picked.best == of_best))
            if not len(where[0]):
                continue
            record = program.best if of_best else program.games
            target = program.best_target if of_best else program.target
            game = picked.game[where][:, None]
            move = picked.move[where][:, None] + np.arange(steps + 1)
            inside = move < program.problem.moves
            move = np.minimum(move, program.problem.moves - 1)
            batch.inside[where] = inside
            batch.actions[where] = record.actions[game, move][:, :steps]
            batch.rewards[where] = (record.rewards[game, move] * inside)[:, :steps]
            batch.legal[where] = masks_or_all(record.legal[game, move] & inside[..., None])
            batch.policy[where] = (
                ONE_HOT[record.actions[game, move]] if of_best else record.policy[game, move]
            )
            batch.value[where] = target[game, move] * inside
    return batch


def _observe(replay: Replay, picked: Picked, into: Seen) -> None:
    """Fill arrays [U, R, ...]."""
    numbers = np.unique(picked.program).tolist()
    alone = len(numbers) < cores()

    def observe(number: int) -> None:
        where = np.nonzero(picked.program == number)
        moves = _moves(replay, number, picked.best[where], picked.game[where])
        problem = replay.programs[number].problem
        seen = problem.observe_at(moves, picked.move[where], threads=None if alone else 1)
        for name, array in seen.items():
            into[name][where] = array

    list((map if alone else helpers().map)(observe, numbers))


def finish(
    prepared: Prepared, number: int, search: Search, target: Network, key: jax.Array, settings: Settings
) -> Batch:
    """Batch `number`, its last positions searched anew with the target network. The moves after them
    are taught as they were played: to search them too would take most of the time of learning."""
    count = prepared.left.shape[1]
    seen = jax.device_put({name: array[number] for name, array in prepared.batch.seen.items()})
    batch = Batch(seen, *(array[number] for array in prepared.batch[1:]))
    if not count:
        return batch
    found = search(
        target,
        key,
        {name: array[-count:] for name, array in seen.items()},
        prepared.left[number],
        batch.legal[-count:, 0],
        simulations=settings.simulations or 0,
        gumbel_scale=settings.gumbel_scale,
        played=None if prepared.played is None else prepared.played[number],
    )
    best = np.arange(count) < round(settings.best * len(batch.weight))
    kept = np.where(best, settings.imitated, 0)[:, None].astype(np.float32)
    return Batch(*_with_new_search(batch, found.weights, found.value, settings.search_value, kept))


@jax.jit  # type: ignore[untyped-decorator]
def _with_new_search(batch: Batch, weights: Any, value: Any, share: Any, kept: Any) -> Batch:
    """With what a new search said of the last positions; `kept` of what was played there stays."""
    fresh = len(batch.weight) - len(weights)
    policy, values = jnp.asarray(batch.policy), jnp.asarray(batch.value)
    mixed = (1 - share) * values[fresh:, 0] + share * value
    weights = kept * policy[fresh:, 0] + (1 - kept) * weights
    return batch._replace(policy=policy.at[fresh:, 0].set(weights), value=values.at[fresh:, 0].set(mixed))


# Pretraining on the game itself: at every position of good games, and of games like them with some moves
# changed, each legal move is tried and played out to the end. What a move earns there is exact. This is how
# a run may begin (`pretrain_steps`), after a warm start: then it is not learned by self-play alone.

CHANGED = (0.0, 0.0, 0.02, 0.05, 0.15)
"""Shares of the moves that are changed at random, in turn."""
SOFT = 0.2
"""Moves that earn so much less, in units of `unit_ps`, are e times less likely."""
OWN = 0.5
"""Logits that the move of the good game has ahead of moves that earn the same."""
AT_ONCE = 50
"""Gradient steps between two looks at the clock."""


def pretrain_batch(programs: Sequence[ProgramReplay], settings: Settings, rng: Rng) -> Batch:
    """Positions of all programs that have games, all on the device; `pretrain_positions` of them at most."""
    known = [program for program in programs if len(program.best_times)]
    moves = np.array([program.problem.moves for program in known])
    # As in the replay: between as many of any program and as many as it has.
    most = np.ceil(settings.pretrain_positions * np.sqrt(moves) / np.sqrt(moves).sum()).astype(int)
    parts = [
        _positions(program, int(count), settings, rng) for program, count in zip(known, most, strict=True)
    ]
    joined: Batch = jax.device_put(jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts))
    return joined


def _positions(program: ProgramReplay, most: int, settings: Settings, rng: Rng) -> Batch:
    problem, steps = program.problem, unrolled(settings)
    good = program.best.actions[rng.integers(0, len(program.best_times), len(CHANGED))]
    preferred = np.where(
        rng.random(good.shape) < np.array(CHANGED)[:, None], rng.integers(0, 3, good.shape), good
    )
    record = played_out(problem, preferred.astype(np.int8))
    policy = _best_replies(problem, record, good)
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
    return Batch(
        seen,
        record.actions[row, at][:, :steps],
        (record.rewards[row, at] * inside)[:, :steps],
        legal | ~legal.any(-1, keepdims=True),
        policy[row, at],
        value[row, at] * inside,
        inside,
        np.ones(len(game), np.float32),
    )


def _best_replies(problem: MallocGame, record: Record, good: Array) -> Array:
    """float32[B, N, 3] the better a move's end, the likelier it is."""
    totals = problem.try_all(record.actions)
    legal = totals >= 0
    lost = totals - np.where(legal, totals, np.iinfo(np.int64).max).min(-1, keepdims=True)
    logits = np.where(legal, -lost / (SOFT * unit_ps(problem)) + OWN * np.eye(3)[good], -np.inf)
    forced = ~legal.any(-1)
    logits[forced] = np.where(np.eye(3, dtype=bool)[record.actions[forced]], 0, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    policy: Array = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return policy


def pretrain(
    learner: Learner,
    batch: Batch,
    settings: Settings,
    key: jax.Array,
    report: Callable[[int, Learner, Losses], bool],
) -> Learner:
    """The learner after `pretrain_steps` gradient steps on parts of `batch`, or when `report` (with the steps so
    far) says to stop."""
    own = replace(keep_only(settings, LEARNING), horizon=max(1, settings.pretrain_steps))
    learner = first_learner(learner.network, own)
    step = compiled_steps(own, 2 * (settings.batch or 1), len(batch.weight))
    for part in range(0, settings.pretrain_steps, AT_ONCE):
        learner, losses = step(learner, batch, jax.random.fold_in(key, part))
        if not report(part + AT_ONCE, learner, jax.block_until_ready(losses)):
            break
    return resume_learner(learner.network, settings, settings.pretrain_steps)


@lru_cache(maxsize=4)
def compiled_steps(settings: Settings, size: int, count: int) -> Any:
    """(learner, batch of `count` positions, key) -> (learner, losses) after `AT_ONCE` steps on `size` of them."""

    def one(frozen: Any, batch: Batch, learner: Any, key: jax.Array) -> tuple[Any, Losses]:
        drawn = jax.random.randint(key, (size,), 0, count)
        some = jax.tree.map(lambda array: array[drawn], batch)
        after, losses = improve(eqx.combine(learner, frozen), some, settings)
        return eqx.filter(after, eqx.is_array), losses

    def steps(learner: Learner, batch: Batch, key: jax.Array) -> tuple[Learner, Losses]:
        arrays, frozen = eqx.partition(learner, eqx.is_array)
        keys = jax.random.split(key, AT_ONCE)
        arrays, losses = jax.lax.scan(lambda now, key: one(frozen, batch, now, key), arrays, keys)
        return eqx.combine(arrays, frozen), jax.tree.map(lambda each: each.mean(), losses)

    return eqx.filter_jit(steps)
