"""Numbers as distributions over bins, and back."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax.numpy as jnp

from loadmaster.solvers.muzero.support import REWARDS, VALUES, expectation, two_hot


@pytest.mark.parametrize(("ends", "bins"), [(VALUES, 101), (REWARDS, 101), ((-3.0, 8.0), 3)])
def test_there_and_back(ends: tuple[float, float], bins: int) -> None:
    x = np.random.default_rng(bins).uniform(*ends, 500).astype(np.float32)
    x[:2] = ends
    shares = two_hot(jnp.asarray(x), *ends, bins)
    back = expectation(jnp.log(jnp.maximum(shares, 1e-30)), *ends)
    np.testing.assert_allclose(back, x, atol=2e-6 * (ends[1] - ends[0]) * bins)


def test_two_bins_at_most_side_by_side() -> None:
    x = np.random.default_rng(0).uniform(*VALUES, (20, 7))
    shares = np.asarray(two_hot(jnp.asarray(x), *VALUES, 51))
    assert shares.shape == (20, 7, 51)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)
    assert (shares >= 0).all()
    assert ((shares > 0).sum(-1) <= 2).all()
    places = np.argsort(-shares, axis=-1)[..., :2]
    assert (abs(places[..., 0] - places[..., 1])[(shares > 0).sum(-1) == 2] == 1).all()


def test_what_is_out_of_range_is_clipped() -> None:
    shares = np.asarray(two_hot(jnp.array([-9.0, 9.0]), *VALUES, 101))
    assert shares[0, 0] == 1 and shares[1, -1] == 1


def test_all_bins_alike_mean_the_middle() -> None:
    assert float(expectation(jnp.zeros(101), *VALUES)) == pytest.approx(sum(VALUES) / 2)
    assert float(expectation(jnp.full(101, 7.0), *REWARDS)) == pytest.approx(0, abs=1e-6)


def test_gradients_pull_towards_the_target() -> None:
    """A step down the cross-entropy brings the mean nearer."""
    target, logits = two_hot(jnp.float32(0.7), *VALUES, 101), jnp.zeros(101)
    step = target - jnp.full(101, 1 / 101)  # minus the gradient
    before, after = expectation(logits, *VALUES), expectation(logits + step, *VALUES)
    assert abs(float(after) - 0.7) < abs(float(before) - 0.7)
