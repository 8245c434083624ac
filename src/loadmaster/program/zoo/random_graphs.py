"""A random graph as a Program: kinds, sizes and weights, and every second time its backward pass.

What the ops are and cost (`KINDS`) was measured over one training workload per family (rnnlm-2, gnmt-2,
txl-2, inception-b32, wavenet-2x9, vit-l16, llama; no held-out one), without views and updates, each
workload counting alike. Ranges are the 5 % and 95 % quantiles. `tools/graph_kinds.py` prints the table anew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadProgram, nearest
from loadmaster.program.build import Builder
from loadmaster.program.kinds import ELEMENTWISE, MATRIX, REDUCTIONS, TRANSCENDENTAL
from loadmaster.program.program import Program, TieKind


class Kind(NamedTuple):
    """One kind of op. Sizes are bytes of the result."""

    name: str
    percent: float
    unit: str
    """The flop class, as in `FLOP_CLASSES`; '' where it only moves bytes."""
    least_bytes: int
    most_bytes: int
    least_flops: int = 0
    most_flops: int = 0


KINDS = (
    Kind("mul", 29.25, "vector", 768, 67_108_864, 192, 16_777_216),
    Kind("add", 17.39, "vector", 16_384, 67_108_864, 4_096, 16_777_216),
    Kind("matmul", 10.48, "matrix", 262_144, 81_920_000, 9_961_472, 105_763_569_664),
    Kind("reduce_sum", 8.19, "vector", 4, 262_144, 266, 32_768_000),
    Kind("sub", 4.75, "vector", 19_456, 51_642_368, 4_864, 12_910_592),
    Kind("conv", 4.55, "matrix", 262_144, 88_510_464, 1_049_075_712, 33_554_432_000),
    Kind("transpose", 4.45, "", 2_097_152, 81_920_000),
    Kind("broadcast", 3.12, "", 256, 79_480_832),
    Kind("logistic", 1.8, "transcendental", 262_144, 524_288, 65_536, 131_072),
    Kind("convert", 1.72, "vector", 2_097_152, 67_108_864, 1_048_576, 16_777_216),
    Kind("div", 1.71, "vector", 256, 268_435_456, 64, 134_217_728),
    Kind("reverse", 1.51, "", 59_904, 2_256_896),
    Kind("neg", 1.5, "vector", 256, 103_284_736, 64, 49_795_584),
    Kind("split", 1.45, "", 524_288, 33_554_432),
    Kind("concat", 1.44, "", 524_288, 33_554_432),
    Kind("tanh", 1.31, "transcendental", 262_144, 19_922_944, 65_536, 4_980_736),
    Kind("rsqrt", 0.88, "transcendental", 256, 50_432, 64, 12_608),
    Kind("compare", 0.64, "vector", 32_768, 16_777_216, 32_768, 16_777_216),
    Kind("exp", 0.62, "transcendental", 19_456, 268_435_456, 4_864, 134_217_728),
    Kind("reduce_max", 0.53, "vector", 256, 403_456, 4_864, 134_217_728),
    Kind("max", 0.48, "vector", 2_621_440, 67_108_864, 655_360, 16_777_216),
    Kind("select", 0.48, "vector", 2_621_440, 67_108_864, 655_360, 16_777_216),
    Kind("pad", 0.28, "", 26_096_435, 67_371_008),
    Kind("gather", 0.27, "", 256, 144_384),
    Kind("scatter", 0.27, "vector", 2_560_000, 126_976_000, 64, 36_096),
    Kind("log", 0.23, "transcendental", 256, 256, 64, 64),
)
"""Kinds of at least 0.2 %; the rest is too rare to have a range."""

WEIGHT_BYTES = (262_144, 23_068_672)
"""The same range, of the weights that matrix ops read."""


Rng = np.random.Generator


@dataclass(frozen=True)
class Shape:
    """Who reads whom, for ops in a valid order. Graphs without a direction get one by a random permutation."""

    inputs: list[list[int]]
    """Of each op: earlier ops, ascending."""
    site: list[int]
    """Of each op. Ops of one site are the same layer at work again: they share kind, sizes and weight."""


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


LEAST_OPS, MOST_OPS = 100, 4_000
_MIRRORED = 3
"""An op has at most one backward op and one update."""
_UPDATE_FLOPS = 12
"""Vector flops per weight, as Adam's."""
_INPUT_BYTES = 1 << 20


@dataclass(frozen=True)
class _Site:
    """What the ops of one site have in common."""

    kind: Kind
    size: int
    """Bytes of the result."""
    flops: int
    weight: int
    """Bytes, or 0: it has none."""


def synthetic_graph(family: str, seed: int) -> Program:
    """The graph of a family and a seed: always the same. Odd seeds have a backward pass."""
    if family not in FAMILIES:
        raise BadProgram(
            f"there is no family '{family}'{nearest(family, tuple(FAMILIES))}",
            object=family,
            remedy=f"use {', '.join(FAMILIES)}",
        )
    rng = np.random.default_rng([30_000, list(FAMILIES).index(family), seed])
    mirrored = seed % 2 == 1
    most = MOST_OPS // _MIRRORED if mirrored else MOST_OPS
    ops = round(LEAST_OPS * (most / LEAST_OPS) ** rng.random())
    shape = FAMILIES[family](rng, ops)
    sites = _sites(rng, shape)
    return _Graph(f"{family}-{seed}", shape, sites, mirrored).build()


