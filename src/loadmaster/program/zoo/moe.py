"""A mixture-of-experts language model in which the experts choose their tokens.

Like expert choice routing (Zhou et al. 2022) in a Llama-like decoder: in each layer, every one of 16
gated experts takes the tokens it scores highest, 2 / 16 of all, so that all have the same work. Ours:
12 layers, d 1,024, 16 heads, inner 4,096, a vocabulary of 32,000 (embedding and output not tied),
1,024 tokens, batch 8, bf16, and experts written out one by one (so that each can be placed).

Scopes: `embed`, `layer<layer>/attention`, `layer<layer>/router`, `layer<layer>/e<expert>`, `head`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import cross_entropy, embed, linear, rms_norm, softmax, unsqueeze
from loadmaster.program.zoo.llama import gated, self_attention, text_inputs
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, cast


def moe(
    *,
    layers: int = 12,
    width: int = 1024,
    heads: int = 16,
    experts: int = 16,
    inner: int = 4096,
    vocabulary: int = 32_000,
    tokens: int = 1024,
    batch: int = 8,
) -> Model:
    """The loss over one batch of texts."""
    rows = batch * tokens
    taken = 2 * rows // experts

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed"):
            x = embed(weights, "embed", data["tokens"], vocabulary, width)
        for layer in range(layers):
            name = f"layer{layer}"
            with jax.named_scope(name):
                with jax.named_scope("attention"):
                    read = rms_norm(weights, f"{name}.norm0", x)
                    x = lax.add(x, self_attention(weights, name, read, data, heads, heads))
                with jax.named_scope("router"):
                    read = lax.reshape(rms_norm(weights, f"{name}.norm1", x), (rows, width))
                    scores = linear(weights, f"{name}.router", read, experts, bias=False)
                    chances = lax.split(softmax(cast(scores, "float32")), [1] * experts, 1)
                    total = lax.reshape(x, (rows, width))
                for expert in range(experts):
                    with jax.named_scope(f"e{expert}"):
                        share, numbers = lax.top_k(lax.reshape(chances[expert], (rows,)), taken)
                        numbers = unsqueeze(numbers, 1)
                        made = gated(weights, f"{name}.e{expert}", _take(read, numbers), inner)
                        made = lax.mul(made, unsqueeze(cast(share, "bfloat16"), 1))
                        total = _give_back(total, numbers, made)
                x = lax.reshape(total, (batch, tokens, width))
        with jax.named_scope("head"):
            last_rows = lax.reshape(rms_norm(weights, "head.norm", x), (rows, width))
            logits = linear(weights, "head", last_rows, vocabulary, bias=False)
            return lax.mul(cross_entropy(logits, lax.reshape(data["labels"], (rows,))), 1 / rows)

    return Model(loss, text_inputs(batch, tokens, width // heads), "bfloat16")


def _take(rows: Array, numbers: Array) -> Array:
    """The rows of these numbers [taken, 1]."""
    dims = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(rows, numbers, dims, (1, rows.shape[1]), mode="promise_in_bounds")


def _give_back(rows: Array, numbers: Array, added: Array) -> Array:
    """The rows, with `added` added to those of these numbers."""
    dims = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return lax.scatter_add(rows, numbers, added, dims, unique_indices=True, mode="promise_in_bounds")
