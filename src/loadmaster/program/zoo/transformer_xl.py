"""Transformer-XL: segments of a text, each attending to the one before it through a memory.

Like Dai et al. 2019 with the width and heads of its large model: d 1,024, 16 heads, inner 4,096,
relative positions by the shift trick, layer norm after each sum, and 2, 4 or 8 layers. Ours: four
segments of 128 tokens in one step (so that there is a pipeline), a memory of 128 which the first
segment gets as an input, batch 32, a vocabulary of 32,000 with a full softmax tied to the
embedding, no dropout.

Scopes: `embed`, `layer<layer>/s<segment>`, `softmax/s<segment>`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    attention,
    by_head,
    causal_mask,
    cross_entropy,
    embed,
    last,
    layer_norm,
    linear,
    relu,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, inputs


def transformer_xl(
    layers: int,
    *,
    width: int = 1024,
    heads: int = 16,
    inner: int = 4096,
    segments: int = 4,
    segment: int = 128,
    batch: int = 32,
    vocabulary: int = 32_000,
) -> Model:
    """The loss over one batch of consecutive segments; `positions` are the encoded distances."""

    def block(weights: Weights, name: str, x: Array, memory: Array, positions: Array) -> Array:
        x = layer_norm(weights, f"{name}.norm0", lax.add(x, attend(weights, name, x, memory, positions)))
        within = relu(linear(weights, f"{name}.ff0", x, inner))
        return layer_norm(weights, f"{name}.norm1", lax.add(x, linear(weights, f"{name}.ff1", within, width)))

    def attend(weights: Weights, name: str, x: Array, memory: Array, positions: Array) -> Array:
        both = lax.concatenate([memory, x], 1)
        queries, keys, values, distances = (
            by_head(linear(weights, f"{name}.{what}", read, width, bias=False), heads)
            for what, read in (("q", x), ("k", both), ("v", both), ("r", positions))
        )
        for_content, for_position = (
            lax.add(queries, unsqueeze(weights(f"{name}.{what}", queries.shape[2:]), 0, 1))
            for what in ("u", "s")
        )
        nearness = lax.dot_general(for_position, distances, (((3,), (2,)), ((2,), (1,))))
        nearness = _shift(lax.transpose(nearness, (1, 0, 2, 3)))
        mask = unsqueeze(causal_mask(segment, 2 * segment), 0, 1)
        scale = (width // heads) ** -0.5
        mixed = attention(for_content, keys, values, scale, lax.add(nearness, mask))
        return linear(weights, f"{name}.o", mixed, width, bias=False)

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed"):
            words = embed(weights, "embed", data["tokens"], vocabulary, width)
            hidden = lax.split(lax.mul(words, width**0.5), [segment] * segments, 1)
        with jax.named_scope("softmax"):
            labels = lax.split(data["labels"], [segment] * segments, 1)
        memories = [data[f"memory{layer}"] for layer in range(layers)]
        total: Array = 0.0
        for number, x in enumerate(hidden):
            for layer in range(layers):
                with jax.named_scope(f"layer{layer}"), jax.named_scope(f"s{number}"):
                    before, memories[layer] = memories[layer], lax.stop_gradient(x)
                    x = block(weights, f"layer{layer}", x, before, data["positions"])
            with jax.named_scope("softmax"), jax.named_scope(f"s{number}"):
                rows = lax.reshape(x, (batch * segment, width))
                table = weights("embed.table", (vocabulary, width))
                logits = lax.dot_general(rows, table, (((1,), (1,)), ((), ())))
                logits = lax.add(logits, last(weights("softmax.b", (vocabulary,)), logits))
                targets = lax.reshape(labels[number], (batch * segment,))
                total = lax.add(total, cross_entropy(logits, targets))
        with jax.named_scope("softmax"):
            return lax.mul(total, 1 / (batch * segments * segment))

    tokens = ("int32", (batch, segments * segment))
    memory = {f"memory{layer}": ("float32", (batch, segment, width)) for layer in range(layers)}
    positions = ("float32", (2 * segment, width))
    return Model(loss, inputs(tokens=tokens, labels=tokens, positions=positions, **memory))


def _shift(x: Array) -> Array:
    """Scores by distance [batch, head, query, distance] into scores by key: each row moves by one."""
    batch, heads, queries, keys = x.shape
    padded = lax.pad(x, 0.0, [(0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0)])
    rows = lax.reshape(padded, (batch, heads, keys + 1, queries))
    return lax.reshape(lax.slice_in_dim(rows, 1, keys + 1, axis=2), x.shape)
