"""The network: messages between neighbours, attention within segments, once per task.

n nodes pass messages (GraphSAGE with max pooling); then the same attention layers run once per task,
in the order fusion, placement, schedule, each on the output of the task before plus the graph's
embedding. The graph's mean embedding and the machine gate every dense layer (superposition).
Shapes: S segments of s nodes, C = width, H = heads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from loadmaster.graph.features import LEVELS
from loadmaster.graph.go.paper.graph import ABOUT, FEATURES, KINDS, MOST_DEVICES, Graph
from loadmaster.graph.go.paper.settings import Shape
from loadmaster.learn.backend import Array, Backend

EMBEDDING = 32
FAR = -1e9


class Dense(NamedTuple):
    """A dense layer whose input is scaled by the context (parameter superposition)."""

    weight: Array
    bias: Array
    gate: Array
    """[context, inputs] of what multiplies the input; zero at first, which means 1"""


class Affine(NamedTuple):
    """A dense layer below the graph's own embedding, which therefore can't gate it."""

    weight: Array
    bias: Array


class Sage(NamedTuple):
    """One GraphSAGE layer: a message of neighbours, then an update of the node."""

    message: Array
    update: Affine


class Layer(NamedTuple):
    """One layer of recurrent attention with its feed-forward part."""

    attend: Dense
    mix: Dense
    widen: Dense
    narrow: Dense


class Network(NamedTuple):
    """All weights of GO: encoder, attention layers, and a head for each task."""

    kind: Array
    enter: Affine
    sage: tuple[Sage, ...]
    task: Array
    layers: tuple[Layer, ...]
    fusion: Dense
    device: Dense
    """Of a group: one column for each device"""
    schedule: Dense


class Logits(NamedTuple):
    """Scores of every decision, by task."""

    fusion: Array
    """[N, 16]"""
    device: Array
    """[G, D]"""
    schedule: Array


Memory = tuple[tuple[Array, ...], ...]
"""Per task and layer: [S, s, C] the input of every segment, for those that attend to it later."""


def make_network(seed: int, shape: Shape) -> Network:
    """Untrained."""
    rng, width = np.random.default_rng([seed, 11]), shape.width
    context = width + ABOUT

    def dense(inputs: int, outputs: int, scale: float = 1.0) -> Dense:
        weight = rng.normal(0, scale / math.sqrt(inputs), (inputs, outputs)).astype(np.float32)
        return Dense(weight, np.zeros(outputs, np.float32), np.zeros((context, inputs), np.float32))

    def affine(inputs: int, outputs: int) -> Affine:
        weight = rng.normal(0, 1 / math.sqrt(inputs), (inputs, outputs)).astype(np.float32)
        return Affine(weight, np.zeros(outputs, np.float32))

    sage = tuple(
        Sage(rng.normal(0, 1 / math.sqrt(width), (width, width)).astype(np.float32), affine(2 * width, width))
        for _ in range(shape.rounds)
    )
    layers = tuple(
        Layer(
            dense(width, 3 * width),
            dense(width, width, 0.5),
            dense(width, shape.inner),
            dense(shape.inner, width, 0.5),
        )
        for _ in range(shape.layers)
    )
    return Network(
        rng.normal(0, 0.3, (KINDS, EMBEDDING)).astype(np.float32),
        affine(FEATURES + EMBEDDING, width),
        sage,
        rng.normal(0, 0.3, (3, width)).astype(np.float32),
        layers,
        dense(width, LEVELS, 0.05),
        dense(2 * width, MOST_DEVICES, 0.05),
        dense(width, LEVELS, 0.05),
    )


def run(
    network: Network, graph: Graph, shape: Shape, backend: Backend, tasks: int = 3
) -> tuple[Logits, Memory]:
    """The logits of a whole graph. `tasks`: how many of the three, in their order."""
    embedded = embed(network, graph, shape, backend)
    context = context_of(embedded, graph, backend)
    s = shape.segment
    x = embedded.reshape(-1, s, shape.width)
    real = graph.real.reshape(-1, s)
    outputs, memory = [], []
    out = backend.xp.zeros_like(x)
    for task in range(tasks):
        out = out + x + network.task[task]
        kept = []
        for layer in network.layers if shape.attention else ():
            kept.append(out)
            before = _shifted(backend, backend.constant(out))
            out = attend(layer, context, out, before, real, _shifted(backend, real), shape, backend)
        memory.append(tuple(kept))
        outputs.append(out)
    flat = [each.reshape(-1, shape.width) for each in outputs]
    flat += [flat[-1]] * (3 - tasks)
    return heads(network, graph, context, embedded, flat, shape, backend), tuple(memory)


def embed(network: Network, graph: Graph, shape: Shape, backend: Backend) -> Array:
    """[N, C]"""
    xp = backend.xp
    rows = xp.concatenate([graph.features, network.kind[graph.kind]], axis=1)
    h = norm(xp, xp.maximum(rows @ network.enter.weight + network.enter.bias, 0))
    for sage in network.sage:
        message = sigmoid(xp, h @ sage.message)
        around = backend.segment_max(message[graph.source], graph.target, len(h))
        both = xp.concatenate([h, around], axis=1)
        h = norm(xp, h + xp.maximum(both @ sage.update.weight + sage.update.bias, 0))
    return xp.where(graph.real[:, None], h, 0)


def context_of(embedded: Array, graph: Graph, backend: Backend) -> Array:
    """[C + ABOUT] the graph's mean embedding, and the machine."""
    nodes = backend.xp.maximum(1, graph.real.sum()).astype(embedded.dtype)
    mean = embedded.sum(axis=0) / nodes
    return backend.xp.concatenate([mean, graph.about])


