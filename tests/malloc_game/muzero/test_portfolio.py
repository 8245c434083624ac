"""Openings: those that cover most are kept, and what came of some says which is next."""

from __future__ import annotations

import numpy as np

from loadmaster.malloc_game.muzero.scores import choose_openings, fit_portfolio


def test_openings_are_those_that_cover_most() -> None:
    gains = np.array([[0.03, 0.0, 0.02, -1.0], [0.0, 0.03, 0.02, -1.0], [0.0, 0.0, 0.0, 0.5]])
    chosen, means = choose_openings(gains, 3)
    assert chosen == [3, 2, 0] and np.allclose(means, [0.05, 0.19 / 3, 0.2 / 3])


def two_kinds(rng: np.random.Generator, cells: int) -> np.ndarray:
    """Gains [cells, 6]: on half of the cells the first three gain and the others lose, on the rest it is the other way
    round; the last of each three gains most."""
    side = rng.choice([-1.0, 1.0], size=(cells, 1))
    size = np.array([0.01, 0.011, 0.03])
    return np.concatenate([side * size, -side * size], axis=1) + 1e-3 * rng.normal(size=(cells, 6))


def test_what_came_of_one_opening_says_which_is_next() -> None:
    rng = np.random.default_rng(0)
    portfolio = fit_portfolio(two_kinds(rng, 200))
    for first, gain, best in ((0, 0.01, 2), (0, -0.01, 5), (3, 0.01, 5), (4, -0.011, 2)):
        chosen = portfolio.choose(2, np.array([first]), np.array([gain]))
        assert chosen[0] == best and first not in chosen and len(chosen) == 2


def test_all_openings_may_be_tried() -> None:
    portfolio = fit_portfolio(two_kinds(np.random.default_rng(2), 20))
    everything = portfolio.choose(9, np.empty(0, dtype=np.int64), np.empty(0))
    assert sorted(everything.tolist()) == list(range(6))
    assert len(portfolio.choose(3, everything, np.zeros(6))) == 0
