"""Numbers as distributions over bins, and back."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax.numpy as jnp

from loadmaster.malloc_game.muzero.paper.network import REWARDS, VALUES, centres, expectation, two_hot

ENDS = [(VALUES, 101), (REWARDS, 101), ((-3.0, 2.0), 3)]


def spread(ends: tuple[float, float], count: int, seed: int = 0) -> np.ndarray:
    """Numbers of all sizes between the ends, which are among them, as are zero and bins' middles."""
    at = np.random.default_rng(seed).uniform(*ends, count)
    x = np.sign(at) * np.expm1(np.abs(at))
    return np.concatenate([x, centres(*ends, 101), [0.0]]).astype(np.float32)


@pytest.mark.parametrize(("ends", "bins"), ENDS)
def test_there_and_back(ends: tuple[float, float], bins: int) -> None:
    x = spread(ends, 500)
    shares = np.asarray(two_hot(jnp.asarray(x), *ends, bins), np.float64)
    # The mean of the two bins is the number itself, large or small.
    np.testing.assert_allclose(shares @ np.asarray(centres(*ends, bins), np.float64), x, rtol=2e-5, atol=1e-4)
    back = expectation(jnp.log(jnp.maximum(shares, 1e-30)), *ends)
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-3)


def test_bins_are_dense_near_zero() -> None:
    middle = np.asarray(centres(*REWARDS, 101))
    assert (np.diff(middle) > 0).all() and abs(middle[50]) < 1e-12
    np.testing.assert_allclose(middle, -middle[::-1], rtol=1e-6, atol=1e-9)
    assert middle[51] < 0.2 and middle[-1] - middle[-2] > 100
    np.testing.assert_allclose(middle[[0, -1]], [-np.expm1(7), np.expm1(7)], rtol=1e-6)


def test_two_bins_at_most_side_by_side() -> None:
    shares = np.asarray(two_hot(jnp.asarray(spread(VALUES, 140).reshape(2, -1)), *VALUES, 51))
    assert shares.shape == (2, 121, 51)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)
    assert (shares >= 0).all()
    assert ((shares > 0).sum(-1) <= 2).all()
    places = np.argsort(-shares, axis=-1)[..., :2]
    assert (abs(places[..., 0] - places[..., 1])[(shares > 0).sum(-1) == 2] == 1).all()


def test_what_is_out_of_range_is_clipped() -> None:
    shares = np.asarray(two_hot(jnp.array([-1e9, 1e9]), *VALUES, 101))
    assert shares[0, 0] == 1 and shares[1, -1] == 1


def test_all_bins_alike_mean_their_mean() -> None:
    assert float(expectation(jnp.zeros(101), *VALUES)) == pytest.approx(float(centres(*VALUES, 101).mean()))
    assert float(expectation(jnp.full(101, 7.0), *REWARDS)) == pytest.approx(0, abs=1e-3)


def test_gradients_pull_towards_the_target() -> None:
    """A step down the cross-entropy brings the mean nearer."""
    target, logits = two_hot(jnp.float32(0.7), *VALUES, 101), jnp.zeros(101)
    step = target - jnp.full(101, 1 / 101)  # minus the gradient
    before, after = expectation(logits, *VALUES), expectation(logits + step, *VALUES)
    assert abs(float(after) - 0.7) < abs(float(before) - 0.7)
