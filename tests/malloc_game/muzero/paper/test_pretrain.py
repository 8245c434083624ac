"""Pretraining: its targets are the best replies by the game itself, and the network learns them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("mctx")

import jax

from loadmaster.malloc_game.muzero.paper import Settings, batches
from loadmaster.malloc_game.muzero.paper.replay import ProgramReplay, played_out, returns, unit_ps
from loadmaster.malloc_game.muzero.paper.session import Session
from loadmaster.search.solver import Budget, Meter, Observer
from malloc_game.muzero.paper.small import SMALL, four_lives, random_games
from malloc_game.muzero.paper.tiny import made_up

PRETRAINED = Settings(
    **SMALL | {"warm_start": 30, "pretrain_steps": 150, "pretrain_positions": 60, "batch": 32}
)


def test_what_is_taught_is_the_best_reply() -> None:
    better = 0
    for problem in (four_lives(18), made_up(9)):
        good, _ = random_games(problem, 3)
        record = played_out(problem, good.actions)
        policy = batches._best_replies(problem, record, good.actions)
        assert np.allclose(policy.sum(-1), 1, atol=1e-5) and not policy[~record.legal].any()
        for game, move in np.ndindex(record.actions.shape):
            moves = record.actions[game]
            ends: dict[int, int] = {}
            for action in np.flatnonzero(record.legal[game, move]).tolist():
                games = problem.games(1)
                games.replay(np.append(moves[:move], action)[None].astype(np.int8))
                games.finish(moves[None])
                ends[action] = int(games.judged()[0][0])
            least = min(ends.values())
            logits = {
                action: -(end - least) / (batches.SOFT * unit_ps(problem))
                + batches.OWN * (action == moves[move])
                for action, end in ends.items()
            }
            weights = {action: np.exp(logit) for action, logit in logits.items()}
            for action, weight in weights.items():
                assert policy[game, move, action] == pytest.approx(weight / sum(weights.values()), abs=1e-5)
            better += policy[game, move].argmax() != moves[move]
    assert better > 10


def test_pretraining_has_positions_with_a_choice_and_true_returns() -> None:
    settings = Settings(**SMALL | {"pretrain_positions": 50})
    programs = [ProgramReplay(problem, 10, settings) for problem in (four_lives(18), made_up(9), made_up(0))]
    for program in programs[:2]:
        program.add(*random_games(program.problem, 6))
    made = batches.pretrain_batch(programs, settings, np.random.default_rng(0))
    batch = jax.tree.map(np.asarray, made)
    assert 40 <= len(batch.weight) <= 52
    assert (batch.legal[:, 0].sum(-1) > 1).all() and batch.inside[:, 0].all()
    assert not batch.policy[:, 0][~batch.legal[:, 0]].any()
    # Values are what follows: the reward of the move and, for less, the value after it.
    both = batch.inside[:, 1]
    follows = batch.rewards[:, 0] + settings.discount * batch.value[:, 1] * both
    assert np.allclose(batch.value[:, 0], follows, rtol=1e-4, atol=1e-3)
    assert returns(programs[0].best).max() > 0


class Reports(Observer):
    """Remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, float]] = []

    def progress(self, meter: Meter, metrics: Mapping[str, float]) -> None:
        self.lines.append(dict(metrics))


@cache
def pretrained(seed: int) -> tuple[Session, list[dict[str, float]], Any]:
    """(a session that was pretrained and played little, what it reported, the positions)"""
    reports, made = Reports(), []
    make = batches.pretrain_batch

    def pretrain_batch(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    session = Session([Meter(made_up(9), Budget(evaluations=5), reports)], seed, PRETRAINED, None, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadmaster.malloc_game.muzero.paper.session.pretrain_batch", pretrain_batch)
        session.run()
    return session, reports.lines, made[0]


def test_the_network_learns_what_it_is_taught() -> None:
    session, lines, made = pretrained(0)
    first, last = lines[0], next(line for line in lines if line["steps"] == 150)
    assert [line["steps"] for line in lines[:3]] == [50, 100, 150]
    assert last["policy_loss"] < first["policy_loss"] and last["value_loss"] < first["value_loss"]
    assert session.steps == 150 and session.meters[0].evaluations == 5
    batch = jax.tree.map(np.asarray, made)

    @jax.jit
    def policy(network: Any, seen: Any) -> Any:
        return jax.vmap(lambda one: network.predict(network.represent(one))[0])(seen)

    logits = np.where(batch.legal[:, 0], policy(session.learner.network, batch.seen), -np.inf)
    taught = batch.policy[:, 0]
    right = (logits.argmax(-1) == taught.argmax(-1))[taught.max(-1) > 0.9]
    chance = 1 / batch.legal[:, 0].sum(-1)[taught.max(-1) > 0.9]
    assert len(right) > 10 and right.mean() > chance.mean() + 0.15


def test_the_same_seed_is_taught_the_same() -> None:
    first = pretrained(0)[0].learner.network
    second = pretrained.__wrapped__(0)[0].learner.network
    other = pretrained.__wrapped__(1)[0].learner.network
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(first.policy.second.weight, other.policy.second.weight)
