"""A Llama-like language model: the decoder that most open models share today.

Like Touvron et al. 2023 with the grouped queries of its successors: RMS norm before each part,
rotary positions, 16 query heads over 8 key heads, a gated feed-forward part. Ours: 16 layers,
d 2,048, inner 5,632, a vocabulary of 32,000 (embedding and output not tied), 1,024 tokens, batch 8,
bf16. The angles of the positions are an input.

Scopes: `embed`, `layer<layer>`, `head`.
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
    linear,
    rms_norm,
    silu,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, cast, inputs


def llama(
    *,
    layers: int = 16,
    width: int = 2048,
    heads: int = 16,
    key_heads: int = 8,
    inner: int = 5632,
    vocabulary: int = 32_000,
    tokens: int = 1024,
    batch: int = 8,
) -> Model:
    """The loss over one batch of texts."""
    size = width // heads

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed"):
            x = embed(weights, "embed", data["tokens"], vocabulary, width)
        for layer in range(layers):
            name = f"layer{layer}"
            with jax.named_scope(name):
                read = rms_norm(weights, f"{name}.norm0", x)
                x = lax.add(x, self_attention(weights, name, read, data, heads, key_heads))
                read = rms_norm(weights, f"{name}.norm1", x)
                x = lax.add(x, gated(weights, name, read, inner))
        with jax.named_scope("head"):
            rows = lax.reshape(rms_norm(weights, "head.norm", x), (batch * tokens, width))
            logits = linear(weights, "head", rows, vocabulary, bias=False)
            labels = lax.reshape(data["labels"], (batch * tokens,))
            return lax.mul(cross_entropy(logits, labels), 1 / (batch * tokens))

    return Model(loss, text_inputs(batch, tokens, size), "bfloat16")


def text_inputs(batch: int, tokens: int, size: int) -> dict[str, Array]:
    """Tokens, labels, and the cosines and sines of the rotary positions."""
    words, angles = ("int32", (batch, tokens)), ("bfloat16", (tokens, size // 2))
    return inputs(tokens=words, labels=words, cosines=angles, sines=angles)


def self_attention(weights: Weights, name: str, x: Array, data: Batch, heads: int, key_heads: int) -> Array:
    """Causal attention with rotary positions; several query heads share one key head."""
    batch, tokens, width = x.shape
    size = width // heads
    queries = by_head(linear(weights, f"{name}.q", x, width, bias=False), heads)
    keys = by_head(linear(weights, f"{name}.k", x, key_heads * size, bias=False), key_heads)
    values = by_head(linear(weights, f"{name}.v", x, key_heads * size, bias=False), key_heads)
    queries, keys = (_rotate(part, data["cosines"], data["sines"]) for part in (queries, keys))
    queries = lax.reshape(queries, (batch, tokens, key_heads, heads // key_heads, size))
    mask = unsqueeze(cast(causal_mask(tokens, tokens), "bfloat16"), 0, 1, 3)
    mixed = attention(queries, keys, values, size**-0.5, mask)
    return linear(weights, f"{name}.o", mixed, width, bias=False)


def gated(weights: Weights, name: str, x: Array, inner: int) -> Array:
    """A feed-forward part of which one half opens the other."""
    gate = silu(linear(weights, f"{name}.gate", x, inner, bias=False))
    within = lax.mul(gate, linear(weights, f"{name}.up", x, inner, bias=False))
    return linear(weights, f"{name}.down", within, x.shape[-1], bias=False)


def _rotate(x: Array, cosines: Array, sines: Array) -> Array:
    """Turn the two halves of each head [batch, time, head, size] by the angle of its position."""
    left, right = lax.split(x, [x.shape[3] // 2] * 2, 3)
    cosines, sines = unsqueeze(cosines, 0, 2), unsqueeze(sines, 0, 2)
    turned = lax.sub(lax.mul(left, cosines), lax.mul(right, sines))
    return lax.concatenate([turned, lax.add(lax.mul(right, cosines), lax.mul(left, sines))], 3)
