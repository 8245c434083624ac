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


class Conv(eqx.Module):  # type: ignore[misc]
    """[length..., in] -> [length / stride..., out]; channels last, the layout of the observation
    and the fast one on a CPU."""

    weight: Array
    bias: Array
    stride: int = eqx.field(static=True)

    def __init__(self, kernel: tuple[int, ...], inputs: int, outputs: int, rng: Rng,
                 stride: int = 1, scale: float = 1.0) -> None:  # fmt: skip
        scale *= math.sqrt(2 / (inputs * math.prod(kernel)))  # a ReLU halves what comes in
        self.weight = drawn(rng, (*kernel, inputs, outputs), scale)
        self.bias = filled(0, outputs)
        self.stride = stride

    def __call__(self, x: Array) -> Array:
        along = "HW"[: x.ndim - 1]
        layout = (f"N{along}C", f"{along}IO", f"N{along}C")
        strides = (self.stride,) * len(along)
        y = jax.lax.conv_general_dilated(x[None], self.weight, strides, "SAME",
                                         dimension_numbers=layout)  # fmt: skip
        return y[0] + self.bias


class ConvBlock(eqx.Module):  # type: ignore[misc]
    """Two convolutions added to what came in; nothing at first, so that depth costs no training."""

    first: Conv
    second: Conv

    def __init__(self, channels: int, rng: Rng) -> None:
        self.first = Conv((3, 3), channels, channels, rng)
        self.second = Conv((3, 3), channels, channels, rng, scale=0.0)

    def __call__(self, x: Array) -> Array:
        return x + self.second(jax.nn.relu(self.first(jax.nn.relu(x))))


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


class Head(eqx.Module):  # type: ignore[misc]
    """W -> W/2 -> logits, which are near zero at first: every move and every value is likely."""

    first: Dense
    second: Dense

    def __init__(self, width: int, outputs: int, rng: Rng) -> None:
        self.first = Dense(width, width // 2, rng)
        self.second = Dense(width // 2, outputs, rng, scale=0.1)

    def __call__(self, x: Array) -> Array:
        return self.second(jax.nn.gelu(self.first(x)))
