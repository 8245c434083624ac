"""Layers that the traced workloads share.

Everything is written with `jax.lax` alone, so that one call is one op: a layer's count of ops can
be read off its code, and tracing is fast. Layers take `weights` first and the name of their
weights second. Vectors meet larger arrays as views with dimensions of size 1, never as copies. Images are
[batch, height, width, channels], sounds [batch, time, channels].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from loadmaster.program.zoo.training import Array, Weights, cast

Padding = str | Sequence[tuple[int, int]]
LAYOUTS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC")}


def times(x: Array, number: float) -> Array:
    """`x` times a number of its own type, which is no tensor."""
    return lax.mul(x, x.dtype.type(number))


def unsqueeze(x: Array, *dims: int) -> Array:
    """`x` with dimensions of size 1 at `dims` of the result: a view (`lax.expand_dims` is none)."""
    sizes = iter(x.shape)
    return lax.reshape(x, [1 if d in dims else next(sizes) for d in range(x.ndim + len(dims))])


def last(x: Array, like: Array) -> Array:
    """A vector as a view that meets the last dimension of `like`."""
    return lax.reshape(x, (1,) * (like.ndim - 1) + x.shape)


def zeros(scope: str, *shape: int) -> Array:
    """A layer's first state, made in the layer's scope."""
    with jax.named_scope(scope):
        return lax.full(shape, 0, "float32")


def by_step(x: Array) -> list[Array]:
    """The slices of the first dimension, by one split: its gradient is one concatenation."""
    return [lax.squeeze(part, (0,)) for part in lax.split(x, [1] * x.shape[0], 0)]


def linear(weights: Weights, name: str, x: Array, size: int, *, bias: bool = True) -> Array:
    """A dense layer over the last dimension."""
    kernel = weights(f"{name}.w", (x.shape[-1], size))
    return dense(x, kernel, weights(f"{name}.b", (size,)) if bias else None)


def dense(x: Array, kernel: Array, bias: Array | None = None) -> Array:
    """The product over the last dimension, and a bias."""
    y = lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))
    return y if bias is None else lax.add(y, last(bias, y))


def lstm_cell(weights: Weights, name: str, x: Array, output: Array, state: Array) -> tuple[Array, Array]:
    """One step of an LSTM: the new output and state, from its input and its last output and state."""
    size = state.shape[1]
    recurrent = weights(f"{name}.recurrent.w", (output.shape[-1], 4 * size))
    kernel, bias = weights(f"{name}.w", (x.shape[-1], 4 * size)), weights(f"{name}.b", (4 * size,))
    stepped: tuple[Array, Array] = _lstm_step(x, output, state, recurrent, kernel, bias)
    return stepped


@jax.jit  # type: ignore[untyped-decorator]
def _lstm_step(
    x: Array, output: Array, state: Array, recurrent: Array, kernel: Array, bias: Array
) -> tuple[Array, Array]:
    # A part that recurs is jitted: JAX traces, differentiates and transposes it once for all its calls.
    before = dense(output, recurrent)
    gates = lax.add(dense(x, kernel, bias), before)
    enter, forget, leave, new = lax.split(gates, [state.shape[1]] * 4, 1)
    kept = lax.mul(lax.logistic(lax.add(forget, 1.0)), state)
    state = lax.add(kept, lax.mul(lax.logistic(enter), lax.tanh(new)))
    return lax.mul(lax.logistic(leave), lax.tanh(state)), state


def embed(weights: Weights, name: str, tokens: Array, vocabulary: int, size: int) -> Array:
    """Rows of a table, for tokens of any shape."""
    table = weights(f"{name}.table", (vocabulary, size))
    index = unsqueeze(tokens, tokens.ndim)
    numbers = lax.GatherDimensionNumbers((tokens.ndim,), (0,), (0,))
    return lax.gather(table, index, numbers, (1, size), mode="promise_in_bounds")


def softmax(x: Array) -> Array:
    """Over the last dimension."""
    top = lax.reduce_max(lax.stop_gradient(x), (x.ndim - 1,))
    powers = lax.exp(lax.sub(x, unsqueeze(top, x.ndim - 1)))
    return lax.div(powers, unsqueeze(lax.reduce_sum(powers, (x.ndim - 1,)), x.ndim - 1))


def attention(queries: Array, keys: Array, values: Array, scale: float, add: Array | None = None) -> Array:
    """What each query takes from the values; `add` is added to the scores, before the softmax.

    Queries are [batch, time, heads, size] or [batch, time, key heads, queries per key head, size],
    keys and values [batch, time, key heads, size]; the result is [batch, time, all together].
    """
    wide = queries.ndim
    scores = lax.dot_general(queries, keys, (((wide - 1,), (3,)), ((0, 2), (0, 2))))
    scores = times(scores if add is None else lax.add(scores, add), scale)
    mixed = lax.dot_general(softmax(scores), values, (((wide - 1,), (1,)), ((0, 1), (0, 2))))
    ordered = lax.transpose(mixed, (0, 2, 1, *range(3, wide)))
    return lax.reshape(ordered, (*queries.shape[:2], math.prod(queries.shape[2:])))


def causal_mask(queries: int, keys: int) -> Array:
    """[queries, keys] 0 where a query may look and -1e9 where not; the last query may see all."""
    shape = (queries, keys)
    query, key = (lax.broadcasted_iota("int32", shape, dim) for dim in (0, 1))
    latest = lax.add(query, keys - queries) if keys > queries else query
    return lax.mul(cast(lax.gt(key, latest), "float32"), -1e9)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Summed over all rows of `logits` [rows, classes], in f32."""
    logits = cast(logits, "float32")
    top = lax.reduce_max(lax.stop_gradient(logits), (1,))
    shifted = lax.sub(logits, unsqueeze(top, 1))
    total = lax.log(lax.reduce_sum(lax.exp(shifted), (1,)))
    numbers = lax.GatherDimensionNumbers((), (1,), (1,), (0,), (0,))
    index = unsqueeze(labels, 1)
    chosen = lax.gather(shifted, index, numbers, (1, 1), mode="promise_in_bounds")
    return lax.reduce_sum(lax.sub(total, chosen), (0,))


