"""A Mapping problem's graph as the network reads it: arrays that never change during a run."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from loadmaster.mapping.features import edges, node_features
from loadmaster.mapping.problem import Mapping

OPERATIONS = 12
"""Kinds of ops in the feature list."""
MOST_DENSE = 1024
"""Nodes above which every level keeps an edge list, and pooling does not join what is two apart."""
MOST_NEAR = 32
"""Neighbours above which padded lists would waste more than they save."""


class Near(NamedTuple):
    """Padded lists of neighbours, the node itself included: [n, D]."""

    node: jax.Array
    back: jax.Array
    """Where this node stands in its neighbour's list, as a position in the flattened lists."""
    real: jax.Array


class Edges(NamedTuple):
    """Both directions of every edge, and self-loops: [E]."""

    source: jax.Array
    target: jax.Array
    real: jax.Array


class Graph(NamedTuple):
    """`n` nodes, `M` memories."""

    operation: jax.Array
    """int32[n]"""
    scaled: jax.Array
    """float32[n, 18]"""
    placed: jax.Array
    """float32[n, 2M] one-hot of where activation and weights are now"""
    near: Near | Edges | jax.Array
    """Who attends to whom on the first level; bool[n, n] on an accelerator, which has no use for
    short loops."""
    apart: jax.Array | None
    """bool[n, n] at most two edges apart: the neighbours on the first pooled level. None: edge
    lists on all levels."""
    mask: jax.Array
    """bool[n] no padding"""
    live: jax.Array
    """bool[2, n] what is decided"""

    @property
    def nodes(self) -> int:
        return int(self.mask.shape[0])

    @property
    def memories(self) -> int:
        return int(self.placed.shape[1]) // 2


def make_graph(problem: Mapping, *, pad_to: int | None = None, variant: str = "auto") -> Graph:
    """The graph of a problem, padded to `pad_to` nodes; `variant`: 'dense' or 'edges' by force."""
    features, pairs = node_features(problem), edges(problem)
    real, memories = problem.nodes, len(problem.memories)
    n = max(real, pad_to or 0)
    grown = np.zeros((n, features.shape[1]), dtype=np.float32)
    grown[:real] = features
    placed = np.concatenate(
        [
            np.eye(memories, dtype=np.float32)[features[:, 19].astype(int)],
            np.eye(memories, dtype=np.float32)[features[:, 20].astype(int)],
        ],
        axis=1,
    )
    live = np.zeros((2, n), dtype=np.bool_)
    live[:, :real] = problem.live.reshape(2, real)
    dense = n <= MOST_DENSE if variant == "auto" else variant == "dense"
    return Graph(
        operation=jnp.asarray(grown[:, 0].astype(np.int32)),
        scaled=jnp.asarray(grown[:, 1:19]),
        placed=jnp.asarray(np.pad(placed, ((0, n - real), (0, 0)))),
        near=_first_level(pairs, n, dense),
        apart=jnp.asarray(_apart(pairs, n)) if dense else None,
        mask=jnp.arange(n) < real,
        live=jnp.asarray(live),
    )


def _both_ways(pairs: npt.NDArray[np.int32], n: int) -> tuple[npt.NDArray[np.int64], ...]:
    """(target, source) of every edge in both directions and of self-loops, sorted, each once."""
    loops = np.arange(n)
    target = np.concatenate([pairs[0], pairs[1], loops]).astype(np.int64)
    source = np.concatenate([pairs[1], pairs[0], loops]).astype(np.int64)
    flat = np.unique(target * n + source)
    return flat // n, flat % n


def _edges(pairs: npt.NDArray[np.int32], n: int) -> Edges:
    target, source = _both_ways(pairs, n)
    return Edges(jnp.asarray(source), jnp.asarray(target), jnp.ones(len(target), dtype=bool))


def _first_level(pairs: npt.NDArray[np.int32], n: int, dense: bool) -> Near | Edges | jax.Array:
    if not dense:
        return _edges(pairs, n)
    if jax.default_backend() == "cpu":
        return _near(pairs, n)
    target, source = _both_ways(pairs, n)
    return jnp.zeros((n, n), dtype=bool).at[target, source].set(True)


def _near(pairs: npt.NDArray[np.int32], n: int) -> Near | Edges:
    target, source = _both_ways(pairs, n)
    degree = np.bincount(target, minlength=n)
    most = int(degree.max(initial=1))
    if most > MOST_NEAR:
        return _edges(pairs, n)
    column = np.arange(len(target)) - np.repeat(np.cumsum(degree) - degree, degree)
    node = np.repeat(np.arange(n)[:, None], most, axis=1)
    back, real = np.zeros((n, most), dtype=np.int64), np.zeros((n, most), dtype=np.bool_)
    node[target, column], real[target, column] = source, True
    # The pairs are sorted and symmetric: sorted by source they are the same pairs turned round.
    turned = np.lexsort((target, source))
    back[target, column] = (target * most + column)[turned]
    return Near(jnp.asarray(node), jnp.asarray(back), jnp.asarray(real))


def _apart(pairs: npt.NDArray[np.int32], n: int) -> npt.NDArray[np.bool_]:
    target, source = _both_ways(pairs, n)
    once = np.zeros((n, n), dtype=np.float32)
    once[target, source] = 1
    return np.asarray(once @ once > 0)
