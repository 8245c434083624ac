"""The replay: what was seen is made again bit by bit, targets are right, the best games are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("mctx")

import jax

from loadmaster.solvers.muzero.lessons import prepare
from loadmaster.solvers.muzero.replay import Picked, Replay, Shelf, played_out, ranked, returns
from loadmaster.solvers.muzero.search import Found
from loadmaster.solvers.muzero.selfplay import Style, dealt, play
from loadmaster.solvers.muzero.settings import Settings
from solvers.muzero.small import SMALL, four_lives, random_games
from solvers.muzero.tiny import made_up

SETTINGS = Settings(**SMALL)


def chance(network: Any, key: Any, seen: Any, left: Any, masks: Any, *, simulations: int,
           gumbel_scale: Any = 1.0, played: Any = None) -> Found:  # fmt: skip
    """A search that plays legal moves at random, and says how many moves are left."""
    noise = np.random.default_rng(int(jax.random.randint(key, (), 0, 2**31 - 1))).random(
        masks.shape
    )
    action = np.argmax(noise * masks, axis=1)
    return Found(action, np.eye(3)[action], np.asarray(left, np.float32), masks / masks.sum(1, keepdims=True))  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize("number", [0, 24])
def test_positions_are_made_again_as_they_were_seen(number: int) -> None:
    problem, rng = made_up(number), np.random.default_rng(3)
    moves = problem.play(rng.integers(0, 3, (6, problem.moves)).astype(np.int8)).actions
    games, seen = problem.games(6), []
    for move in range(problem.moves + 1):
        seen.append({name: array.copy() for name, array in games.observe().items()})
        if move < problem.moves:
            games.step(moves[:, move])
    rows = rng.integers(0, 6, 40)
    at = rng.integers(0, problem.moves + 1, 40)
    for threads in (1, 3):
        found = problem.observe_at(moves[rows], at, count=3, threads=threads)
        for name, array in found.items():
            wanted = [[seen[min(move + k, problem.moves)][name][row] for k in range(3)]
                      for row, move in zip(rows, at, strict=True)]  # fmt: skip
            assert np.array_equal(array, wanted), name
    plain = problem.observe_at(moves[rows], at)
    assert all(np.array_equal(plain[name], found[name][:, 0]) for name in found)


def test_positions_that_cannot_be_are_refused() -> None:
    problem = made_up()
    illegal = np.zeros((1, problem.moves), np.int8)
    illegal[0] = problem.play(illegal).actions
    masks = problem.observe_at(illegal, np.array([5]))["mask"][0]
    illegal[0, 5] = int(np.argmin(masks))
    with pytest.raises(ValueError, match="row 0 is not legal"):
        problem.observe_at(illegal, np.array([6]))
    for at in (-1, problem.moves + 1):
        with pytest.raises(ValueError, match="no such move"):
            problem.observe_at(problem.all_slow()[None], np.array([at]))
    with pytest.raises(ValueError, match="no such action"):
        problem.observe_at(np.full((1, problem.moves), 3), np.array([0]))


@pytest.mark.parametrize("lanes", [1, 2])
def test_games_of_several_programs_are_recorded_as_they_were_played(lanes: int) -> None:
    problems = [made_up(0), made_up(9)]
    assert problems[0].moves < problems[1].moves
    records, moves = play(problems, 7, Style(chance, 0, 1.0), None, jax.random.key(5),  # type: ignore[arg-type]
                          lambda: False, lanes)  # fmt: skip
    assert sum(len(record.value) for record in records) == 7
    assert moves == sum(record.actions.size for record in records)
    for problem, record in zip(problems, records, strict=True):
        played = problem.play(record.actions)
        assert np.array_equal(played.actions, record.actions)
        again = played_out(problem, record.actions)
        assert np.array_equal(again.legal, record.legal)
        assert np.array_equal(again.rewards, record.rewards)
        earned = (problem.all_slow_ps - played.total) / problem.scale_ps
        assert np.allclose(record.rewards.sum(1), earned, atol=1e-5)
        assert np.array_equal(record.value, np.broadcast_to(np.arange(problem.moves, 0, -1), record.value.shape))  # fmt: skip


def test_games_that_are_stopped_are_ended_all_the_same() -> None:
    problem, asked = made_up(), iter([False, False, True])
    (record,), moves = play([problem], 4, Style(chance, 0, 1.0), None, jax.random.key(0),  # type: ignore[arg-type]
                            lambda: next(asked))  # fmt: skip
    assert moves == 12 and (record.actions[:, 3:] == 1).all()


def test_rows_are_dealt_evenly() -> None:
    assert dealt(7, 2) == [4, 3] and dealt(2, 3) == [1, 1, 1] and dealt(64, 1) == [64]


@pytest.mark.parametrize("steps", [0, 1, 3, 13, 14, 50])
def test_value_targets(steps: int) -> None:
    record, _ = random_games(made_up(), 5)
    games, moves = record.rewards.shape
    wanted = np.zeros((games, moves))
    for game in range(games):
        for move in range(moves):
            end = moves if steps == 0 else min(moves, move + steps)
            wanted[game, move] = sum(float(r) for r in record.rewards[game, move:end])
            if end < moves:
                wanted[game, move] += float(record.value[game, end])
    assert np.allclose(returns(record, steps), wanted, atol=1e-5)


def test_ranks_are_a_games_only_reward() -> None:
    record, _ = random_games(made_up(), 6)
    total = record.rewards.sum(1, dtype=np.float64)
    found = ranked(record, total).rewards
    assert (found[:, :-1] == 0).all() and found.max() == 0.5 and found[:, -1].min() > 0
    assert np.array_equal(np.argsort(found[:, -1], kind="stable"), np.argsort(np.round(total, 6), kind="stable"))  # fmt: skip


def test_the_best_distinct_games_are_kept() -> None:
    problem = four_lives()
    shelf = Shelf(problem, 10, Settings(**SMALL | {"best_games": 5}))
    known: dict[bytes, int] = {}
    for seed in range(6):
        record, times = random_games(problem, 12, seed % 4)  # some come twice
        shelf.store(record, times)
        known |= {row.tobytes(): int(t) for row, t in zip(record.actions, times, strict=True)}
        assert shelf.best_times.tolist() == sorted(known.values())[:5]
        rows = [row.tobytes() for row in shelf.best.actions]
        assert len(set(rows)) == 5 and [known[row] for row in rows] == shelf.best_times.tolist()
        again = played_out(problem, shelf.best.actions)
        assert np.array_equal(again.rewards, shelf.best.rewards)  # all columns moved together
    assert shelf.stored == 72 and shelf.filled == 10
    record, _ = random_games(problem, 12, 5 % 4)
    newest = {row.tobytes() for row in record.actions[-10:]}
    assert {row.tobytes() for row in shelf.ring.actions} == newest


def filled_replay(**changes: Any) -> Replay:
    settings = Settings(**SMALL | {"replay_games": 40} | changes)
    replay = Replay([made_up(0), made_up(9), four_lives()], settings)
    for shelf in replay.shelves[:2]:  # the third has no games yet
        shelf.store(*random_games(shelf.problem, 9))
    return replay


def test_batches_have_their_shares() -> None:
    replay = filled_replay(reanalysed=0.4, best=0.25)
    assert replay.counts(256) == (90, 64, 102) and sum(replay.counts(7)) == 7
    picked = replay.draw(np.random.default_rng(0), 50, 64)
    fresh, best, _ = replay.counts(64)
    is_best = np.zeros(64, bool)
    is_best[fresh : fresh + best] = True
    assert (picked.best == is_best).all()
    counts = np.bincount(picked.shelf.ravel(), minlength=3) / picked.shelf.size
    assert counts[2] == 0 and abs(counts[0] - 0.5) < 0.03
    for number in (0, 1):
        shelf = replay.shelves[number]
        for of_best, most in ((True, len(shelf.best_times)), (False, shelf.filled)):
            mine = (picked.shelf == number) & (picked.best == of_best)
            assert picked.game[mine].max() == most - 1 and picked.game[mine].min() == 0
            assert picked.move[mine].max() == shelf.problem.moves - 1


@pytest.mark.parametrize("prioritised", [True, False])
def test_positions_are_drawn_by_priority_and_weigh_accordingly(prioritised: bool) -> None:
    replay = filled_replay(prioritised=prioritised, best=0.0)
    shelf = replay.shelves[0]
    wrong = np.abs(shelf.ring.value[:9] - shelf.target[:9])
    chance = wrong + 0.1 * wrong.mean() if prioritised else np.ones_like(wrong)
    chance = chance / chance.sum()
    picked = replay.draw(np.random.default_rng(1), 600, 64)
    mine = picked.shelf == 0
    drawn = np.zeros_like(wrong)
    np.add.at(drawn, (picked.game[mine], picked.move[mine]), 1)
    spread = np.sqrt(chance * mine.sum())
    assert (np.abs(drawn - chance * mine.sum()) < 5 * spread).all()
    weights = 1 / (chance.size * chance[picked.game[mine], picked.move[mine]])
    assert np.allclose(picked.weight[mine], weights, rtol=1e-3)
    if not prioritised:
        assert (picked.weight == 1).all()


@pytest.mark.parametrize("changes", [{}, {"reanalyse": False}, {"td_steps": 2}])
def test_lessons_hold_what_followed_each_position(changes: dict[str, Any]) -> None:
    replay = filled_replay(**changes)
    settings, steps = replay.settings, replay.settings.unroll
    picked = replay.draw(np.random.default_rng(2), 3, 24)
    prepared = prepare(replay, picked, settings)
    lesson, past = prepared.lesson, 0
    fresh = replay.counts(24)[0] if settings.reanalyse else 24
    for update, row in np.ndindex(3, 24):
        at = Picked(*(each[update, row] for each in picked))
        shelf = replay.shelves[at.shelf]
        record = (shelf.best if at.best else shelf.ring).take(at.game)
        target = returns(shelf.best if at.best else shelf.ring, 0 if at.best else settings.td_steps)[at.game]  # fmt: skip
        seen = shelf.problem.observe_at(record.actions[None], at.move[None], steps + 1)
        if row < fresh:
            for name, array in lesson.seen.items():
                assert np.array_equal(array[update, row], seen[name][0, 0]), name
        else:
            for name, array in prepared.again.items():
                assert np.array_equal(array[update, row - fresh], seen[name][0]), name
            left = np.maximum(shelf.problem.moves - at.move - np.arange(steps + 1), 0)
            assert np.array_equal(prepared.left[update, row - fresh], left)
        for k in range(steps + 1):
            move = at.move + k
            inside = move < shelf.problem.moves
            assert lesson.inside[update, row, k] == inside
            if not inside:
                past += 1
                assert lesson.legal[update, row, k].all() and lesson.value[update, row, k] == 0
                continue
            assert np.array_equal(lesson.legal[update, row, k], record.legal[move])
            assert np.array_equal(lesson.legal[update, row, k], seen["mask"][0, k])
            assert np.array_equal(lesson.policy[update, row, k], record.policy[move].astype(np.float32))  # fmt: skip
            assert lesson.value[update, row, k] == target[move]
            if k < steps:
                assert lesson.actions[update, row, k] == record.actions[move]
                assert lesson.rewards[update, row, k] == record.rewards[move]
    assert past > 0
    assert np.array_equal(lesson.weight, picked.weight)


def test_a_shelf_goes_through_a_checkpoint() -> None:
    for games in (4, 25):  # before and after the ring came round
        first = filled_replay(rank_returns=True).shelves[0]
        first.store(*random_games(first.problem, games, 7))
        second = filled_replay(rank_returns=True).shelves[0]
        second.restore(first.arrays())
        light = Shelf(first.problem, first.capacity, first.settings)
        light.restore(first.arrays(ring=False))
        assert light.filled == 0 and np.array_equal(light.best.actions, first.best.actions)
        for shelf in (first, second):
            shelf.store(*random_games(first.problem, 5, 8))
        for a, b in zip((*first.ring, *first.best, first.target, first.best_times, first.recent),
                        (*second.ring, *second.best, second.target, second.best_times, second.recent), strict=True):  # fmt: skip
            assert np.array_equal(a, b)
        assert first.stored == second.stored