def mean(x: Array, dims: Sequence[int]) -> Array:
    """The mean over `dims`, which are kept with size 1."""
    count = math.prod(x.shape[d] for d in dims)
    return unsqueeze(lax.mul(lax.reduce_sum(x, tuple(dims)), 1 / count), *dims)


def layer_norm(weights: Weights, name: str, x: Array) -> Array:
    """Over the last dimension, with scale and shift; statistics in f32."""
    wide = cast(x, "float32")
    centred = lax.sub(wide, mean(wide, [x.ndim - 1]))
    inverse_deviation = lax.rsqrt(lax.add(mean(lax.square(centred), [x.ndim - 1]), 1e-5))
    y = cast(lax.mul(centred, inverse_deviation), str(x.dtype))
    y = lax.mul(y, last(weights(f"{name}.scale", x.shape[-1:]), y))
    return lax.add(y, last(weights(f"{name}.shift", x.shape[-1:]), y))


def rms_norm(weights: Weights, name: str, x: Array) -> Array:
    """Layer norm without mean and shift."""
    wide = cast(x, "float32")
    inverse_deviation = lax.rsqrt(lax.add(mean(lax.square(wide), [x.ndim - 1]), 1e-5))
    y = cast(lax.mul(wide, inverse_deviation), str(x.dtype))
    return lax.mul(y, last(weights(f"{name}.scale", x.shape[-1:]), y))


def by_head(x: Array, heads: int) -> Array:
    """The last dimension as [heads, size]."""
    return lax.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads))


def relu(x: Array) -> Array:
    """The larger of `x` and 0; its gradient keeps one bit an element."""
    return _relu(x)


def _larger(x: Array) -> Array:
    return lax.max(x, x.dtype.type(0))


def _larger_jvp(values: tuple[Array], changes: tuple[Array]) -> tuple[Array, Array]:
    (x,), (change,) = values, changes
    passed = lax.select(lax.gt(x, x.dtype.type(0)), change, lax.full(x.shape, 0, x.dtype))
    return _larger(x), passed


_relu = jax.custom_jvp(_larger)
_relu.defjvp(_larger_jvp)


def silu(x: Array) -> Array:
    """`x` times its logistic."""
    return lax.mul(x, lax.logistic(x))


def gelu(x: Array) -> Array:
    """By the error function."""
    return lax.mul(times(x, 0.5), lax.add(lax.erf(times(x, 0.5**0.5)), x.dtype.type(1)))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), for x that are not large."""
    return lax.log1p(lax.exp(x))


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
