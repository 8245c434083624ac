"""ViT-L/16: an image classifier of transformer blocks over patches.

Like Dosovitskiy et al. 2021, "Large": 24 blocks, d 1,024, 16 heads, inner 4,096, patches of 16 × 16
of a 224 × 224 image, a class token, learned positions. Ours: batch 64, bf16, no dropout.

Scopes: `embed`, `block<block>`, `head`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    attention,
    batch_norm,
    by_head,
    conv,
    cross_entropy,
    double,
    gelu,
    group_norm,
    layer_norm,
    linear,
    max_pool,
    mean_over_space,
    mean_pool,
    relu,
    silu,
    unsqueeze,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, cast, inputs

# Inception-v3: an image classifier of blocks with parallel branches.
#
# Like Szegedy et al. 2016, with its auxiliary head: 299 × 299 images, batch norm in training form
# after each convolution, 1,000 classes. Ours: batch 32 or 64, batch norm with a scale, no dropout, and
# the auxiliary loss weighted by 0.4.
#
# Scopes: `stem`, `mixed<block>/b<branch>`, `aux`, `head`.

Step = tuple[int, str] | str
"""A convolution as (channels, 'height x width', with a stride of 2 if it ends in '/2'), or a pool."""
Branch = Sequence[Step | list[Step]]
"""Steps one after another; a list of steps at the end are parallel."""


def _block_a(pooled: int) -> list[Branch]:
    return [
        [(64, "1x1")],
        [(48, "1x1"), (64, "5x5")],
        [(64, "1x1"), (96, "3x3"), (96, "3x3")],
        ["mean", (pooled, "1x1")],
    ]


def _block_c(c: int) -> list[Branch]:
    return [
        [(192, "1x1")],
        [(c, "1x1"), (c, "1x7"), (192, "7x1")],
        [(c, "1x1"), (c, "7x1"), (c, "1x7"), (c, "7x1"), (192, "1x7")],
        ["mean", (192, "1x1")],
    ]


def _block_e() -> list[Branch]:
    fork: list[Step] = [(384, "1x3"), (384, "3x1")]
    return [[(320, "1x1")], [(384, "1x1"), fork], [(448, "1x1"), (384, "3x3"), fork], ["mean", (192, "1x1")]]


BLOCKS: list[list[Branch]] = [
    *(_block_a(pooled) for pooled in (32, 64, 64)),
    [[(384, "3x3/2")], [(64, "1x1"), (96, "3x3"), (96, "3x3/2")], ["max/2"]],
    *(_block_c(channels) for channels in (128, 160, 160, 192)),
    [[(192, "1x1"), (320, "3x3/2")], [(192, "1x1"), (192, "1x7"), (192, "7x1"), (192, "3x3/2")], ["max/2"]],
    _block_e(),
    _block_e(),
]
AUXILIARY_AFTER = 7


def inception(*, batch: int = 32, image: int = 299, classes: int = 1000) -> Model:
    """The loss over one batch of images."""

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("stem"):
            x = _stem(weights, data["images"])
        for number, branches in enumerate(BLOCKS):
            with jax.named_scope(f"mixed{number}"):
                parts: list[Array] = []
                for index, branch in enumerate(branches):
                    with jax.named_scope(f"b{index}"):
                        parts += _branch(weights, f"mixed{number}.b{index}", x, branch)
                x = lax.concatenate(parts, 3)
            if number == AUXILIARY_AFTER:
                with jax.named_scope("aux"):
                    y = mean_pool(x, 5, stride=3, padding="VALID")
                    y = _conv(weights, "aux.c0", y, 128, "1x1")
                    y = _conv(weights, "aux.c1", y, 768, "5x5", "VALID")
                    logits = linear(weights, "aux", mean_over_space(y), classes)
                    auxiliary = cross_entropy(logits, data["labels"])
        with jax.named_scope("head"):
            logits = linear(weights, "head", mean_over_space(x), classes)
            total = lax.add(cross_entropy(logits, data["labels"]), lax.mul(auxiliary, 0.4))
            return lax.mul(total, 1 / batch)

    images = ("float32", (batch, image, image, 3))
    return Model(loss, inputs(images=images, labels=("int32", (batch,))))


def _conv(weights: Weights, name: str, x: Array, size: int, form: str, padding: str | None = None) -> Array:
    """Convolution, batch norm, ReLU."""
    kernel, _, stride = form.partition("/")
    sides = [int(side) for side in kernel.split("x")]
    padding = padding or ("VALID" if stride else "SAME")
    y = conv(weights, name, x, size, sides, stride=int(stride or 1), padding=padding)
    return relu(batch_norm(weights, name, y))


def _stem(weights: Weights, x: Array) -> Array:
    x = _conv(weights, "stem.c0", x, 32, "3x3/2")
    x = _conv(weights, "stem.c2", _conv(weights, "stem.c1", x, 32, "3x3", "VALID"), 64, "3x3")
    x = _conv(weights, "stem.c3", max_pool(x, stride=2, padding="VALID"), 80, "1x1")
    return max_pool(_conv(weights, "stem.c4", x, 192, "3x3", "VALID"), stride=2, padding="VALID")


def _branch(weights: Weights, name: str, x: Array, branch: Branch) -> list[Array]:
    """The results of a branch: one, or as many as it forks into."""

    def step(name: str, x: Array, what: Step) -> Array:
        if isinstance(what, tuple):
            return _conv(weights, name, x, *what)
        return mean_pool(x) if what == "mean" else max_pool(x, stride=2, padding="VALID")

    for number, what in enumerate(branch):
        if isinstance(what, list):
            return [step(f"{name}.f{i}", x, fork) for i, fork in enumerate(what)]
        x = step(f"{name}.c{number}", x, what)
    return [x]


# AmoebaNet-D-like: an image classifier whose two kinds of cells were found by evolution.
#
# Like AmoebaNet-D (Real et al. 2019) as recalled from its use in GPipe, (18, 256): 18 normal cells in
# three groups of 256, 512 and 1,024 filters with a reduction before the second and third, a stem of a
# convolution and two reductions, 224 × 224 images. Every cell adds five pairs of steps, each on one of
# the earlier results, and joins some of the results. Ours: batch 32, no auxiliary head, no drop path,
# ReLU before and batch norm after every convolution, half of the channels inside the reductions' 3 × 3.
#
# Scopes: `stem`, `cell<cell>` (both kinds, in order), inside it `in<input>` and `n<pair>`, `head`.

Pair = tuple[tuple[int, str], tuple[int, str]]
"""Two steps, each on an earlier result (0 and 1 are the cell's inputs), whose results are added."""

NORMAL: tuple[Pair, ...] = (
    ((1, "conv1"), (1, "max3")),
    ((1, "same"), (0, "conv7")),
    ((0, "conv1"), (0, "conv7")),
    ((2, "max3"), (2, "same")),
    ((1, "mean3"), (5, "conv1")),
)
NORMAL_JOINS = (0, 3, 4, 6)
REDUCTION: tuple[Pair, ...] = (
    ((0, "max2"), (0, "max3")),
    ((2, "same"), (1, "conv3")),
    ((2, "conv7"), (2, "max3")),
    ((3, "same"), (1, "max2")),
    ((2, "mean3"), (3, "conv1")),
)
REDUCTION_JOINS = (4, 5, 6)


def amoebanet(
    *, cells: int = 18, filters: int = 256, batch: int = 32, image: int = 224, classes: int = 1000
) -> Model:
    """The loss over one batch of images."""
    group = [(filters, False)] * (cells // 3)
    plan = [(filters // 4, True), (filters // 2, True), *group]
    for factor in (2, 4):
        plan += [(factor * filters, True), *((factor * size, False) for size, _ in group)]

    def loss(weights: Weights, data: Batch) -> Array:
        with jax.named_scope("stem"):
            x = conv(weights, "stem", data["images"], filters // 4, (3, 3), stride=2)
            x = batch_norm(weights, "stem", x)
        before, now = x, x
        for number, (size, reduces) in enumerate(plan):
            with jax.named_scope(f"cell{number}"):
                before, now = now, _cell(weights, f"cell{number}", before, now, size, reduces)
        with jax.named_scope("head"):
            logits = linear(weights, "head", mean_over_space(relu(now)), classes)
            return lax.mul(cross_entropy(logits, data["labels"]), 1 / batch)

    images = ("float32", (batch, image, image, 3))
    return Model(loss, inputs(images=images, labels=("int32", (batch,))))


def _cell_conv(
    weights: Weights, name: str, x: Array, size: int, kernel: tuple[int, int] = (1, 1), stride: int = 1
) -> Array:
    """ReLU, convolution, batch norm."""
    return batch_norm(weights, name, conv(weights, name, relu(x), size, kernel, stride=stride))


def _cell(weights: Weights, name: str, before: Array, now: Array, size: int, reduces: bool) -> Array:
    with jax.named_scope("in0"):
        stride = before.shape[1] // now.shape[1]
        results = [_cell_conv(weights, f"{name}.in0", before, size, stride=stride)]
    with jax.named_scope("in1"):
        results.append(_cell_conv(weights, f"{name}.in1", now, size))
    for number, pair in enumerate(REDUCTION if reduces else NORMAL):
        with jax.named_scope(f"n{number}"):
            left, right = (
                _step(weights, f"{name}.n{number}.{side}", results[source], what, reduces and source < 2)
                for side, (source, what) in enumerate(pair)
            )
            results.append(lax.add(left, right))
    return lax.concatenate([results[i] for i in (REDUCTION_JOINS if reduces else NORMAL_JOINS)], 3)


def _step(weights: Weights, name: str, x: Array, what: str, halves: bool) -> Array:
    """One step; wide convolutions work on a part of the channels, between two of one point."""
    stride, size = 1 + halves, x.shape[3]
    if what == "same":
        return x
    if what.startswith("max"):
        return max_pool(x, int(what[3:]), stride=stride)
    if what.startswith("mean"):
        return mean_pool(x, int(what[4:]), stride=stride)
    if what == "conv1":
        return _cell_conv(weights, name, x, size, stride=stride)
    kernels, part = ([(3, 3)], size // 2) if what == "conv3" else ([(1, 7), (7, 1)], size // 4)
    x = _cell_conv(weights, f"{name}.narrow", x, part)
    for number, kernel in enumerate(kernels):
        x = _cell_conv(weights, f"{name}.c{number}", x, part, kernel, stride if number == 0 else 1)
    return _cell_conv(weights, f"{name}.wide", x, size)


# The denoising U-Net of latent diffusion.
#
# Like Rombach et al. 2022 in the sizes of its best-known text-to-image model: latents of 64 × 64 × 4,
# 320 channels × (1, 2, 4, 4) on four levels, two residual blocks a level on the way down and three on
# the way up, transformer blocks with cross-attention to 77 × 768 text vectors on the upper three levels,
# 8 heads. Ours: batch 16, bf16, the sinusoid of the noise level is an input.
#
# Scopes: `time`, `in`, `down<level>/r<block>`, `middle/r<block>`, `up<level>/r<block>`, `out`; inside
# the blocks `attention`.


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
