"""Blocks that the TPU programs share, beside the zoo's own layers."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    Padding,
    attention,
    by_head,
    conv,
    gelu,
    last,
    layer_norm,
    linear,
    mean,
    relu,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Weights, cast


def scaled(weights: Weights, name: str, x: Array) -> Array:
    """Batch norm as inference has it: a scale and a shift per channel."""
    y = lax.mul(x, last(weights(f"{name}.scale", x.shape[-1:]), x))
    return lax.add(y, last(weights(f"{name}.shift", x.shape[-1:]), y))


def batch_norm(weights: Weights, name: str, x: Array) -> Array:
    """Batch norm as training has it, by the statistics of this batch, in f32."""
    wide, dims = cast(x, "float32"), range(x.ndim - 1)
    centred = lax.sub(wide, mean(wide, dims))
    spread = lax.rsqrt(lax.add(mean(lax.square(centred), dims), 1e-5))
    return scaled(weights, name, cast(lax.mul(centred, spread), str(x.dtype)))


def conv_relu(
    weights: Weights,
    name: str,
    x: Array,
    size: int,
    kernel: Sequence[int],
    *,
    stride: int = 1,
    padding: Padding = "SAME",
) -> Array:
    """A convolution with its bias, and a ReLU."""
    return relu(conv(weights, name, x, size, kernel, stride=stride, padding=padding, bias=True))


def self_attention(weights: Weights, name: str, x: Array, heads: int, add: Array | None = None) -> Array:
    """Attention of a sequence to itself."""
    width = x.shape[-1]
    q, k, v = (by_head(linear(weights, f"{name}.{what}", x, width), heads) for what in "qkv")
    return linear(weights, f"{name}.o", attention(q, k, v, (width // heads) ** -0.5, add), width)


def feed_forward(weights: Weights, name: str, x: Array, inner: int) -> Array:
    """Two dense layers with a GELU between them."""
    within = gelu(linear(weights, f"{name}.ff0", x, inner))
    return linear(weights, f"{name}.ff1", within, x.shape[-1])


def block(weights: Weights, name: str, x: Array, heads: int, inner: int, add: Array | None = None) -> Array:
    """A transformer block with its norms before each part."""
    with jax.named_scope(name):
        read = layer_norm(weights, f"{name}.norm0", x)
        x = lax.add(x, self_attention(weights, name, read, heads, add))
        read = layer_norm(weights, f"{name}.norm1", x)
        return lax.add(x, feed_forward(weights, name, read, inner))


def patches(weights: Weights, images: Array, patch: int, width: int) -> Array:
    """An image as a sequence of its patches, each through one dense layer."""
    count, side = images.shape[0], images.shape[1] // patch
    x = lax.reshape(images, (count, side, patch, side, patch, 3))
    x = lax.transpose(x, (0, 1, 3, 2, 4, 5))
    return linear(weights, "embed", lax.reshape(x, (count, side * side, patch * patch * 3)), width)


def with_first(weights: Weights, x: Array) -> Array:
    """A sequence behind a learned first element, with learned positions added."""
    first = unsqueeze(weights("embed.class", x.shape[2:]), 0, 1)
    first = lax.broadcast_in_dim(first, (x.shape[0], 1, x.shape[2]), (0, 1, 2))
    x = lax.concatenate([first, x], 1)
    return lax.add(x, unsqueeze(weights("embed.positions", x.shape[1:]), 0))
