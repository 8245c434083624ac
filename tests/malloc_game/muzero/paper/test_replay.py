"""The replay: what was seen is made again bit by bit, targets are right, the best games are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("mctx")

import jax

from loadmaster.malloc_game.muzero.paper import Settings, selfplay
from loadmaster.malloc_game.muzero.paper.batches import prepare
from loadmaster.malloc_game.muzero.paper.replay import (
    Picked,
    ProgramReplay,
    Record,
    Replay,
    choices,
    played_out,
    returns,
    unit_ps,
)
from loadmaster.malloc_game.muzero.paper.search import Found
from loadmaster.malloc_game.muzero.paper.selfplay import (
    Gain,
    Opening,
    Style,
    combine_gains,
    play,
    split_evenly,
    whole_games,
    windows,
)
from loadmaster.malloc_game.problem import MallocGame
from malloc_game.muzero.paper.small import SMALL, four_lives, random_games
from malloc_game.muzero.paper.tiny import made_up

SETTINGS = Settings(**SMALL)


def chance(
    network: Any,
    key: Any,
    seen: Any,
    left: Any,
    masks: Any,
    *,
    simulations: int,
    gumbel_scale: Any = 1.0,
    played: Any = None,
) -> Found:
    """A search that plays legal moves at random, and says how many moves are left."""
    noise = np.random.default_rng(int(jax.random.randint(key, (), 0, 2**31 - 1))).random(masks.shape)
    action = np.argmax(noise * masks, axis=1)
    return Found(action, np.eye(3)[action], np.asarray(left, np.float32), masks / masks.sum(1, keepdims=True))  # type: ignore[arg-type]


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
            wanted = [
                [seen[min(move + k, problem.moves)][name][row] for k in range(3)]
                for row, move in zip(rows, at, strict=True)
            ]
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


STYLE = Style(chance, 0, 1.0)


def replayed(problem: MallocGame, record: Record) -> None:
    """What is recorded of games is what the game itself says of their moves."""
    played = problem.play(record.actions)
    assert np.array_equal(played.actions, record.actions)
    again = played_out(problem, record.actions)
    assert np.array_equal(again.legal, record.legal)
    assert np.array_equal(again.rewards, record.rewards)
    earned = (problem.all_slow_ps - played.total) / unit_ps(problem)
    assert np.allclose(record.rewards.sum(1), earned, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 9])
def test_games_of_several_programs_are_recorded_as_they_were_played(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selfplay, "cores", lambda: threads)  # each on a thread of its own, or none
    problems = [made_up(0), made_up(9)]
    assert problems[0].moves < problems[1].moves
    games, moves, whole = play(whole_games(problems, 7), 0, STYLE, None, jax.random.key(5), lambda: False)  # type: ignore[arg-type]
    assert whole and [len(played.record.value) for played in games] == [4, 3]
    assert moves == sum(played.record.actions.size for played in games)
    for problem, (record, first, last) in zip(problems, games, strict=True):
        assert (first, last) == (0, problem.moves)
        replayed(problem, record)
        assert np.array_equal(
            record.value, np.broadcast_to(np.arange(problem.moves, 0, -1), record.value.shape)
        )


def test_games_that_are_stopped_are_ended_all_the_same() -> None:
    problem, asked = made_up(), iter([False, False, True])
    (played,), moves, whole = play(
        whole_games([problem], 4),
        0,
        STYLE,
        None,
        jax.random.key(0),  # type: ignore[arg-type]
        lambda: next(asked),
    )
    assert moves == 12 and not whole and (played.first, played.last) == (0, 3)
    replayed(problem, played.record)
    assert (played.record.actions[:, 3:] == 1)[played.record.legal[:, 3:, 1]].all()


@pytest.mark.parametrize("window", [1, 4, 14, 99])
def test_windows_are_like_a_known_game_before_and_after(window: int) -> None:
    problem = made_up()
    known = played_out(problem, random_games(problem, 6)[0].actions)
    last_start, changed = max(0, problem.moves - window), 0
    for start in sorted({0, last_start // 2, last_start}):
        opening = Opening(problem, 6, start, known)
        (played,), moves, whole = play([opening], window, STYLE, None, jax.random.key(start), lambda: False)  # type: ignore[arg-type]
        record, end = played.record, min(problem.moves, start + window)
        assert whole and (played.first, played.last) == (start, end) and moves == 6 * (end - start)
        for mine, its in zip(record, known, strict=True):
            assert np.array_equal(mine[:, :start], its[:, :start])
        replayed(problem, record)
        left = np.arange(problem.moves, 0, -1)[start:end]
        assert np.array_equal(record.value[:, start:end], np.tile(left, (6, 1)))
        games = problem.games(6)  # the rest, move by move
        games.replay(record.actions[:, :end])
        for move in range(end, problem.moves):
            masks, wanted = games.masks(), known.actions[:, move]
            for row in range(6):
                wish = next(a for a in (int(wanted[row]), 1, 0, 2) if masks[row, a])
                assert record.actions[row, move] == wish
            games.step(record.actions[:, move])
        assert np.array_equal(record.policy[:, end:], np.eye(3)[record.actions[:, end:]])
        changed += int((record.actions != known.actions).sum())
    assert changed > 0


def test_windows_begin_anywhere_in_the_best_games() -> None:
    program = ProgramReplay(made_up(), 10, Settings(**SMALL | {"best_games": 4}))
    program.add(*random_games(program.problem, 10))
    rng, starts, rows = np.random.default_rng(0), np.zeros(14), np.zeros(4)
    for opening in (each for _ in range(400) for each in windows([program] * 32, 32 * 5, 5, rng)[:1]):
        assert opening.rows == 5 and opening.length(5) == 5 and opening.known is not None
        starts[opening.start] += 1
        for actions, time in zip(opening.known.actions, opening.times, strict=True):  # type: ignore[arg-type]
            row = int((program.best.actions == actions).all(1).argmax())
            assert time == program.best_times[row]
            rows[row] += 1
    assert (starts[:10] > 0).all() and not starts[10:].any()
    assert 0.8 < starts[1:9].mean() / (400 / 18) < 1.2 and starts[0] > 2 * starts[1:9].mean()
    assert (np.diff(rows) < 0).all() and abs(rows[0] / 2000 - 12 / 25) < 0.05
    few = windows([program], 50, 5, rng)  # one program: at many places
    assert len(few) == 32 and sum(opening.rows for opening in few) == 50


def test_windows_that_do_not_overlap_are_crossed() -> None:
    best = np.zeros(9, np.int8)
    spans = [(5, 0, 2), (9, 1, 4), (3, 4, 6), (1, 7, 9), (8, 3, 5)]
    gains = [Gain(saved, first, last, np.full(9, saved, np.int8)) for saved, first, last in spans]
    assert [row.tolist() for row in combine_gains(best, gains)] == [
        [0, 9, 9, 9, 3, 3, 0, 0, 0],
        [0, 9, 9, 9, 3, 3, 0, 1, 1],
    ]
    assert combine_gains(best, gains[:1]) == [] == combine_gains(best, gains[:2]) and not best.any()


def test_rows_are_dealt_evenly() -> None:
    assert split_evenly(7, 2) == [4, 3] and split_evenly(2, 3) == [1, 1, 1] and split_evenly(64, 1) == [64]


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_value_targets(discount: float) -> None:
    record, _ = random_games(made_up(), 5)
    games, moves = record.rewards.shape
    wanted = np.zeros((games, moves))
    for game in range(games):
        for move in range(moves):
            later = record.rewards[game, move:].tolist()
            wanted[game, move] = sum(discount**k * reward for k, reward in enumerate(later))
    assert np.allclose(returns(record, discount), wanted, rtol=1e-5, atol=1e-5)


def test_rewards_are_in_units_of_an_optimal_games_mean() -> None:
    problem = made_up()
    record = played_out(problem, np.ones((1, problem.moves), np.int8))
    saved = problem.all_slow_ps - int(problem.play(record.actions).total[0])
    share = float(record.rewards.sum()) / problem.moves
    assert np.isclose(share, saved / problem.scale_ps) and 0 < share <= 1


def test_the_best_distinct_games_are_kept() -> None:
    problem = four_lives()
    program = ProgramReplay(problem, 10, Settings(**SMALL | {"best_games": 5}))
    known: dict[bytes, int] = {}
    for seed in range(6):
        record, times = random_games(problem, 12, seed % 4)  # some come twice
        program.add(record, times)
        known |= {row.tobytes(): int(t) for row, t in zip(record.actions, times, strict=True)}
        assert program.best_times.tolist() == sorted(known.values())[:5]
        rows = [row.tobytes() for row in program.best.actions]
        assert len(set(rows)) == 5 and [known[row] for row in rows] == program.best_times.tolist()
        again = played_out(problem, program.best.actions)
        assert np.array_equal(again.rewards, program.best.rewards)  # all columns moved together
    assert program.stored == 72 and program.filled == 10
    record, _ = random_games(problem, 12, 5 % 4)
    newest = {row.tobytes() for row in record.actions[-10:]}
    assert {row.tobytes() for row in program.games.actions} == newest


def filled_replay(**changes: Any) -> Replay:
    settings = Settings(**SMALL | {"replay_games": 40} | changes)
    replay = Replay([made_up(0), made_up(9), four_lives()], settings)
    for program in replay.programs[:2]:  # the third has no games yet
        program.add(*random_games(program.problem, 9))
    return replay


def test_batches_have_their_shares() -> None:
    replay = filled_replay(reanalysed=0.4, best=0.25)
    assert replay.counts(256) == (90, 64, 102) and sum(replay.counts(7)) == 7
    picked = replay.draw(np.random.default_rng(0), 50, 64)
    fresh, best, _ = replay.counts(64)
    is_best = np.zeros(64, bool)
    is_best[fresh : fresh + best] = True
    assert (picked.best == is_best).all()
    counts = np.bincount(picked.program.ravel(), minlength=3) / picked.program.size
    long = np.sqrt([program.problem.moves for program in replay.programs[:2]])
    assert counts[2] == 0 and abs(counts[0] - long[0] / long.sum()) < 0.03
    for number in (0, 1):
        program = replay.programs[number]
        for of_best, most in ((True, len(program.best_times)), (False, program.filled)):
            mine = (picked.program == number) & (picked.best == of_best)
            assert picked.game[mine].max() == most - 1 and picked.game[mine].min() == 0
            record = program.best if of_best else program.games
            free = (record.legal[picked.game[mine], picked.move[mine]].sum(-1) > 1).all()
            assert free, "positions without a choice teach nothing"


@pytest.mark.parametrize("prioritised", [True, False])
def test_positions_are_drawn_by_priority_and_weigh_accordingly(prioritised: bool) -> None:
    replay = filled_replay(prioritised=prioritised, best=0.0)
    program = replay.programs[0]
    record, times = random_games(program.problem, 4, seed=9)
    program.add(record, times, 3, 11)  # of these only a window was searched
    wrong = np.abs(program.games.value[:13] - program.target[:13]).astype(np.float64)
    drawn_from = choices(program.games.take(slice(0, 13)))
    drawn_from[9:, :3] = drawn_from[9:, 11:] = False
    chance = wrong + 0.1 * wrong[drawn_from].mean() if prioritised else np.ones_like(wrong)
    chance = chance * drawn_from / (chance * drawn_from).sum()
    picked = replay.draw(np.random.default_rng(1), 600, 64)
    mine = picked.program == 0
    drawn = np.zeros_like(wrong)
    np.add.at(drawn, (picked.game[mine], picked.move[mine]), 1)
    spread = np.sqrt(chance * mine.sum())
    assert (np.abs(drawn - chance * mine.sum()) <= 5 * spread).all()
    weights = 1 / (drawn_from.sum() * chance[picked.game[mine], picked.move[mine]])
    assert np.allclose(picked.weight[mine], weights, rtol=1e-3)
    if not prioritised:
        assert (picked.weight == 1).all()


@pytest.mark.parametrize("changes", [{}, {"reanalyse": False}])
def test_lessons_hold_what_followed_each_position(changes: dict[str, Any]) -> None:
    replay = filled_replay(**changes)
    settings, steps = replay.settings, replay.settings.unroll
    picked = replay.draw(np.random.default_rng(2), 3, 24)
    ends = np.array([program.problem.moves - 1 for program in replay.programs])
    picked.move[:, ::6] = ends[picked.program[:, ::6]]  # rarely a choice, and so rarely drawn
    prepared = prepare(replay, picked, settings)
    batch, past = prepared.batch, 0
    fresh = replay.counts(24)[0] if settings.reanalyse else 24
    for update, row in np.ndindex(3, 24):
        at = Picked(*(each[update, row] for each in picked))
        program = replay.programs[at.program]
        record = (program.best if at.best else program.games).take(at.game)
        target = returns(program.best if at.best else program.games, settings.discount)[at.game]
        seen = program.problem.observe_at(record.actions[None], at.move[None], steps + 1)
        for name, array in batch.seen.items():
            assert np.array_equal(array[update, row], seen[name][0, 0]), name
        if row >= fresh:
            assert prepared.left[update, row - fresh] == program.problem.moves - at.move
        for k in range(steps + 1):
            move = at.move + k
            inside = move < program.problem.moves
            assert batch.inside[update, row, k] == inside
            if not inside:
                past += 1
                assert batch.legal[update, row, k].all() and batch.value[update, row, k] == 0
                continue
            assert np.array_equal(batch.legal[update, row, k], record.legal[move])
            assert np.array_equal(batch.legal[update, row, k], seen["mask"][0, k])
            taught = np.eye(3)[record.actions[move]] if at.best else record.policy[move]
            assert np.array_equal(batch.policy[update, row, k], taught.astype(np.float32))
            assert batch.value[update, row, k] == target[move]
            if k < steps:
                assert batch.actions[update, row, k] == record.actions[move]
                assert batch.rewards[update, row, k] == record.rewards[move]
    assert past > 0
    assert np.array_equal(batch.weight, picked.weight)


def test_a_shelf_goes_through_a_checkpoint() -> None:
    for games in (4, 25):  # before and after the ring came round
        first = filled_replay().programs[0]
        first.add(*random_games(first.problem, games, 7))
        second = filled_replay().programs[0]
        second.restore(first.arrays())
        light = ProgramReplay(first.problem, first.capacity, first.settings)
        light.restore(first.arrays(full=False))
        assert light.filled == 0 and np.array_equal(light.best.actions, first.best.actions)
        for program in (first, second):
            program.add(*random_games(first.problem, 5, 8))
        for a, b in zip(
            (*first.games, *first.best, first.target, first.best_times),
            (*second.games, *second.best, second.target, second.best_times),
            strict=True,
        ):
            assert np.array_equal(a, b)
        assert first.stored == second.stored
