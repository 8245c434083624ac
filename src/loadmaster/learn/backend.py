"""The few operations that NumPy and JAX do differently, so that a network is written once; and padding.

JAX trains; NumPy alone decides, so that a user's first plan needs no JAX and compiles nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = Any
_BLOCK = 4
"""Segments that NumPy handles at a time: what they need stays in the cache."""
_GROWTH = 1.25


class Backend(Protocol):
    """`xp` is `numpy` or `jax.numpy`."""

    xp: Any

    def segment_max(self, values: Array, segment: Array, count: int) -> Array:
        """[count, …] the largest of each sorted segment; 0 where there is none (values are >= 0)."""

    def segment_sum(self, values: Array, segment: Array, count: int) -> Array: ...

    def constant(self, array: Array) -> Array:
        """Without a gradient."""

    def blocks(self, function: Any, arrays: tuple[Array, ...]) -> Array:
        """`function` over the first axis of `arrays`, in one go or block by block."""


class NumpyBackend:
    """`threads`: for blocks of segments, where matrix products have one thread each."""

    xp: Any = np

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def segment_max(self, values: Array, segment: Array, count: int) -> Array:
        return self._reduce(np.maximum, values, segment, count)

    def segment_sum(self, values: Array, segment: Array, count: int) -> Array:
        return self._reduce(np.add, values, segment, count)

    def _reduce(self, by: Any, values: Array, segment: Array, count: int) -> Array:
        out = np.zeros((count, *values.shape[1:]), dtype=values.dtype)
        used = int(np.searchsorted(segment, count))
        starts = np.flatnonzero(np.diff(segment[:used], prepend=-1))
        if len(starts):
            out[segment[starts]] = by.reduceat(values[:used], starts, axis=0)
        return out

    def constant(self, array: Array) -> Array:
        return array

    def blocks(self, function: Any, arrays: tuple[Array, ...]) -> Array:
        rows = [slice(at, at + _BLOCK) for at in range(0, len(arrays[0]), _BLOCK)]

        def one(at: slice) -> Array:
            return function(*(array[at] for array in arrays))

        if self.threads == 1:
            return np.concatenate([one(at) for at in rows])
        with ThreadPoolExecutor(self.threads) as pool:
            return np.concatenate(list(pool.map(one, rows)))


class JaxBackend:
    """With gradients."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self.jax: Any = jax
        self.xp: Any = jnp

    def segment_max(self, values: Array, segment: Array, count: int) -> Array:
        found = self.jax.ops.segment_max(values, segment, count + 1, indices_are_sorted=True)
        return self.xp.maximum(found[:count], 0)

    def segment_sum(self, values: Array, segment: Array, count: int) -> Array:
        return self.jax.ops.segment_sum(values, segment, count + 1, indices_are_sorted=True)[:count]

    def constant(self, array: Array) -> Array:
        return self.jax.lax.stop_gradient(array)

    def blocks(self, function: Any, arrays: tuple[Array, ...]) -> Array:
        # Recomputed for the gradient: memory stays linear in the number of nodes.
        return self.jax.checkpoint(function)(*arrays)


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """[rows, choices] -> probabilities; no choices give none."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-1e30))
    shares: npt.NDArray[np.float32] = (raised / np.maximum(raised.sum(axis=1, keepdims=True), 1e-30)).astype(
        np.float32
    )
    return shares


@contextlib.contextmanager
def single_threaded_products() -> Iterator[bool]:
    """Matrix products on one thread each, so that blocks can be shared out; on a busy machine threads
    within small products wait for each other. Without `threadpoolctl` they do as they like (False)."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield False
        return
    with threadpool_limits(1):
        yield True


def bucket(count: int, step: int = 1) -> int:
    """The least padded size that holds `count`: multiples of `step` that grow by a quarter, so that few
    shapes are compiled."""
    size = step
    while size < count:
        size = max(size + step, math.ceil(size * _GROWTH / step) * step)
    return size


def pad_rows(array: npt.NDArray[Any], rows: int, value: int = 0) -> npt.NDArray[Any]:
    """[n, …] -> [rows, …], with `value` behind."""
    padded = np.full((rows, *array.shape[1:]), value, dtype=array.dtype)
    padded[: len(array)] = array
    return padded
