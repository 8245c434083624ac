"""The networks of EGRL as published: a problem's graph as they read it, a graph U-Net with attention, an
actor and a critic upon it.

Parameters do not depend on the number of nodes. Shapes: n nodes, C = width, H = heads, M = memories.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from loadmaster.mapping.egrl.paper import Settings
from loadmaster.mapping.features import edges, node_features
from loadmaster.mapping.problem import Mapping

FAR = -1e9
EMBEDDING = 8
SCALED = 18
OPERATIONS = 12
"""Kinds of ops in the feature list."""
MOST_DENSE = 1024
"""Nodes above which every level keeps an edge list, and pooling does not join what is two apart."""
MOST_NEAR = 32
"""Neighbours above which padded lists would waste more than they save."""


class Near(NamedTuple):
    """Padded lists of neighbours, the node itself included: [n, D]."""

    node: Array
    back: Array
    """Where this node stands in its neighbour's list, as a position in the flattened lists."""
    real: Array


class Edges(NamedTuple):
    """Both directions of every edge, and self-loops: [E]."""

    source: Array
    target: Array
    real: Array


class Graph(NamedTuple):
    """`n` nodes, `M` memories."""

    operation: Array
    """int32[n]"""
    scaled: Array
    """float32[n, 18]"""
    placed: Array
    """float32[n, 2M] one-hot of where activation and weights are now"""
    near: Near | Edges | Array
    """Who attends to whom on the first level; bool[n, n] on an accelerator, which has no use for
    short loops."""
    apart: Array | None
    """bool[n, n] at most two edges apart: the neighbours on the first pooled level. None: edge
    lists on all levels."""
    live: Array
    """bool[2, n] what is decided"""

    @property
    def nodes(self) -> int:
        return int(self.operation.shape[0])

    @property
    def memories(self) -> int:
        return int(self.placed.shape[1]) // 2


