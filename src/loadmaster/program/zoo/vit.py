"""ViT-L/16: an image classifier of transformer blocks over patches.

Like Dosovitskiy et al. 2021, "Large": 24 blocks, d 1,024, 16 heads, inner 4,096, patches of 16 × 16
of a 224 × 224 image, a class token, learned positions. Ours: batch 64, bf16, no dropout.

Scopes: `embed`, `block<block>`, `head`.
"""

from __future__ import annotations

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    attention,
    by_head,
    cross_entropy,
    gelu,
    layer_norm,
    linear,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, inputs


def vit(
    *,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    inner: int = 4096,
    image: int = 224,
    patch: int = 16,
    batch: int = 64,
    classes: int = 1000,
) -> Model:
    """The loss over one batch of images."""
    side = image // patch

    def patches(weights: Weights, images: Array) -> Array:
        x = lax.reshape(images, (batch, side, patch, side, patch, 3))
        x = lax.reshape(lax.transpose(x, (0, 1, 3, 2, 4, 5)), (batch, side * side, patch * patch * 3))
        x = linear(weights, "embed", x, width)
        first = unsqueeze(weights("embed.class", (width,)), 0, 1)
        first = lax.broadcast_in_dim(first, (batch, 1, width), (0, 1, 2))
        x = lax.concatenate([first, x], 1)
        return lax.add(x, unsqueeze(weights("embed.positions", x.shape[1:]), 0))

    def block(weights: Weights, name: str, x: Array) -> Array:
        read = layer_norm(weights, f"{name}.norm0", x)
        q, k, v = (by_head(linear(weights, f"{name}.{what}", read, width), heads) for what in "qkv")
        mixed = attention(q, k, v, (width // heads) ** -0.5)
        x = lax.add(x, linear(weights, f"{name}.o", mixed, width))
        read = layer_norm(weights, f"{name}.norm1", x)
        within = gelu(linear(weights, f"{name}.ff0", read, inner))
        return lax.add(x, linear(weights, f"{name}.ff1", within, width))

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("embed"):
            x = patches(weights, data["images"])
        for layer in range(layers):
            with jax.named_scope(f"block{layer}"):
                x = block(weights, f"block{layer}", x)
        with jax.named_scope("head"):
            first = lax.squeeze(lax.slice_in_dim(x, 0, 1, axis=1), (1,))
            logits = linear(weights, "head", layer_norm(weights, "head.norm", first), classes)
            return lax.mul(cross_entropy(logits, data["labels"]), 1 / batch)

    images = ("bfloat16", (batch, image, image, 3))
    return Model(loss, inputs(images=images, labels=("int32", (batch,))), "bfloat16")
