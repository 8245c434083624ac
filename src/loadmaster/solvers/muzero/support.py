"""Values and rewards as distributions over bins: a number is the mean of its two nearest bins, and a
prediction is the mean of all of them. Bins lie densely around zero and sparsely far from it: what most
moves earn is a thousandth of what the largest tensors do, and it is what play is about."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

VALUES = (-7.0, 8.5)
"""Ends of the bins, as sign(x) log(1 + |x|); the unit is an optimal game's mean reward."""
REWARDS = (-7.0, 7.0)
"""The same, of one move."""


def centres(low: float, high: float, bins: int) -> Array:
    """[bins] what each bin stands for."""
    at = np.linspace(low, high, bins)
    return jnp.asarray(np.sign(at) * np.expm1(np.abs(at)), jnp.float32)


def two_hot(x: Array, low: float, high: float, bins: int) -> Array:
    """[...] -> [..., bins]: shares of the two bins around each number, which is clipped first."""
    middle = centres(low, high, bins)
    x = jnp.clip(x, middle[0], middle[-1])
    below = jnp.clip(jnp.searchsorted(middle, x, side="right") - 1, 0, bins - 2)
    share = ((x - middle[below]) / (middle[below + 1] - middle[below]))[..., None]
    return (1 - share) * jax.nn.one_hot(below, bins) + share * jax.nn.one_hot(below + 1, bins)


def expectation(logits: Array, low: float, high: float) -> Array:
    """[..., bins] -> [...]: the mean of the distribution that logits stand for."""
    # A sum of products and no matrix product, which accelerators round to a few bits: values of
    # moves differ in the third digit.
    return (jax.nn.softmax(logits) * centres(low, high, logits.shape[-1])).sum(-1)
