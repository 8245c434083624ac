"""The denoising U-Net of latent diffusion.

Like Rombach et al. 2022 in the sizes of its best-known text-to-image model: latents of 64 × 64 × 4,
320 channels × (1, 2, 4, 4) on four levels, two residual blocks a level on the way down and three on
the way up, transformer blocks with cross-attention to 77 × 768 text vectors on the upper three levels,
8 heads. Ours: batch 16, bf16, the sinusoid of the noise level is an input.

Scopes: `time`, `in`, `down<level>/r<block>`, `middle/r<block>`, `up<level>/r<block>`, `out`; inside
the blocks `attention`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    attention,
    by_head,
    conv,
    double,
    gelu,
    group_norm,
    layer_norm,
    linear,
    silu,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, cast, inputs


def unet(
    *,
    channels: int = 320,
    factors: tuple[int, ...] = (1, 2, 4, 4),
    latent: int = 64,
    heads: int = 8,
    text: int = 77,
    text_width: int = 768,
    batch: int = 16,
) -> Model:
    """The squared error of the noise predicted for one batch of noisy latents."""
    levels = len(factors)

    def block(
        weights: Weights, scope: str, x: Array, size: int, data: Batch, time: Array, attends: bool
    ) -> Array:
        name = scope.replace("/", ".")
        with jax.named_scope(scope):
            x = residual(weights, name, x, size, time)
            if attends:
                with jax.named_scope("attention"):
                    x = _transformer(weights, f"{name}.attention", x, data["text"], heads)
        return x

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("time"):
            time = silu(linear(weights, "time.l0", data["level"], 4 * channels))
            time = silu(linear(weights, "time.l1", time, 4 * channels))
        with jax.named_scope("in"):
            x = conv(weights, "in", data["latents"], channels, (3, 3), bias=True)
        kept = [x]
        for level, factor in enumerate(factors):
            for number in range(2):
                scope = f"down{level}/r{number}"
                x = block(weights, scope, x, factor * channels, data, time, level < levels - 1)
                kept.append(x)
            if level < levels - 1:
                with jax.named_scope(f"down{level}"):
                    x = conv(weights, f"down{level}.half", x, x.shape[3], (3, 3), stride=2, bias=True)
                kept.append(x)
        for number in range(2):
            x = block(weights, f"middle/r{number}", x, x.shape[3], data, time, number == 0)
        for level, factor in reversed(list(enumerate(factors))):
            for number in range(3):
                scope = f"up{level}/r{number}"
                with jax.named_scope(scope):
                    x = lax.concatenate([x, kept.pop()], 3)
                x = block(weights, scope, x, factor * channels, data, time, level < levels - 1)
            if level > 0:
                with jax.named_scope(f"up{level}"):
                    x = conv(weights, f"up{level}.double", double(x), x.shape[3], (3, 3), bias=True)
        with jax.named_scope("out"):
            x = silu(group_norm(weights, "out.norm", x))
            noise = conv(weights, "out", x, data["latents"].shape[3], (3, 3), bias=True)
            error = lax.square(cast(lax.sub(noise, data["noise"]), "float32"))
            return lax.mul(lax.reduce_sum(error, (0, 1, 2, 3)), 1 / error.size)

    image = ("bfloat16", (batch, latent, latent, 4))
    words, level = ("bfloat16", (batch, text, text_width)), ("bfloat16", (batch, channels))
    return Model(loss, inputs(latents=image, noise=image, text=words, level=level), "bfloat16")


def residual(weights: Weights, name: str, x: Array, size: int, time: Array) -> Array:
    """Two convolutions, with the noise level added between them."""
    y = silu(group_norm(weights, f"{name}.norm0", x))
    y = conv(weights, f"{name}.c0", y, size, (3, 3), bias=True)
    y = lax.add(y, unsqueeze(linear(weights, f"{name}.time", time, size), 1, 2))
    y = silu(group_norm(weights, f"{name}.norm1", y))
    y = conv(weights, f"{name}.c1", y, size, (3, 3), bias=True)
    if x.shape[3] != size:
        x = conv(weights, f"{name}.skip", x, size, bias=True)
    return lax.add(x, y)


def _transformer(weights: Weights, name: str, image: Array, text: Array, heads: int) -> Array:
    """Attention of all points to each other and to the text, and a gated feed-forward part."""
    batch, height, width, size = image.shape
    x = conv(weights, f"{name}.in", group_norm(weights, f"{name}.norm", image), size, bias=True)
    x = lax.reshape(x, (batch, height * width, size))
    for part, other in (("self", None), ("cross", text)):
        read = layer_norm(weights, f"{name}.{part}.norm", x)
        attended = read if other is None else other
        q, k, v = (
            by_head(linear(weights, f"{name}.{part}.{what}", source, size, bias=False), heads)
            for what, source in (("q", read), ("k", attended), ("v", attended))
        )
        mixed = attention(q, k, v, (size // heads) ** -0.5)
        x = lax.add(x, linear(weights, f"{name}.{part}.o", mixed, size))
    read = linear(weights, f"{name}.ff0", layer_norm(weights, f"{name}.norm2", x), 8 * size)
    within, gate = lax.split(read, [4 * size, 4 * size], 2)
    x = lax.add(x, linear(weights, f"{name}.ff1", lax.mul(within, gelu(gate)), size))
    x = lax.reshape(x, image.shape)
    return lax.add(image, conv(weights, f"{name}.out", x, size, bias=True))
