"""WaveNet, and a network of the kind that AlphaTensor uses."""

from __future__ import annotations

from itertools import combinations

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    attention,
    by_head,
    causal_mask,
    conv,
    layer_norm,
    linear,
    relu,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Weights, cast
from tools.tpu.blocks import feed_forward, self_attention


def wavenet(weights: Weights, data: Batch, *, layers: int = 30, channels: int = 64) -> Array:
    """van den Oord et al. 2016: dilations 1, 2, … 512 three times, gated units, skips."""
    x = conv(weights, "in", data["sound"], channels, (2,), padding=[(1, 0)], bias=True)
    skipped: Array = None
    for layer in range(layers):
        name, dilation = f"layer{layer}", 2 ** (layer % 10)
        with jax.named_scope(name):
            both = conv(
                weights, name, x, 2 * channels, (2,), dilation=dilation, padding=[(dilation, 0)], bias=True
            )
            value, gate = lax.split(both, [channels, channels], 2)
            unit = lax.mul(lax.tanh(value), lax.logistic(gate))
            skip = conv(weights, f"{name}.skip", unit, 2 * channels, (1,), bias=True)
            skipped = skip if skipped is None else lax.add(skipped, skip)
            if layer < layers - 1:
                x = lax.add(x, conv(weights, f"{name}.residual", unit, channels, (1,), bias=True))
    y = relu(conv(weights, "out.c0", relu(skipped), 2 * channels, (1,), bias=True))
    return conv(weights, "out.c1", y, 256, (1,), bias=True)


def alphatensor_net(
    weights: Weights, data: Batch, *, size: int = 4, width: int = 256, rounds: int = 8
) -> tuple[Array, Array]:
    """Our reading of Fawzi et al. 2022, not the published model.

    The tensor and its past become three grids of `size` × `size` vectors. In each round every
    pair of grids attends along the axis that both have. A decoder then scores the next factors
    token by token, and a small network predicts the value.
    """
    batch = data["tensors"].shape[0]
    grids = []
    for axis in range(3):
        view = lax.transpose(data["tensors"], (0, *(1 + (axis + i) % 3 for i in range(3)), 4))
        view = lax.reshape(view, (batch, size, size, size * view.shape[4]))
        grids.append(linear(weights, f"in{axis}", view, width))
    for number in range(rounds):
        for one, other in combinations(range(3), 2):
            with jax.named_scope(f"round{number}.{one}{other}"):
                name = f"round{number}.{one}{other}"
                rows = lax.concatenate([grids[one], lax.transpose(grids[other], (0, 2, 1, 3))], 2)
                rows = _attend(weights, name, lax.reshape(rows, (batch * size, 2 * size, width)))
                rows = lax.reshape(rows, (batch, size, 2 * size, width))
                grids[one] = lax.slice_in_dim(rows, 0, size, axis=2)
                grids[other] = lax.transpose(lax.slice_in_dim(rows, size, None, axis=2), (0, 2, 1, 3))
    seen = [lax.reshape(grid, (batch, size * size, width)) for grid in grids]
    return _policy(weights, data["factors"], lax.concatenate(seen, 1)), _value(weights, seen)


def _attend(weights: Weights, name: str, x: Array) -> Array:
    x = lax.add(x, self_attention(weights, name, layer_norm(weights, f"{name}.norm0", x), 8))
    return lax.add(x, feed_forward(weights, name, layer_norm(weights, f"{name}.norm1", x), 1024))


def _policy(weights: Weights, factors: Array, seen: Array, layers: int = 2) -> Array:
    """Logits of each of the next factors, from those before it and from what the torso saw."""
    width, logits = seen.shape[2], factors.shape[2]
    x = linear(weights, "policy.in", factors, width)
    mask = unsqueeze(cast(causal_mask(x.shape[1], x.shape[1]), str(x.dtype)), 0, 1)
    for layer in range(layers):
        name = f"policy{layer}"
        with jax.named_scope(name):
            read = layer_norm(weights, f"{name}.norm0", x)
            x = lax.add(x, self_attention(weights, name, read, 8, mask))
            read = layer_norm(weights, f"{name}.norm1", x)
            q, k, v = (
                by_head(linear(weights, f"{name}.cross.{what}", source, width), 8)
                for what, source in (("q", read), ("k", seen), ("v", seen))
            )
            mixed = attention(q, k, v, (width // 8) ** -0.5)
            x = lax.add(x, linear(weights, f"{name}.cross.o", mixed, width))
            read = layer_norm(weights, f"{name}.norm2", x)
            x = lax.add(x, feed_forward(weights, name, read, 1024))
    return linear(weights, "policy.out", x, logits)


def _value(weights: Weights, grids: list[Array]) -> Array:
    x = lax.concatenate([lax.reduce_sum(grid, (1,)) for grid in grids], 1)
    for number in range(2):
        x = relu(linear(weights, f"value{number}", x, 512))
    return linear(weights, "value.out", x, 8)
