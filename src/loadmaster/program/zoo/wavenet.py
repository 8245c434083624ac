"""WaveNet: sound as a sequence of classes, by stacks of dilated causal convolutions.

Like van den Oord et al. 2016: gated units, residual and skip connections, dilations 1, 2, … 256 in
each stack; the last layer only skips. Ours: 2 or 4 stacks of 9 layers, 256 channels everywhere, 256 classes, 16,000 samples,
batch 4.

Scopes: `embed`, `stack<stack>/d<dilation>`, `softmax`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import conv, cross_entropy, embed, relu
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, inputs


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
