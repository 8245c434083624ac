"""RNNLM: a language model of stacked LSTM layers, unrolled over time.

Like the model of Jozefowicz et al. 2016 as used by Mirhoseini et al. 2017, in their "large"
direction: 2, 4 or 8 layers of 2,048 units, 40 steps, batch 64. Ours: a vocabulary of 10,000
with a full softmax at each step, and no dropout.

Scopes: `embed`, `lstm<layer>/t<step>`, `softmax/t<step>`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import by_step, cross_entropy, embed, linear, lstm_cell, zeros
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, inputs


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
                logits = linear(weights, "softmax", x, vocabulary)
                total = lax.add(total, cross_entropy(logits, labels[step]))
        with jax.named_scope("softmax"):
            return lax.mul(total, 1 / (steps * batch))

    tokens = ("int32", (steps, batch))
    return Model(loss, inputs(tokens=tokens, labels=tokens))
