"""The shapes of random graphs: for a number of ops, what each reads, and its site.

Ops come in a valid order. Ops of one site are the same layer at work again: they share kind, sizes
and weight. Random graphs without a direction get one by a random permutation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rng = np.random.Generator


@dataclass(frozen=True)
class Shape:
    """Who reads whom."""

    inputs: list[list[int]]
    """Of each op: earlier ops, ascending."""
    site: list[int]


def layered(rng: Rng, ops: int) -> Shape:
    """Layers of equal width; an op reads one to three of the layer before, and now and then skips."""
    width = int(rng.integers(2, 65))
    inputs: list[list[int]] = []
    for op in range(ops):
        first = (op // width - 1) * width
        if first < 0:
            inputs.append([])
            continue
        chosen = set(rng.integers(first, first + width, rng.integers(1, 4)).tolist())
        if rng.random() < 0.1:
            chosen.add(int(rng.integers(0, first + width)))
        inputs.append(sorted(chosen))
    return Shape(inputs, list(range(ops)))


def erdos_renyi(rng: Rng, ops: int) -> Shape:
    """Every pair is joined with the same probability: two to four edges per op."""
    probability = rng.uniform(2, 4) * 2 / (ops - 1)
    count = rng.binomial(ops * (ops - 1) // 2, min(1.0, probability))
    return _directed(rng, ops, _pairs(rng, (0, ops), (0, ops), count))


def wavefront(rng: Rng, ops: int) -> Shape:
    """A grid of layers and steps, as an unrolled recurrent network: an op reads the layer below and
    the step before. A layer is one site."""
    layers = int(rng.integers(2, 17))
    inputs: list[list[int]] = []
    for op in range(ops):
        step, layer = divmod(op, layers)
        inputs.append([op - layers] * (step > 0) + [op - 1] * (layer > 0))
    return Shape(inputs, [op % layers for op in range(ops)])


def branch_join(rng: Rng, ops: int) -> Shape:
    """Blocks of parallel chains between joints, as in Inception."""
    inputs: list[list[int]] = [[]]
    while len(inputs) < ops:
        joint, ends = len(inputs) - 1, []
        for _ in range(int(rng.integers(2, 7))):
            last = joint
            for _ in range(int(rng.integers(1, 8))):
                inputs.append([last])
                last = len(inputs) - 1
            ends.append(last)
        inputs.append(ends)
    return Shape(inputs[:ops], list(range(ops)))


def cells(rng: Rng, ops: int) -> Shape:
    """An op reads two of the last few results, as in cells found by architecture search."""
    window = int(rng.integers(3, 13))
    inputs = [
        sorted(set(rng.integers(max(0, op - window), op, 2).tolist())) if op else [] for op in range(ops)
    ]
    return Shape(inputs, list(range(ops)))


def watts_strogatz(rng: Rng, ops: int) -> Shape:
    """A ring where each op knows its two neighbours on either side; some edges go elsewhere."""
    rewired = rng.uniform(0.1, 0.5)
    one = np.repeat(np.arange(ops), 2)
    other = (one + np.tile([1, 2], ops)) % ops
    moved = rng.random(len(one)) < rewired
    other = np.where(moved, rng.integers(0, ops, len(one)), other)
    return _directed(rng, ops, zip(one.tolist(), other.tolist(), strict=True))


def barabasi_albert(rng: Rng, ops: int) -> Shape:
    """Each op in turn joins two earlier ones, those with more edges more likely."""
    pairs = [(0, 1), (0, 2), (1, 2)]
    ends = [0, 1, 0, 2, 1, 2]
    for op in range(3, ops):
        for chosen in {ends[i] for i in rng.integers(0, len(ends), 2).tolist()}:
            pairs.append((op, chosen))
            ends += [op, chosen]
    return _directed(rng, ops, pairs)


def stochastic_block(rng: Rng, ops: int) -> Shape:
    """Blocks with many edges inside and few between: three per op, four of five inside."""
    edge = np.linspace(0, ops, int(rng.integers(3, 11)) + 1).astype(int).tolist()
    blocks = list(itertools.pairwise(edge))
    pairs: set[tuple[int, int]] = set()
    for block in blocks:
        pairs |= _pairs(rng, block, block, rng.binomial(3 * (block[1] - block[0]), 0.8))
    pairs |= _pairs(rng, (0, ops), (0, ops), rng.binomial(3 * ops, 0.2))
    return _directed(rng, ops, pairs)


def _pairs(rng: Rng, one: tuple[int, int], other: tuple[int, int], count: int) -> set[tuple[int, int]]:
    """About `count` pairs with an end in each range; doubles fall together."""
    ends: npt.NDArray[np.int64] = np.stack([rng.integers(*one, count), rng.integers(*other, count)], axis=1)
    return {(a, b) for a, b in np.sort(ends, axis=1).tolist()}


def _directed(rng: Rng, ops: int, pairs: Iterable[tuple[int, int]]) -> Shape:
    rank = rng.permutation(ops).tolist()
    inputs: list[set[int]] = [set() for _ in range(ops)]
    for a, b in pairs:
        if a != b:
            inputs[max(rank[a], rank[b])].add(min(rank[a], rank[b]))
    return Shape([sorted(sources) for sources in inputs], list(range(ops)))


TRAINING_FAMILIES: dict[str, Callable[[Rng, int], Shape]] = {
    "layered": layered,
    "erdos_renyi": erdos_renyi,
    "wavefront": wavefront,
    "branch_join": branch_join,
    "cells": cells,
}
TEST_FAMILIES: dict[str, Callable[[Rng, int], Shape]] = {
    "watts_strogatz": watts_strogatz,
    "barabasi_albert": barabasi_albert,
    "stochastic_block": stochastic_block,
}
FAMILIES = TRAINING_FAMILIES | TEST_FAMILIES
