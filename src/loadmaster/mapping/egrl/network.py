"""The networks of EGRL: a graph U-Net with attention, an actor and a critic upon it.

Parameters do not depend on the number of nodes, so that a policy runs on any workload with the
same number of memories. Shapes: n nodes, C = width, H = heads, M = memories.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from loadmaster.mapping.egrl.graph import OPERATIONS, Edges, Graph, Near
from loadmaster.mapping.egrl.settings import Settings

FAR = -1e9
EMBEDDING = 8
SCALED = 18


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

    def __call__(self, x: Array, around: Near | Edges | Array, mask: Array, relu: bool = True) -> Array:
        h = x @ self.weight
        to, by = h @ _blocks(self.target), h @ _blocks(self.source)
        x = attend(h, to, by, around, self.attention) + self.bias
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.scale + self.shift
        return jnp.where(mask[:, None], jax.nn.relu(x) if relu else x, 0)


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
        around, mask = graph.near, graph.mask
        x = self.first(x, around, mask)
        saved = []
        for level, (block, score) in enumerate(zip(self.down, self.score, strict=True)):
            n = x.shape[0]
            s = jnp.where(mask, x @ score / jnp.maximum(jnp.linalg.norm(score), 1e-9), FAR)
            top, kept = jax.lax.top_k(s, math.ceil(n / 2))
            saved.append((x, around, mask, kept))
            around = _pooled(around, graph.apart if level == 0 else None, kept, n)
            mask = jnp.arange(len(kept)) < (mask.sum() + 1) // 2
            x = jnp.where(mask[:, None], x[kept] * jnp.tanh(top)[:, None], 0)
            around = _masked(around, mask)
            x = block(x, around, mask)
        for level in reversed(range(len(saved))):
            skip, around, mask, kept = saved[level]
            x = self.up[level](skip.at[kept].add(x), around, mask, relu=level > 0)
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


def _masked(around: Edges | Array, mask: Array) -> Edges | Array:
    if isinstance(around, Edges):
        return around._replace(real=around.real & mask[around.source] & mask[around.target])
    return (around & mask[None] & mask[:, None]) | jnp.eye(len(mask), dtype=bool)


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
        x = jnp.where(graph.mask[:, None], x, FAR).max(axis=0)
        return jnp.stack([head(x) for head in self.heads])
