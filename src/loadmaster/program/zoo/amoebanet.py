"""AmoebaNet-D-like: an image classifier whose two kinds of cells were found by evolution.

Like AmoebaNet-D (Real et al. 2019) as recalled from its use in GPipe, (18, 256): 18 normal cells in
three groups of 256, 512 and 1,024 filters with a reduction before the second and third, a stem of a
convolution and two reductions, 224 × 224 images. Every cell adds five pairs of steps, each on one of
the earlier results, and joins some of the results. Ours: batch 32, no auxiliary head, no drop path,
ReLU before and batch norm after every convolution, half of the channels inside the reductions' 3 × 3.

Scopes: `stem`, `cell<cell>` (both kinds, in order), inside it `in<input>` and `n<pair>`, `head`.
"""

from __future__ import annotations

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


def _conv(
    weights: Weights, name: str, x: Array, size: int, kernel: tuple[int, int] = (1, 1), stride: int = 1
) -> Array:
    """ReLU, convolution, batch norm."""
    return batch_norm(weights, name, conv(weights, name, relu(x), size, kernel, stride=stride))


def _cell(weights: Weights, name: str, before: Array, now: Array, size: int, reduces: bool) -> Array:
    with jax.named_scope("in0"):
        stride = before.shape[1] // now.shape[1]
        results = [_conv(weights, f"{name}.in0", before, size, stride=stride)]
    with jax.named_scope("in1"):
        results.append(_conv(weights, f"{name}.in1", now, size))
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
        return _conv(weights, name, x, size, stride=stride)
    kernels, part = ([(3, 3)], size // 2) if what == "conv3" else ([(1, 7), (7, 1)], size // 4)
    x = _conv(weights, f"{name}.narrow", x, part)
    for number, kernel in enumerate(kernels):
        x = _conv(weights, f"{name}.c{number}", x, part, kernel, stride if number == 0 else 1)
    return _conv(weights, f"{name}.wide", x, size)
