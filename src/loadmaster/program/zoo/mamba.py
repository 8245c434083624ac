"""A Mamba-like language model: selective state spaces instead of attention.

Like Mamba-2 (Dao and Gu 2024): each block widens its input twofold, mixes four neighbouring tokens,
and runs one linear recurrence a head, whose decay, input and output depend on the token. The
recurrence is computed in chunks: inside a chunk as masked products of matrices, from chunk to chunk
by a state that is handed on, unrolled. Ours: 24 layers, d 2,048, 64 heads of 64, state 128 (one group),
8 chunks of 128 tokens, batch 8, a vocabulary of 32,000 tied to the embedding, bf16; decays in f32.

Scopes: `embed`, `layer<layer>` and inside it `chunk<chunk>`, `head`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    causal_mask,
    cross_entropy,
    embed,
    last,
    linear,
    rms_norm,
    silu,
    softplus,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, cast, inputs


def mamba(
    *,
    layers: int = 24,
    width: int = 2048,
    head: int = 64,
    state: int = 128,
    chunks: int = 8,
    chunk: int = 128,
    batch: int = 8,
    vocabulary: int = 32_000,
) -> Model:
    """The loss over one batch of texts."""
    tokens, inner = chunks * chunk, 2 * width
    heads = inner // head

    def block(weights: Weights, name: str, x: Array) -> Array:
        read = linear(weights, f"{name}.in", x, 2 * inner + 2 * state + heads, bias=False)
        gate, mixed, steps = lax.split(read, [inner, inner + 2 * state, heads], 2)
        mixed = silu(_neighbours(weights, f"{name}.near", mixed))
        steps = cast(steps, "float32")
        steps = softplus(lax.add(steps, last(cast(weights(f"{name}.step", (heads,)), "float32"), steps)))
        rate = lax.neg(lax.exp(cast(weights(f"{name}.rate", (heads,)), "float32")))
        decays = lax.mul(steps, last(rate, steps))
        values, entering, leaving = lax.split(mixed, [inner, state, state], 2)
        parts = [lax.split(part, [chunk] * chunks, 1) for part in (values, entering, leaving, steps, decays)]
        mask = unsqueeze(causal_mask(chunk, chunk), 0, 1)
        carried = lax.full((batch, heads, head, state), 0, "float32")
        results: list[Array] = []
        for number, (value, b, c, step, decay) in enumerate(zip(*parts, strict=True)):
            with jax.named_scope(f"chunk{number}"):
                value = lax.reshape(value, (batch, chunk, heads, head))
                result, carried = _chunk(value, b, c, step, decay, carried, mask)
                results.append(result)
        y = lax.concatenate(results, 1)
        by_head = lax.reshape(values, y.shape)
        skip = lax.reshape(weights(f"{name}.skip", (heads,)), (1, 1, heads, 1))
        y = lax.reshape(lax.add(y, lax.mul(by_head, skip)), values.shape)
        y = rms_norm(weights, f"{name}.norm1", lax.mul(y, silu(gate)))
        return linear(weights, f"{name}.out", y, width, bias=False)

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed"):
            x = embed(weights, "embed", data["tokens"], vocabulary, width)
        for layer in range(layers):
            name = f"layer{layer}"
            with jax.named_scope(name):
                x = lax.add(x, block(weights, name, rms_norm(weights, f"{name}.norm0", x)))
        with jax.named_scope("head"):
            rows = lax.reshape(rms_norm(weights, "head.norm", x), (batch * tokens, width))
            table = weights("embed.table", (vocabulary, width))
            logits = lax.dot_general(rows, table, (((1,), (1,)), ((), ())))
            labels = lax.reshape(data["labels"], (batch * tokens,))
            return lax.mul(cross_entropy(logits, labels), 1 / (batch * tokens))

    words = ("int32", (batch, tokens))
    return Model(loss, inputs(tokens=words, labels=words), "bfloat16")


def _neighbours(weights: Weights, name: str, x: Array, reach: int = 4) -> Array:
    """A causal convolution of each channel by itself."""
    size = x.shape[2]
    y = lax.conv_general_dilated(
        x,
        weights(f"{name}.w", (reach, 1, size)),
        (1,),
        [(reach - 1, 0)],
        feature_group_count=size,
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    return lax.add(y, last(weights(f"{name}.b", (size,)), y))


def _chunk(
    x: Array, b: Array, c: Array, step: Array, decay: Array, carried: Array, mask: Array
) -> tuple[Array, Array]:
    """One chunk of the recurrence state = exp(decay) · state + step · x · b, result = state · c.

    x [batch, time, head, size], b and c [batch, time, state], step and decay [batch, time, head],
    carried [batch, head, size, state]: the result, shaped as x, and the state after the chunk.
    """
    chunk, dtype = x.shape[1], str(x.dtype)
    x = lax.mul(x, unsqueeze(cast(step, dtype), 3))
    reached = lax.transpose(lax.cumsum(decay, 1), (0, 2, 1))
    between = lax.sub(unsqueeze(reached, 3), unsqueeze(reached, 2))
    kept = lax.exp(lax.add(between, mask))
    meeting = lax.dot_general(c, b, (((2,), (2,)), ((0,), (0,))))
    shares = lax.mul(unsqueeze(meeting, 1), cast(kept, dtype))
    inside = lax.dot_general(shares, x, (((3,), (1,)), ((0, 1), (0, 2))))
    before = lax.dot_general(cast(carried, dtype), c, (((3,), (2,)), ((0,), (0,))))
    before = lax.mul(lax.transpose(before, (0, 1, 3, 2)), unsqueeze(cast(lax.exp(reached), dtype), 3))
    result = lax.transpose(lax.add(inside, before), (0, 2, 1, 3))
    end = lax.slice_in_dim(reached, chunk - 1, chunk, axis=2)
    left = lax.transpose(cast(lax.exp(lax.sub(end, reached)), dtype), (0, 2, 1))
    new = lax.dot_general(lax.mul(x, unsqueeze(left, 3)), b, (((1,), (1,)), ((0,), (0,))))
    return result, lax.add(lax.mul(carried, unsqueeze(lax.exp(end), 3)), cast(new, "float32"))
