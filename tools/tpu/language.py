"""Programs that read and write text: BERT, plain transformers, a GPT-like model, experts."""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    attention,
    by_head,
    causal_mask,
    cross_entropy,
    embed,
    gelu,
    layer_norm,
    linear,
    softmax,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Weights, cast
from tools.tpu.blocks import block, feed_forward, self_attention

VOCABULARY = 32_000
LAYERS, WIDTH, HEADS = 12, 1024, 16
SCALE = (WIDTH // HEADS) ** -0.5


def bert_base(weights: Weights, data: Batch) -> Array:
    """Devlin et al. 2019, "Base": 12 layers of 768, 12 heads, norms behind each part."""
    tokens = data["tokens"]
    x = embed(weights, "words", tokens, 30_522, 768)
    x = lax.add(x, unsqueeze(weights("positions", (tokens.shape[1], 768)), 0))
    x = layer_norm(weights, "embed.norm", lax.add(x, embed(weights, "kinds", data["kinds"], 2, 768)))
    for layer in range(12):
        name = f"layer{layer}"
        with jax.named_scope(name):
            x = lax.add(x, self_attention(weights, name, x, 12))
            x = layer_norm(weights, f"{name}.norm0", x)
            x = lax.add(x, feed_forward(weights, name, x, 3072))
            x = layer_norm(weights, f"{name}.norm1", x)
    first = lax.squeeze(lax.slice_in_dim(x, 0, 1, axis=1), (1,))
    return lax.tanh(linear(weights, "pool", first, 768))


def transformer(
    weights: Weights, data: Batch, *, layers: int = 6, inner: int = 8192, heads: int = 16
) -> Array:
    """Blocks over a sequence of vectors."""
    x = data["x"]
    for layer in range(layers):
        x = block(weights, f"block{layer}", x, heads, inner)
    return x


def language_model(weights: Weights, data: Batch, *, vocabulary: int = 8192) -> Array:
    """The loss of a decoder of 2 blocks of 1,024."""
    tokens = data["tokens"]
    x = embed(weights, "embed", tokens, vocabulary, 1024)
    for layer in range(2):
        x = block(weights, f"block{layer}", x, 16, 4096, _mask(x))
    rows = lax.reshape(layer_norm(weights, "head.norm", x), (tokens.size, 1024))
    logits = linear(weights, "head", rows, vocabulary, bias=False)
    labels = lax.reshape(data["labels"], (tokens.size,))
    return lax.mul(cross_entropy(logits, labels), 1 / tokens.size)


def _mask(x: Array) -> Array:
    """Added to the scores of a sequence, it hides what is later."""
    return unsqueeze(cast(causal_mask(x.shape[1], x.shape[1]), str(x.dtype)), 0, 1)


def gpt_prefill(weights: Weights, data: Batch) -> Array:
    """A decoder of 12 layers reads a prompt: logits of the next token, and all keys and values."""
    x = embed(weights, "embed", data["tokens"], VOCABULARY, WIDTH)
    x = lax.add(x, unsqueeze(weights("positions", x.shape[1:]), 0))
    mask, kept = _mask(x), []
    for layer in range(LAYERS):
        with jax.named_scope(f"layer{layer}"):
            q, k, v = _heads(weights, f"layer{layer}", x)
            kept += [k, v]
            x = _rest(weights, f"layer{layer}", x, attention(q, k, v, SCALE, mask))
    return _next_token(weights, lax.slice_in_dim(x, x.shape[1] - 1, None, axis=1)), kept


def gpt_decode(weights: Weights, data: Batch) -> Array:
    """The same decoder takes one token more: its keys and values go into the caches, in place.

    `caches` holds two arrays [batch, positions, heads, size] a layer, `position` is a number.
    """
    position, caches = data["position"], list(data["caches"])
    x = embed(weights, "embed", data["tokens"], VOCABULARY, WIDTH)
    table = weights("positions", (caches[0].shape[1], WIDTH))
    x = lax.add(x, unsqueeze(lax.dynamic_slice_in_dim(table, position, 1), 0))
    places = lax.broadcasted_iota("int32", (1, 1, 1, table.shape[0]), 3)
    mask = lax.mul(cast(lax.gt(places, position), str(x.dtype)), x.dtype.type(-1e9))
    for layer in range(LAYERS):
        with jax.named_scope(f"layer{layer}"):
            q, k, v = _heads(weights, f"layer{layer}", x)
            for place, new in ((2 * layer, k), (2 * layer + 1, v)):
                caches[place] = lax.dynamic_update_slice_in_dim(caches[place], new, position, 1)
            mixed = attention(q, caches[2 * layer], caches[2 * layer + 1], SCALE, mask)
            x = _rest(weights, f"layer{layer}", x, mixed)
    return _next_token(weights, x), caches


def _heads(weights: Weights, name: str, x: Array) -> list[Array]:
    read = layer_norm(weights, f"{name}.norm0", x)
    return [by_head(linear(weights, f"{name}.{what}", read, WIDTH), HEADS) for what in "qkv"]


def _rest(weights: Weights, name: str, x: Array, mixed: Array) -> Array:
    x = lax.add(x, linear(weights, f"{name}.o", mixed, WIDTH))
    return lax.add(x, feed_forward(weights, name, layer_norm(weights, f"{name}.norm1", x), 4 * WIDTH))


def _next_token(weights: Weights, x: Array) -> Array:
    final = layer_norm(weights, "head.norm", lax.squeeze(x, (1,)))
    return linear(weights, "head", final, VOCABULARY, bias=False)


def experts(weights: Weights, data: Batch, *, layers: int = 4, count: int = 8) -> Array:
    """Blocks whose feed-forward part is a mixture of experts, the two best for each token.

    Like Lepikhin et al. 2021: each text gives an expert room for as many tokens as there are on
    average, and tokens go there and back by products with one-hot matrices.
    """
    x = data["x"]
    for layer in range(layers):
        name = f"block{layer}"
        with jax.named_scope(name):
            read = layer_norm(weights, f"{name}.norm0", x)
            x = lax.add(x, self_attention(weights, name, read, HEADS))
            read = layer_norm(weights, f"{name}.norm1", x)
            x = lax.add(x, _mixture(weights, name, read, count))
    return x


def _mixture(weights: Weights, name: str, x: Array, count: int) -> Array:
    texts, tokens, width = x.shape
    room = 2 * tokens // count
    chances = softmax(cast(linear(weights, f"{name}.router", x, count, bias=False), "float32"))
    slots = lax.broadcasted_iota("int32", (1, 1, 1, room), 3)
    taken = lax.full((texts, 1, count), 0, "float32")
    send: Array = None
    weigh: Array = None
    left = chances
    for _ in range(2):
        best = unsqueeze(lax.argmax(left, 2, "int32"), 2)
        chosen = cast(lax.eq(lax.broadcasted_iota("int32", chances.shape, 2), best), "float32")
        left = lax.mul(left, lax.sub(lax.full_like(chosen, 1), chosen))
        before = lax.add(lax.sub(lax.cumsum(chosen, 1), chosen), taken)
        taken = lax.add(taken, unsqueeze(lax.reduce_sum(chosen, (1,)), 1))
        slot = unsqueeze(cast(before, "int32"), 3)
        here = lax.mul(cast(lax.eq(slots, slot), "float32"), unsqueeze(chosen, 3))
        share = lax.mul(here, unsqueeze(chances, 3))
        send = here if send is None else lax.add(send, here)
        weigh = share if weigh is None else lax.add(weigh, share)
    send, weigh = cast(send, str(x.dtype)), cast(weigh, str(x.dtype))
    # [texts, experts, room, width], then [experts, texts · room, width]
    given = lax.dot_general(send, x, (((1,), (1,)), ((0,), (0,))))
    given = lax.reshape(lax.transpose(given, (1, 0, 2, 3)), (count, texts * room, width))
    inside = weights(f"{name}.experts.w0", (count, width, 4 * width))
    back = weights(f"{name}.experts.w1", (count, 4 * width, width))
    each = (((2,), (1,)), ((0,), (0,)))
    made = lax.dot_general(gelu(lax.dot_general(given, inside, each)), back, each)
    made = lax.transpose(lax.reshape(made, (count, texts, room, width)), (1, 0, 2, 3))
    return lax.dot_general(weigh, made, (((2, 3), (1, 2)), ((0,), (0,))))