def attend(
    layer: Layer,
    context: Array,
    x: Array,
    before: Array,
    real: Array,
    real_before: Array,
    shape: Shape,
    backend: Backend,
) -> Array:
    """[S, s, C]: each segment attends to itself and to the one before it; no positions."""
    xp, heads_, width = backend.xp, shape.heads, shape.width
    gate = gates(layer.attend, context, shape, xp)

    def block(x: Array, before: Array, real: Array, real_before: Array) -> Array:
        rows = xp.concatenate([before, x], axis=1)
        normed = norm(xp, rows) * gate
        s = x.shape[1]
        weight, bias = layer.attend.weight, layer.attend.bias
        query = normed[:, s:] @ weight[:, :width] + bias[:width]
        both = normed @ weight[:, width:] + bias[width:]
        key, value = both[..., :width], both[..., width:]
        seen = xp.concatenate([real_before, real], axis=1)[:, None, None, :]
        scores = _heads(query, heads_) @ _heads(key, heads_).swapaxes(2, 3) / math.sqrt(width // heads_)
        scores = xp.where(seen, scores, FAR)
        raised = xp.exp(scores - scores.max(axis=3, keepdims=True))
        share = raised / raised.sum(axis=3, keepdims=True)
        mixed = (share @ _heads(value, heads_)).swapaxes(1, 2).reshape(x.shape)
        x = x + apply(layer.mix, mixed, context, shape, xp)
        inner = xp.maximum(apply(layer.widen, norm(xp, x), context, shape, xp), 0)
        return x + apply(layer.narrow, inner, context, shape, xp)

    return backend.blocks(block, (x, before, real, real_before))


def heads(
    network: Network,
    graph: Graph,
    context: Array,
    embedded: Array,
    outputs: list[Array],
    shape: Shape,
    backend: Backend,
) -> Logits:
    """Of the outputs [N, C] of the three tasks."""
    xp = backend.xp
    fusion = apply(network.fusion, norm(xp, outputs[0]), context, shape, xp)
    schedule = apply(network.schedule, norm(xp, outputs[2]), context, shape, xp)
    device = place(network, graph, context, embedded, norm(xp, outputs[1][graph.first]), shape, backend)
    return Logits(fusion, device, schedule)


def place(
    network: Network,
    graph: Graph,
    context: Array,
    embedded: Array,
    first: Array,
    shape: Shape,
    backend: Backend,
) -> Array:
    """[G, D] of the outputs [G, C] of the groups' first nodes."""
    xp = backend.xp
    total = backend.segment_sum(embedded[graph.by_group], graph.group, len(graph.first))
    count = backend.segment_sum(xp.ones((len(graph.group), 1), xp.float32), graph.group, len(graph.first))
    group = xp.concatenate([first, total / xp.maximum(count, 1)], axis=1)
    logits = apply(network.device, group, context, shape, xp)[:, : graph.device_real.shape[0]]
    return xp.where(graph.device_real, logits, FAR)


def apply(dense: Dense, x: Array, context: Array, shape: Shape, xp: Any) -> Array:
    """A dense layer whose input the graph's own embedding modulates."""
    return (x * gates(dense, context, shape, xp)) @ dense.weight + dense.bias


def gates(dense: Dense, context: Array, shape: Shape, xp: Any) -> Array:
    """[inputs] about 1; exactly 1 without modulation."""
    return 2 * sigmoid(xp, context @ dense.gate) if shape.modulation else 1.0


def norm(xp: Any, x: Array) -> Array:
    """Each row with mean 0 and variance 1."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x / xp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def sigmoid(xp: Any, x: Array) -> Array:
    """The logistic function, by tanh, which never overflows."""
    return 0.5 * (xp.tanh(0.5 * x) + 1)


def _heads(x: Array, heads_: int) -> Array:
    """[S, t, C] -> [S, H, t, C / H]"""
    return x.reshape(*x.shape[:2], heads_, -1).swapaxes(1, 2)


def _shifted(backend: Backend, x: Array) -> Array:
    """What the segment before holds; of the first, nothing."""
    return backend.xp.concatenate([backend.xp.zeros_like(x[:1]), x[:-1]])
