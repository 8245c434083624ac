"""The board: each of its states is a plan that the checker accepts, and says about itself what it should."""

from __future__ import annotations

import numpy as np
import pytest

from generate_game import random_game
from loadmaster import _core
from loadmaster.errors import LoadmasterError
from loadmaster.malloc_game.msa import Assigner
from loadmaster.malloc_game.muzero.board import FIRST, Board, board_settings, first_board
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from malloc_game.test_msa_order import game
from reference.msa_feedback import feedback

CHANGES = [{"max_ratio": 2.0}, {"repacks": 50, "slices": 4}, {"min_ratio": 0.5, "preferred_ratio": 1.0}]


def random_board(seed: int) -> tuple[MallocGame, Board] | None:
    program, machine = random_game(np.random.default_rng(seed))
    try:
        problem = MallocGame(program, machine)
    except LoadmasterError:
        return None
    if not problem.moves:
        return None
    return problem, first_board(problem, board_settings(CHANGES))


def test_the_first_state_is_the_refined_plan() -> None:
    for seed in range(4):
        problem = game(seed)
        board = first_board(problem)
        refined = solve(make_labelled("malloc-game", "msa", {"style": "refined"}), problem, Budget(5))
        assert board.place(board.own[None], np.zeros(1, np.int64)).total.tolist() == [refined.value]
        assert problem.evaluate(problem.decision(board.plan(board.own, 0))) == refined.value


def test_every_state_is_a_legal_plan_with_the_time_that_it_is_said_to_have() -> None:
    seen = 0
    for seed in range(60):
        made = random_board(seed)
        if made is None:
            continue
        problem, board = made
        rng = np.random.default_rng(seed)
        priorities = rng.random((8, board.tensors))
        settings = rng.integers(0, len(board.settings), 8)
        placed = board.place(priorities, settings)
        for row in range(8):
            plan = board.plan(priorities[row], int(settings[row]))
            assert not problem.violations(plan)
            assert problem.evaluate(problem.decision(plan)) == placed.total[row]
        seen += 1
    assert seen > 30


def test_feedback_is_that_of_the_slow_twin() -> None:
    seen = 0
    for seed in range(60):
        made = random_board(seed)
        if made is None:
            continue
        problem, board = made
        rng = np.random.default_rng(seed)
        priorities, setting = rng.random((1, board.tensors)), int(rng.integers(0, len(board.settings)))
        placed = board.place(priorities, np.array([setting]))
        slow = feedback(problem.model, board.assigner(setting).assign(board.orders(priorities)[0]))
        for name in ("kept", "lost", "blamed", "pressure"):
            assert np.allclose(getattr(placed, name)[0], getattr(slow, name), rtol=1e-6, atol=1e-3), (
                seed,
                name,
            )
        seen += placed.lost.any() and placed.kept.any()
    assert seen > 10


def test_runs_do_not_depend_on_threads_or_company() -> None:
    problem = game()
    board = first_board(problem, board_settings(CHANGES))
    rng = np.random.default_rng(1)
    priorities, settings = rng.random((12, board.tensors)), rng.integers(0, 4, 12)
    one = board.place(priorities, settings)
    many = Board(board.assigner(0), board_settings(CHANGES), threads=3).place(priorities, settings)
    assert np.array_equal(one.total, many.total) and np.array_equal(one.blamed, many.blamed)
    alone = board.place(priorities[7:8], settings[7:8])
    assert alone.total[0] == one.total[7] and np.array_equal(alone.lost[0], one[7].lost[0])


def test_classes_part_the_tensors() -> None:
    board = first_board(game())
    assert np.array_equal(np.sort(np.concatenate(board.classes)), np.arange(board.tensors))


def test_the_core_refuses_what_makes_no_sense() -> None:
    problem, other = game(0), game(1)
    a, b = (Assigner(each.program, each.machine, each.model, FIRST)._msa for each in (problem, other))
    order = np.arange(len(problem.model.tensors.size), dtype=np.int32)[None]
    which = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="of one model"):
        _core.run_msas([a, b], which, order, 1)
    with pytest.raises(ValueError, match="no such options"):
        _core.run_msas([a], which + 1, order, 1)
    with pytest.raises(ValueError, match="permutation"):
        _core.run_msas([a], which, order * 0, 1)
    with pytest.raises(ValueError, match="one choice"):
        _core.run_msas([a], np.zeros(2, np.int32), order, 1)
