"""GNMT: translation by stacked LSTM encoders and decoders with attention, unrolled over time.

Like Wu et al. 2016 in the sizes of Mirhoseini et al. 2017: 2, 4 or 8 layers on each side, 1,024
units, batch 64. Encoder layer 0 reads the sentence in both directions; layers from the third on
have residual connections; additive attention belongs to decoder layer 0, and its context goes to
all decoder layers (to layer 0 one step later). Ours: 76 steps on both sides, a vocabulary of
30,000 on both sides with a full softmax at each step, no dropout.

Scopes: `embed/source`, `embed/target`, `enc0/ahead`, `enc0/back`, `enc<layer>`, `dec<layer>`,
`attention`, `softmax`, and inside all but the first two `t<step>`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    by_step,
    cross_entropy,
    embed,
    linear,
    lstm_cell,
    softmax,
    unsqueeze,
    zeros,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, inputs


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
                logits = linear(weights, "softmax", x, vocabulary)
                total = lax.add(total, cross_entropy(logits, labels[step]))
        with jax.named_scope("softmax"):
            return lax.mul(total, 1 / (steps * batch))

    tokens = ("int32", (steps, batch))
    return Model(loss, inputs(source=tokens, target=tokens, labels=tokens))


def _attend(weights: Weights, query: Array, keys: Array, values: Array) -> Array:
    """The mean of `values` [batch, time, units], weighted by how well `keys` meet the query."""
    queried = linear(weights, "attention.query", query, query.shape[1], bias=False)
    meeting = lax.tanh(lax.add(keys, unsqueeze(queried, 1)))
    direction = weights("attention.direction", (query.shape[1],))
    share = softmax(lax.dot_general(meeting, direction, (((2,), (0,)), ((), ()))))
    return lax.dot_general(share, values, (((1,), (1,)), ((0,), (0,))))
