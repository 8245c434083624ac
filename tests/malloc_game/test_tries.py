"""`finish` and `try_all` of the native game against the slow one, move by move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from generate_game import random_game
from loadmaster.malloc_game.games import FALLBACK
from loadmaster.malloc_game.problem import MallocGame
from reference.game import SlowGame

CASES = 30


def random_problem(seed: int, **switches: Any) -> MallocGame:
    program, machine = random_game(np.random.default_rng([seed, 4]), (4, 9))
    return MallocGame(program, machine, **switches)


def slow_game(problem: MallocGame, moves: Any = ()) -> SlowGame:
    """The same game, some moves played."""
    game = SlowGame(problem.model, **problem.options())
    for move in moves:
        game.step(int(move))
    return game


@pytest.mark.parametrize("backup", ["retroactive", "rewind", "none"])
def test_games_are_finished_as_if_move_by_move(backup: str) -> None:
    repaired = 0
    for seed in range(CASES):
        problem = random_problem(seed, backup=backup, repack=seed % 2)
        rng = np.random.default_rng(seed)
        begun = int(rng.integers(0, problem.moves + 1))
        first = problem.play(rng.integers(0, 3, (3, problem.moves))).actions[:, :begun]
        wishes = rng.integers(0, problem.actions, (3, problem.moves)).astype(np.int16)
        found = []
        for threads in (1, 2):
            games = problem.games(3, threads)
            games.replay(first)
            found.append(games.finish(wishes))
            assert (games.cursors == problem.moves).all()
        actions, earned, legal = found[0]
        assert all(map(np.array_equal, *found)), "threads change nothing"
        assert not (actions[:, :begun].any() or earned[:, :begun].any() or legal[:, :begun].any())
        for row in range(3):
            slow = slow_game(problem, first[row])
            for move in range(begun, problem.moves):
                mask = slow.mask()
                assert legal[row, move].tolist() == mask, f"seed {seed}"
                wish = next(a for a in (int(wishes[row, move]), *FALLBACK) if mask[a])
                assert actions[row, move] == wish, f"seed {seed}"
                assert earned[row, move] == slow.step(wish), f"seed {seed}"
            repaired += slow.backups
    assert repaired > 5


@pytest.mark.parametrize("backup", ["retroactive", "rewind", "none"])
def test_every_legal_move_is_tried_to_the_end(backup: str) -> None:
    better = 0
    for seed in range(CASES):
        problem, rng = random_problem(seed, backup=backup), np.random.default_rng(seed)
        moves = problem.play(rng.integers(0, problem.actions, (2, problem.moves))).actions
        one, two = (problem.try_all(moves, threads=threads) for threads in (1, 2))
        assert np.array_equal(one, two), f"seed {seed}"
        first = int(rng.integers(0, problem.moves + 1))
        last = int(rng.integers(first, problem.moves + 1))
        assert np.array_equal(problem.try_all(moves, first, last), one[:, first:last])
        own = problem.play(moves).total
        for row, site in np.ndindex(2, problem.moves):
            mask = slow_game(problem, moves[row, :site]).mask()
            for action in range(problem.actions):
                if sum(mask) < 2 or not mask[action]:
                    assert one[row, site, action] == -1, f"seed {seed}"
                    continue
                slow = slow_game(problem, moves[row, :site])
                slow.step(action)
                slow.play(moves[row])
                assert one[row, site, action] == slow.judged()[0], f"seed {seed}"
                better += one[row, site, action] < own[row]
    assert better > 20


def test_what_can_not_be_tried_is_refused() -> None:
    problem = random_problem(0)
    moves = problem.play(problem.all_slow()[None]).actions
    for first, last in ((-1, 2), (2, 1), (0, problem.moves + 1)):
        with pytest.raises(ValueError, match="no such sites"):
            problem.try_all(moves, first, last)
    mask = problem.games(1).masks()[0]
    moves[0, 0] = int(mask.argmin())
    assert not mask.all()
    with pytest.raises(ValueError, match="row 0 is not legal"):
        problem.try_all(moves)