def _sites(rng: np.random.Generator, shape: Shape) -> dict[int, _Site]:
    """Sizes and flops are log-uniform. The flops of all but matrix ops go with their sizes."""
    shares = np.array([kind.percent for kind in KINDS])
    sites: dict[int, _Site] = {}
    for op, site in enumerate(shape.site):
        if site in sites:
            continue
        kind = KINDS[int(rng.choice(len(KINDS), p=shares / shares.sum()))]
        place = rng.random()
        size = _between(kind.least_bytes, kind.most_bytes, place)
        flops = _between(kind.least_flops, kind.most_flops, rng.random() if kind.name in MATRIX else place)
        weight = _between(*WEIGHT_BYTES, rng.random()) if kind.name in MATRIX else 0
        sources = [sites[shape.site[i]].size for i in shape.inputs[op] if shape.site[i] in sites]
        sites[site] = _Site(kind, _fitting(kind.name, size, sources), flops, weight)
    return sites


def _fitting(kind: str, size: int, sources: list[int]) -> int:
    """A result's size beside what it is made of: fusion looks at both."""
    if not sources:
        return size
    if kind in ELEMENTWISE or kind in TRANSCENDENTAL:
        return max(sources)
    if kind in REDUCTIONS:
        return min(size, max(sources))
    return max(size, max(sources)) if kind == "broadcast" else size


def _between(least: int, most: int, place: float) -> int:
    """A multiple of 4 at a place of the logarithmic scale."""
    if least <= 0:
        return 0
    return max(4, round(math.exp(math.log(least) + place * math.log(most / least))) // 4 * 4)


class _Graph:
    """Adds the parts one after another."""

    def __init__(self, name: str, shape: Shape, sites: dict[int, _Site], mirrored: bool) -> None:
        self.shape, self.sites, self.mirrored = shape, sites, mirrored
        self.add = Builder(name, order_source="topological")
        self.given = self.add.tensor("input", bytes=_INPUT_BYTES, kind="input")
        self.weights = {
            site: self.add.tensor(
                f"weight{site}",
                shape=(each.weight // 4,),
                dtype="f32",
                kind="weight",
                group=site if mirrored else -1,
            )
            for site, each in sites.items()
            if each.weight
        }
        self.readers: list[list[int]] = [[] for _ in shape.inputs]
        for op, sources in enumerate(shape.inputs):
            for source in sources:
                self.readers[source].append(op)

    def build(self) -> Program:
        results = self._forward()
        if self.mirrored:
            self._update(self._backward(results))
        return self.add.build()

    def _forward(self) -> list[int]:
        results: list[int] = []
        for op, sources in enumerate(self.shape.inputs):
            site = self.shape.site[op]
            last = not self.readers[op] and not self.mirrored
            result = self._tensor(f"t{op}", op, "output" if last else "activation")
            reads = [results[i] for i in sources] or [self.given]
            self._op(f"op{op}", op, [*reads, *self._weight(site)], [result], 1)
            results.append(result)
        return results

    def _backward(self, results: list[int]) -> dict[int, list[int]]:
        """In reverse order; returns the gradients of each site's weight."""
        passed: dict[tuple[int, int], int] = {}
        gradients: dict[int, list[int]] = {site: [] for site in self.weights}
        for op in range(len(results) - 1, -1, -1):
            site, sources = self.shape.site[op], self.shape.inputs[op]
            # What a reader hands back; of a last result, itself: the loss is made from it.
            incoming = [passed[reader, op] for reader in self.readers[op] if (reader, op) in passed]
            writes = []
            for i in sources:
                passed[op, i] = self._tensor(f"d{op}.{i}", i, "activation")
                writes.append(passed[op, i])
            if site in self.weights:
                size = self.sites[site].weight // 4
                made = self.add.tensor(f"dweight{op}", shape=(size,), dtype="f32")
                gradients[site].append(made)
                writes.append(made)
            if writes:
                kept = [results[i] for i in sources] or [self.given]
                reads = [*(incoming or [results[op]]), *kept, *self._weight(site)]
                self._op(f"back{op}", op, reads, writes, 2)
        return gradients

    def _update(self, gradients: dict[int, list[int]]) -> None:
        """One op per weight, which it changes in place with its two moments."""
        for site, made in gradients.items():
            count = self.sites[site].weight // 4
            places = [self.weights[site]]
            places += [
                self.add.tensor(f"{name}{site}", shape=(count,), dtype="f32", kind="state", group=site)
                for name in ("mean", "square")
            ]
            new = [
                self.add.tensor(f"new{i}.{site}", shape=(count,), dtype="f32", kind="output")
                for i in range(3)
            ]
            at = self.add.op(
                f"update{site}",
                "sub",
                reads=[*made, *places],
                writes=new,
                group=site,
                vector=_UPDATE_FLOPS * count,
            )
            for place, tensor in zip(places, new, strict=True):
                self.add.tie(TieKind.INPLACE, place, tensor, at)

    def _weight(self, site: int) -> list[int]:
        return [self.weights[site]] if site in self.weights else []

    def _tensor(self, name: str, like: int, kind: str) -> int:
        size = self.sites[self.shape.site[like]].size
        return self.add.tensor(name, shape=(size // 4,), dtype="f32", kind=kind)

    def _op(self, name: str, op: int, reads: list[int], writes: list[int], times: int) -> None:
        site = self.sites[self.shape.site[op]]
        flops = {site.kind.unit: times * site.flops} if site.kind.unit else {}
        self.add.op(name, site.kind.name, reads=reads, writes=writes, backward=times == 2, **flops)  # type: ignore[arg-type]
