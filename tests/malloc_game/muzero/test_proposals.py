"""The screen of moves: what it sees of a move, and what it learns from which were faster."""

from __future__ import annotations

import numpy as np

from loadmaster.malloc_game.muzero.board import Board, board_settings, first_board
from loadmaster.malloc_game.muzero.scores import (
    CHANGES,
    FEATURES,
    KINDS,
    SEEN,
    Start,
    describe_moves,
    fit_screen,
    make_features,
    moves_width,
    untrained,
    view_plan,
)
from malloc_game.test_msa_order import game

ONE = np.zeros(1, dtype=np.int64)


def start_of(board: Board) -> Start:
    placed = board.place(board.own[None], ONE)
    features = untrained().linear.normalise(make_features(board, placed))
    return Start(view_plan(features, board.own, placed), board.own, 0.0, 0)


def test_a_move_is_described_by_what_it_moves_and_whither() -> None:
    board = Board(first_board(game()).assigner(0), board_settings(CHANGES))
    start, best_in = start_of(board), np.full(len(board.settings), np.inf)
    best_in[:2] = 100.0, 90.0
    up, down, other = (board.own.copy() for _ in range(3))
    up[3] -= 0.2
    down[3] += 0.2
    rows = describe_moves(
        [start],
        np.zeros(3, np.int64),
        np.stack([up, down, other]),
        np.array([0, 0, 1]),
        np.array([0, 0, 3]),
        best_in,
    )
    assert rows.shape == (3, moves_width(FEATURES)) and np.isfinite(rows).all()
    assert rows[:, :KINDS].argmax(axis=1).tolist() == [0, 0, 3]
    signed, far = np.split(rows[:, KINDS + 5 :], 2, axis=1)
    assert np.allclose(signed[0], -signed[1], atol=1e-4) and np.allclose(far[0], far[1], atol=1e-4)
    assert np.allclose(signed[1], start.view[3], rtol=1e-3, atol=1e-4)
    assert not signed[2].any() and rows[2, KINDS + 3] < 0 and rows[2, KINDS + 4] == 1
    assert start.view.shape[1] == (moves_width(FEATURES) - KINDS - 5) // 2 > SEEN


def test_the_screen_learns_which_moves_were_faster() -> None:
    rng = np.random.default_rng(0)
    moves = rng.normal(size=(4000, 12)).astype(np.float32)
    odds = 2 * moves[:, 0] - moves[:, 3] - 1.5
    faster = (rng.random(len(odds)) < 1 / (1 + np.exp(-odds))).astype(np.float64)
    screen = fit_screen(moves, faster)
    found = screen.weights / screen.deviation
    assert (
        abs(found[0] - 2) < 0.3 and abs(found[3] + 1) < 0.3 and np.abs(np.delete(found, [0, 3])).max() < 0.3
    )
    new = rng.normal(size=(2000, 12)).astype(np.float32)
    assert np.corrcoef(screen.log_odds(new), 2 * new[:, 0] - new[:, 3])[0, 1] > 0.97


def test_moves_that_were_never_faster_teach_nothing_that_is_not_finite() -> None:
    moves = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.isfinite(fit_screen(moves, np.zeros(50)).log_odds(moves)).all()