def make_graph(problem: Mapping, *, dense: bool | None = None) -> Graph:
    """The graph of a problem; `dense`: with neighbours two apart on pooled levels, by default if it is small."""
    features, pairs = node_features(problem), edges(problem)
    n, memories = problem.nodes, len(problem.memories)
    one_hot = np.eye(memories, dtype=np.float32)[features[:, 19:21].astype(int)]
    dense = n <= MOST_DENSE if dense is None else dense
    return Graph(
        operation=jnp.asarray(features[:, 0].astype(np.int32)),
        scaled=jnp.asarray(features[:, 1:19]),
        placed=jnp.asarray(one_hot.reshape(n, 2 * memories)),
        near=_first_level(pairs, n, dense),
        apart=jnp.asarray(_apart(pairs, n)) if dense else None,
        live=jnp.asarray(problem.live.reshape(2, n)),
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


def _first_level(pairs: npt.NDArray[np.int32], n: int, dense: bool) -> Near | Edges | Array:
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


@jax.custom_vjp  # type: ignore[untyped-decorator]
def mix(share: Array, h: Array, near: Near) -> Array:
    """[n, C]: each node's sum over its neighbours' `h` [n, C], weighted by `share` [n, D, H].

    A loop over D with a gradient of its own: neighbours are mutual, so that the gradient of `h` is
    the same sum with shares turned round. Many times faster than gather, product and scatter.
    """
    part = h.shape[1] // share.shape[2]

    def add(total: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
        node, weight = column
        return total + jnp.repeat(weight, part, axis=1) * h[node], None

    return jax.lax.scan(add, jnp.zeros_like(h), (near.node.T, share.swapaxes(0, 1)))[0]


def _mix_forward(share: Array, h: Array, near: Near) -> tuple[Array, tuple[Array, Array, Near]]:
    return mix(share, h, near), (share, h, near)


def _mix_backward(kept: tuple[Array, Array, Near], g: Array) -> tuple[Array, Array, None]:
    share, h, near = kept
    n, most, heads = share.shape
    turned = jnp.where(near.real[..., None], share.reshape(n * most, heads)[near.back], 0)
    summed = _blocks(jnp.ones((heads, h.shape[1] // heads)))
    _, by_share = jax.lax.scan(lambda _, node: (None, (g * h[node]) @ summed), None, near.node.T)
    return by_share.swapaxes(0, 1), mix(turned, g, near), None


mix.defvjp(_mix_forward, _mix_backward)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def look(x: Array, near: Near) -> Array:
    """[n, H] -> [n, D, H]: what each node's neighbours hold."""
    return x[near.node]


def _look_forward(x: Array, near: Near) -> tuple[Array, Near]:
    return x[near.node], near


def _look_backward(near: Near, g: Array) -> tuple[Array, None]:
    turned = g.reshape(-1, g.shape[2])[near.back]
    return jnp.where(near.real[..., None], turned, 0).sum(axis=1), None


look.defvjp(_look_forward, _look_backward)


def _blocks(rows: Array) -> Array:
    """[H, C/H] -> [C, H]: a matrix product with it is a sum within each head."""
    heads, part = rows.shape
    return (jnp.eye(heads)[:, None] * rows[..., None]).reshape(heads * part, heads)


def attend(h: Array, to: Array, by: Array, around: Near | Edges | Array, attention: bool) -> Array:
    """[n, C]: each node's weighted mean over its neighbours, head by head.

    `h` [n, C] is what they hold; `to` [n, H] (target) and `by` [n, H] (source) make the weights.
    `around` says who the neighbours are; a bool[n, n] array does so densely.
    """
    n, heads = to.shape
    if not attention:
        to, by = jnp.zeros_like(to), jnp.zeros_like(by)
    if isinstance(around, Near):
        logits = jax.nn.leaky_relu(to[:, None] + look(by, around), 0.2)
        share = jax.nn.softmax(jnp.where(around.real[..., None], logits, FAR), axis=1)
        return mix(share, h, around)
    if isinstance(around, Edges):
        logits = jax.nn.leaky_relu(to[around.target] + by[around.source], 0.2)
        logits = jnp.where(around.real[:, None], logits, FAR)
        most = jax.ops.segment_max(logits, around.target, n)[around.target]
        raised = jnp.where(around.real[:, None], jnp.exp(logits - jax.lax.stop_gradient(most)), 0)
        total = jax.ops.segment_sum(raised, around.target, n)
        each = raised[..., None] * h.reshape(n, heads, -1)[around.source]
        mixed = jax.ops.segment_sum(each, around.target, n)
        return (mixed / jnp.maximum(total, 1e-9)[..., None]).reshape(n, -1)
    logits = jax.nn.leaky_relu(to.T[:, :, None] + by.T[:, None, :], 0.2)  # [H, n, n]
    share = jax.nn.softmax(jnp.where(around[None], logits, FAR), axis=2)
    # As a batch of products: an einsum over "hij,jhc" runs several times slower on a CPU.
    mixed = share @ jnp.moveaxis(h.reshape(n, heads, -1), 1, 0)
    return jnp.moveaxis(mixed, 0, 1).reshape(n, -1)


class Block(eqx.Module):  # type: ignore[misc]
    """Attention convolution, LayerNorm, ReLU."""

    weight: Array
    target: Array
    source: Array
    bias: Array
    scale: Array
    shift: Array
    attention: bool = eqx.field(static=True)

    def __init__(self, inputs: int, settings: Settings, key: Array) -> None:
        keys = jax.random.split(key, 3)
        heads, width = settings.heads, settings.width
        glorot = jax.nn.initializers.glorot_uniform()
        self.weight = glorot(keys[0], (inputs, width))
        self.target = glorot(keys[1], (heads, width // heads))
        self.source = glorot(keys[2], (heads, width // heads))
        self.bias, self.shift = jnp.zeros(width), jnp.zeros(width)
        self.scale = jnp.ones(width)
        self.attention = settings.attention

    def __call__(self, x: Array, around: Near | Edges | Array, relu: bool = True) -> Array:
        h = x @ self.weight
        to, by = h @ _blocks(self.target), h @ _blocks(self.source)
        x = attend(h, to, by, around, self.attention) + self.bias
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.scale + self.shift
        return jax.nn.relu(x) if relu else x


class UNet(eqx.Module):  # type: ignore[misc]
    """Down by keeping the half of the nodes with the largest score, up again with summed skips."""

    first: Block
    down: list[Block]
    up: list[Block]
    score: list[Array]

    def __init__(self, inputs: int, settings: Settings, key: Array) -> None:
        depth, width = settings.depth, settings.width
        keys = iter(jax.random.split(key, 3 * depth + 1))
        self.first = Block(inputs, settings, next(keys))
        self.down = [Block(width, settings, next(keys)) for _ in range(depth)]
        self.up = [Block(width, settings, next(keys)) for _ in range(depth)]
        glorot = jax.nn.initializers.glorot_uniform()
        self.score = [glorot(next(keys), (width, 1))[:, 0] for _ in range(depth)]

    def __call__(self, x: Array, graph: Graph) -> Array:
        around = graph.near
        x = self.first(x, around)
        saved = []
        for level, (block, score) in enumerate(zip(self.down, self.score, strict=True)):
            n = x.shape[0]
            top, kept = jax.lax.top_k(x @ score / jnp.maximum(jnp.linalg.norm(score), 1e-9), math.ceil(n / 2))
            saved.append((x, around, kept))
            around = _pooled(around, graph.apart if level == 0 else None, kept, n)
            x = block(x[kept] * jnp.tanh(top)[:, None], around)
        for level in reversed(range(len(saved))):
            skip, around, kept = saved[level]
            x = self.up[level](skip.at[kept].add(x), around, relu=level > 0)
        return x


def _pooled(around: Near | Edges | Array, apart: Array | None, kept: Array, n: int) -> Edges | Array:
    """The neighbours among the nodes that are kept: those at most two apart, if dense."""
    if isinstance(around, Edges) and apart is None:
        place = jnp.full(n, -1, dtype=jnp.int32).at[kept].set(jnp.arange(len(kept), dtype=jnp.int32))
        source, target = place[around.source], place[around.target]
        real = around.real & (source >= 0) & (target >= 0)
        return Edges(jnp.maximum(source, 0), jnp.maximum(target, 0), real)
    if apart is None:
        assert isinstance(around, Array)
        # Only the rows of kept nodes are needed; A is symmetric.
        rows = around[kept].astype(jnp.float32)
        return rows @ rows.T > 0
    return apart[kept][:, kept]


def _inputs(embedding: Array, graph: Graph) -> Array:
    return jnp.concatenate([graph.scaled, embedding[graph.operation], graph.placed], axis=1)


class Actor(eqx.Module):  # type: ignore[misc]
    """Logits [2, n, M]: where activations go, and where weights go."""

    embedding: Array
    body: UNet
    hidden: list[eqx.nn.Linear]
    heads: list[eqx.nn.Linear]

    def __init__(self, memories: int, settings: Settings, key: Array) -> None:
        keys = jax.random.split(key, 6)
        width = settings.width
        self.embedding = 0.1 * jax.random.normal(keys[0], (OPERATIONS, EMBEDDING))
        self.body = UNet(SCALED + EMBEDDING + 2 * memories, settings, keys[1])
        self.hidden = [eqx.nn.Linear(width, width, key=keys[2]), eqx.nn.Linear(width, width, key=keys[3])]
        self.heads = [
            eqx.nn.Linear(width, memories, key=keys[4]),
            eqx.nn.Linear(width, memories, key=keys[5]),
        ]

    def __call__(self, graph: Graph) -> Array:
        x = self.body(_inputs(self.embedding, graph), graph)
        for layer in self.hidden:
            x = jnp.tanh(x @ layer.weight.T + layer.bias)
        return jnp.stack([x @ head.weight.T + head.bias for head in self.heads])


class Critic(eqx.Module):  # type: ignore[misc]
    """Two estimates [2] of the scaled reward of an action [2, n, M] (one-hot, or nearly)."""

    embedding: Array
    body: UNet
    heads: list[eqx.nn.MLP]

    def __init__(self, memories: int, settings: Settings, key: Array) -> None:
        keys = jax.random.split(key, 4)
        self.embedding = 0.1 * jax.random.normal(keys[0], (OPERATIONS, EMBEDDING))
        self.body = UNet(SCALED + EMBEDDING + 4 * memories, settings, keys[1])
        self.heads = [eqx.nn.MLP(settings.width, "scalar", settings.width, 2, key=k) for k in keys[2:]]

    def __call__(self, graph: Graph, action: Array) -> Array:
        # A dead entry never speaks: whatever stands there, the critic sees zeros.
        action = jnp.where(graph.live[..., None], action, 0)
        x = jnp.concatenate([_inputs(self.embedding, graph), action[0], action[1]], axis=1)
        x = self.body(x, graph)
        # Not `x.max(axis=0)`: its gradient looks for the maximum again, and where the compiler computes `x` a second
        # time with other rounding it finds none and divides by 0.
        x = jnp.take_along_axis(x, x.argmax(axis=0)[None], axis=0)[0]
        return jnp.stack([head(x) for head in self.heads])
