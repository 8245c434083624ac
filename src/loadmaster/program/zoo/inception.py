"""Inception-v3: an image classifier of blocks with parallel branches.

Like Szegedy et al. 2016, with its auxiliary head: 299 × 299 images, batch norm in training form
after each convolution, 1,000 classes. Ours: batch 32 or 64, batch norm with a scale, no dropout, and
the auxiliary loss weighted by 0.4.

Scopes: `stem`, `mixed<block>/b<branch>`, `aux`, `head`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    batch_norm,
    conv,
    cross_entropy,
    linear,
    max_pool,
    mean_over_space,
    mean_pool,
    relu,
)
from loadmaster.program.zoo.training import Array, Batch, Model, Weights, inputs

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
