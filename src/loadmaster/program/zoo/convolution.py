"""Convolutions, pools and the norms that go with them, for images [batch, height, width, channels]
and sounds [batch, time, channels]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax import lax

from loadmaster.program.zoo.layers import last, mean, times, unsqueeze
from loadmaster.program.zoo.training import Array, Weights, cast

Padding = str | Sequence[tuple[int, int]]
LAYOUTS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC")}


def conv(
    weights: Weights,
    name: str,
    x: Array,
    size: int,
    kernel: Sequence[int] = (1, 1),
    *,
    stride: int = 1,
    padding: Padding = "SAME",
    dilation: int = 1,
    bias: bool = False,
) -> Array:
    """A convolution to `size` channels."""
    filters = weights(f"{name}.w", (*kernel, x.shape[-1], size))
    spatial = x.ndim - 2
    y = lax.conv_general_dilated(
        x,
        filters,
        (stride,) * spatial,
        padding,
        rhs_dilation=(dilation,) * spatial,
        dimension_numbers=LAYOUTS[x.ndim],
    )
    return lax.add(y, last(weights(f"{name}.b", (size,)), y)) if bias else y


def batch_norm(weights: Weights, name: str, x: Array) -> Array:
    """In training form: by the statistics of this batch (running averages are left out)."""
    dims = range(x.ndim - 1)
    centred = lax.sub(x, mean(x, dims))
    inverse_deviation = lax.rsqrt(lax.add(mean(lax.square(centred), dims), 1e-3))
    scaled = lax.mul(centred, lax.mul(inverse_deviation, last(weights(f"{name}.scale", x.shape[-1:]), x)))
    return lax.add(scaled, last(weights(f"{name}.shift", x.shape[-1:]), x))


def group_norm(weights: Weights, name: str, x: Array, groups: int = 32) -> Array:
    """Over space and one of 32 groups of channels; statistics in f32."""
    batch, height, width, channels = x.shape
    wide = lax.reshape(cast(x, "float32"), (batch, height * width, groups, channels // groups))
    centred = lax.sub(wide, mean(wide, (1, 3)))
    inverse_deviation = lax.rsqrt(lax.add(mean(lax.square(centred), (1, 3)), 1e-5))
    y = lax.reshape(cast(lax.mul(centred, inverse_deviation), str(x.dtype)), x.shape)
    y = lax.mul(y, last(weights(f"{name}.scale", (channels,)), y))
    return lax.add(y, last(weights(f"{name}.shift", (channels,)), y))


def max_pool(x: Array, size: int = 3, *, stride: int = 1, padding: str = "SAME") -> Array:
    """The largest of each window of `size` × `size`."""
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, x.dtype.type(-np.inf), lax.max, window, strides, padding)


def mean_pool(x: Array, size: int = 3, *, stride: int = 1, padding: str = "SAME") -> Array:
    """The mean of each window of `size` × `size`; what lies outside counts as 0."""
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    total = lax.reduce_window(x, x.dtype.type(0), lax.add, window, strides, padding)
    return times(total, 1 / size**2)


def mean_over_space(x: Array) -> Array:
    """[batch, channels]"""
    return times(lax.reduce_sum(x, (1, 2)), 1 / math.prod(x.shape[1:3]))


def double(x: Array) -> Array:
    """An image of twice the height and width, each point four times."""
    batch, height, width, channels = x.shape
    shape = (batch, height, 2, width, 2, channels)
    wide = lax.broadcast_in_dim(unsqueeze(x, 2, 4), shape, range(6))
    return lax.reshape(wide, (batch, 2 * height, 2 * width, channels))
