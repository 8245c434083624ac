"""The layers of mallocMuZero's networks. Weights are drawn by NumPy: the same on every device, and
without a compiler."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Rng = np.random.Generator


def drawn(rng: Rng, shape: tuple[int, ...], scale: float) -> Array:
    """Normal numbers of a standard deviation."""
    return jnp.asarray((scale * rng.standard_normal(shape)).astype(np.float32))


def filled(value: float, width: int) -> Array:
    return jnp.asarray(np.full(width, value, dtype=np.float32))


class Dense(eqx.Module):  # type: ignore[misc]
    """[..., in] -> [..., out]"""

    weight: Array
    bias: Array

    def __init__(self, inputs: int, outputs: int, rng: Rng, scale: float = 1.0) -> None:
        self.weight = drawn(rng, (inputs, outputs), scale / math.sqrt(inputs))
        self.bias = filled(0, outputs)

    def __call__(self, x: Array) -> Array:
        return x @ self.weight + self.bias


class Norm(eqx.Module):  # type: ignore[misc]
    """LayerNorm over the last axis."""

    scale: Array
    shift: Array

    def __init__(self, width: int) -> None:
        self.scale, self.shift = filled(1, width), filled(0, width)

    def __call__(self, x: Array) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * self.scale + self.shift


class Block(eqx.Module):  # type: ignore[misc]
    """LayerNorm, W -> 2W -> W, added to what came in."""

    norm: Norm
    first: Dense
    second: Dense

    def __init__(self, width: int, rng: Rng) -> None:
        self.norm = Norm(width)
        self.first = Dense(width, 2 * width, rng)
        self.second = Dense(2 * width, width, rng)

    def __call__(self, x: Array) -> Array:
        return x + self.second(jax.nn.gelu(self.first(self.norm(x))))


class Patches(eqx.Module):  # type: ignore[misc]
    """[tokens, in] -> [tokens, out]: what is seen, patch by patch, then mixed between patches and within
    them. No convolutions: on a CPU they would take most of a move's time, and more of a gradient's."""

    first: Dense
    between: list[Dense]
    within: list[Block]

    def __init__(self, tokens: int, inputs: int, channels: int, blocks: int, rng: Rng) -> None:
        self.first = Dense(inputs, channels, rng)
        # Nothing at first, so that depth costs no training.
        self.between = [Dense(tokens, tokens, rng, scale=0.0) for _ in range(blocks)]
        self.within = [Block(channels, rng) for _ in range(blocks)]

    def __call__(self, x: Array) -> Array:
        x = self.first(x)
        for between, within in zip(self.between, self.within, strict=True):
            x = within(x + between(jax.nn.gelu(x).T).T)
        return jax.nn.gelu(x)


class Head(eqx.Module):  # type: ignore[misc]
    """W -> W/2 -> logits, which are near zero at first: every move and every value is likely."""

    first: Dense
    second: Dense

    def __init__(self, width: int, outputs: int, rng: Rng) -> None:
        self.first = Dense(width, width // 2, rng)
        self.second = Dense(width // 2, outputs, rng, scale=0.1)

    def __call__(self, x: Array) -> Array:
        return self.second(jax.nn.gelu(self.first(x)))
