"""Values and rewards as distributions over evenly spaced bins: a number is the mean of its two
nearest bins, and a prediction is the mean of all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

VALUES = (-0.25, 1.0)
"""A return of 1 is provably optimal and 0 is all-slow; worse than all-slow is possible, not useful."""
REWARDS = (-0.5, 0.5)
"""Of one move."""


def two_hot(x: Array, low: float, high: float, bins: int) -> Array:
    """[...] -> [..., bins]: shares of the two bins around each number, which is clipped first."""
    place = (jnp.clip(x, low, high) - low) * ((bins - 1) / (high - low))
    return jnp.maximum(0, 1 - jnp.abs(place[..., None] - jnp.arange(bins)))


def expectation(logits: Array, low: float, high: float) -> Array:
    """[..., bins] -> [...]: the mean of the distribution that logits stand for."""
    # A sum of products and no matrix product, which accelerators round to a few bits: values of
    # moves differ in the third digit.
    centres = jnp.linspace(low, high, logits.shape[-1])
    return (jax.nn.softmax(logits) * centres).sum(-1)
