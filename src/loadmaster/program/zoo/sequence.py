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

from loadmaster.program.zoo.layers import (
    attention,
    by_head,
    by_step,
    causal_mask,
    conv,
    cross_entropy,
    dense,
    embed,
    last,
    layer_norm,
    linear,
    lstm_cell,
    relu,
    rms_norm,
    silu,
    softmax,
    softplus,
    unsqueeze,
    zeros,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, cast, inputs

# RNNLM: a language model of stacked LSTM layers, unrolled over time.
#
# Like the model of Jozefowicz et al. 2016 as used by Mirhoseini et al. 2017, in their "large"
# direction: 2, 4 or 8 layers of 2,048 units, 40 steps, batch 64. Ours: a vocabulary of 10,000
# with a full softmax at each step, and no dropout.
#
# Scopes: `embed`, `lstm<layer>/t<step>`, `softmax/t<step>`.


def rnnlm(
    layers: int, *, hidden: int = 2048, steps: int = 40, batch: int = 64, vocabulary: int = 10_000
) -> Model:
    """The loss over one batch of token sequences, time first."""

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed"):
            words = by_step(embed(weights, "embed", data["tokens"], vocabulary, hidden))
        with jax.named_scope("softmax"):
            labels = by_step(data["labels"])
        outputs = [zeros(f"lstm{layer}", batch, hidden) for layer in range(layers)]
        states = list(outputs)
        total: Array = 0.0
        for step, x in enumerate(words):
            for layer in range(layers):
                name = f"lstm{layer}"
                with jax.named_scope(name), jax.named_scope(f"t{step}"):
                    x, states[layer] = lstm_cell(weights, name, x, outputs[layer], states[layer])
                    outputs[layer] = x
            with jax.named_scope("softmax"), jax.named_scope(f"t{step}"):
                total = lax.add(total, _word_loss(weights, x, labels[step], vocabulary))
        with jax.named_scope("softmax"):
            return lax.mul(total, 1 / (steps * batch))

    tokens = ("int32", (steps, batch))
    return Model(loss, inputs(tokens=tokens, labels=tokens))


def _word_loss(weights: Weights, x: Array, labels: Array, vocabulary: int) -> Array:
    """Of one step: a full softmax over the vocabulary."""
    kernel = weights("softmax.w", (x.shape[-1], vocabulary))
    return _dense_loss(x, labels, kernel, weights("softmax.b", (vocabulary,)))


@jax.jit  # type: ignore[untyped-decorator]
def _dense_loss(x: Array, labels: Array, kernel: Array, bias: Array) -> Array:
    return cross_entropy(dense(x, kernel, bias), labels)


# GNMT: translation by stacked LSTM encoders and decoders with attention, unrolled over time.
#
# Like Wu et al. 2016 in the sizes of Mirhoseini et al. 2017: 2, 4 or 8 layers on each side, 1,024
# units, batch 64. Encoder layer 0 reads the sentence in both directions; layers from the third on
# have residual connections; additive attention belongs to decoder layer 0, and its context goes to
# all decoder layers (to layer 0 one step later). Ours: 76 steps on both sides, a vocabulary of
# 30,000 on both sides with a full softmax at each step, no dropout.
#
# Scopes: `embed/source`, `embed/target`, `enc0/ahead`, `enc0/back`, `enc<layer>`, `dec<layer>`,
# `attention`, `softmax`, and inside all but the first two `t<step>`.


def gnmt(
    layers: int, *, hidden: int = 1024, steps: int = 76, batch: int = 64, vocabulary: int = 30_000
) -> Model:
    """The loss over one batch of sentence pairs, time first."""

    def run_layer(
        weights: Weights, name: str, sequence: list[Array], *, back: bool = False, residual: bool = False
    ) -> list[Array]:
        output = state = zeros(name, batch, hidden)
        results = list(sequence)
        for step in reversed(range(steps)) if back else range(steps):
            with jax.named_scope(name), jax.named_scope(f"t{step}"):
                x = sequence[step]
                output, state = lstm_cell(weights, name.replace("/", "."), x, output, state)
                results[step] = lax.add(x, output) if residual else output
        return results

    def encode(weights: Weights, words: list[Array]) -> list[Array]:
        ahead = run_layer(weights, "enc0/ahead", words)
        back = run_layer(weights, "enc0/back", words, back=True)
        sequence = []
        for step in range(steps):
            with jax.named_scope("enc1"), jax.named_scope(f"t{step}"):
                sequence.append(lax.concatenate([ahead[step], back[step]], 1))
        for layer in range(1, layers):
            sequence = run_layer(weights, f"enc{layer}", sequence, residual=layer >= 2)
        return sequence

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed/source"):
            source = by_step(embed(weights, "embed.source", data["source"], vocabulary, hidden))
        with jax.named_scope("embed/target"):
            target = by_step(embed(weights, "embed.target", data["target"], vocabulary, hidden))
        encoded = encode(weights, source)
        with jax.named_scope("attention"):
            values = lax.concatenate([unsqueeze(x, 1) for x in encoded], 1)
            keys = linear(weights, "attention.keys", values, hidden, bias=False)
        with jax.named_scope("softmax"):
            labels = by_step(data["labels"])
        outputs = [zeros(f"dec{layer}", batch, hidden) for layer in range(layers)]
        states = list(outputs)
        context = outputs[0]
        total: Array = 0.0
        for step, x in enumerate(target):
            for layer in range(layers):
                name = f"dec{layer}"
                with jax.named_scope(name), jax.named_scope(f"t{step}"):
                    read = lax.concatenate([x, context], 1)
                    output, states[layer] = lstm_cell(weights, name, read, outputs[layer], states[layer])
                    x = lax.add(x, output) if layer >= 2 else output
                    outputs[layer] = output
                if layer == 0:
                    with jax.named_scope("attention"), jax.named_scope(f"t{step}"):
                        context = _attend(weights, x, keys, values)
            with jax.named_scope("softmax"), jax.named_scope(f"t{step}"):
                total = lax.add(total, _word_loss(weights, x, labels[step], vocabulary))
        with jax.named_scope("softmax"):
            return lax.mul(total, 1 / (steps * batch))

    tokens = ("int32", (steps, batch))
    return Model(loss, inputs(source=tokens, target=tokens, labels=tokens))


def _attend(weights: Weights, query: Array, keys: Array, values: Array) -> Array:
    """The mean of `values` [batch, time, units], weighted by how well `keys` meet the query."""
    queried = linear(weights, "attention.query", query, query.shape[1], bias=False)
    meeting = lax.add(keys, unsqueeze(queried, 1))
    return _weighted_mean(meeting, values, weights("attention.direction", (query.shape[1],)))


@jax.jit  # type: ignore[untyped-decorator]
def _weighted_mean(meeting: Array, values: Array, direction: Array) -> Array:
    share = softmax(lax.dot_general(lax.tanh(meeting), direction, (((2,), (0,)), ((), ()))))
    return lax.dot_general(share, values, (((1,), (1,)), ((0,), (0,))))


# Transformer-XL: segments of a text, each attending to the one before it through a memory.
#
# Like Dai et al. 2019 with the width and heads of its large model: d 1,024, 16 heads, inner 4,096,
# relative positions by the shift trick, layer norm after each sum, and 2, 4 or 8 layers. Ours: four
# segments of 128 tokens in one step (so that there is a pipeline), a memory of 128 which the first
# segment gets as an input, batch 32, a vocabulary of 32,000 with a full softmax tied to the
# embedding, no dropout.
#
# Scopes: `embed`, `layer<layer>/s<segment>`, `softmax/s<segment>`.


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


# WaveNet: sound as a sequence of classes, by stacks of dilated causal convolutions.
#
# Like van den Oord et al. 2016: gated units, residual and skip connections, dilations 1, 2, … 256 in
# each stack; the last layer only skips. Ours: 2 or 4 stacks of 9 layers, 256 channels everywhere, 256 classes, 16,000 samples,
# batch 4.
#
# Scopes: `embed`, `stack<stack>/d<dilation>`, `softmax`.


def wavenet(
    stacks: int,
    *,
    layers: int = 9,
    channels: int = 256,
    classes: int = 256,
    samples: int = 16_000,
    batch: int = 4,
) -> Model:
    """The loss over one batch of sounds."""

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed"):
            x = embed(weights, "embed", data["samples"], classes, channels)
        skipped: Array = None
        units = [(stack, 2**layer) for stack in range(stacks) for layer in range(layers)]
        for stack, dilation in units:
            with jax.named_scope(f"stack{stack}"), jax.named_scope(f"d{dilation}"):
                name = f"stack{stack}.d{dilation}"
                unit = _gated(weights, name, x, dilation)
                skip = conv(weights, f"{name}.skip", unit, channels, (1,), bias=True)
                skipped = skip if skipped is None else lax.add(skipped, skip)
                if (stack, dilation) != units[-1]:
                    residual = conv(weights, f"{name}.residual", unit, channels, (1,), bias=True)
                    x = lax.add(x, residual)
        with jax.named_scope("softmax"):
            y = relu(conv(weights, "softmax.c0", relu(skipped), channels, (1,), bias=True))
            logits = conv(weights, "softmax.c1", y, classes, (1,), bias=True)
            rows = lax.reshape(logits, (batch * samples, classes))
            total = cross_entropy(rows, lax.reshape(data["labels"], (batch * samples,)))
            return lax.mul(total, 1 / (batch * samples))

    sound = ("int32", (batch, samples))
    return Model(loss, inputs(samples=sound, labels=sound))


def _gated(weights: Weights, name: str, x: Array, dilation: int) -> Array:
    """One convolution makes both the filter and the gate that opens it; it sees no later sample."""
    size = x.shape[2]
    both = conv(weights, name, x, 2 * size, (2,), dilation=dilation, padding=[(dilation, 0)], bias=True)
    value, gate = lax.split(both, [size, size], 2)
    return lax.mul(lax.tanh(value), lax.logistic(gate))


# A Mamba-like language model: selective state spaces instead of attention.
#
# Like Mamba-2 (Dao and Gu 2024): each block widens its input twofold, mixes four neighbouring tokens,
# and runs one linear recurrence a head, whose decay, input and output depend on the token. The
# recurrence is computed in chunks: inside a chunk as masked products of matrices, from chunk to chunk
# by a state that is handed on, unrolled. Ours: 24 layers, d 2,048, 64 heads of 64, state 128 (one group),
# 8 chunks of 128 tokens, batch 8, a vocabulary of 32,000 tied to the embedding, bf16; decays in f32.
#
# Scopes: `embed`, `layer<layer>` and inside it `chunk<chunk>`, `head`.


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


@jax.jit  # type: ignore[untyped-decorator]
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


# A Llama-like language model: the decoder that most open models share today.
#
# Like Touvron et al. 2023 with the grouped queries of its successors: RMS norm before each part,
# rotary positions, 16 query heads over 8 key heads, a gated feed-forward part. Ours: 16 layers,
# d 2,048, inner 5,632, a vocabulary of 32,000 (embedding and output not tied), 1,024 tokens, batch 8,
# bf16. The angles of the positions are an input.
#
# Scopes: `embed`, `layer<layer>`, `head`.


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
