"""A random graph as a Program: kinds, sizes and weights, and every second time its backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadmaster.errors import BadProgram, nearest
from loadmaster.program.build import Builder
from loadmaster.program.kinds import ELEMENTWISE, MATRIX, REDUCTIONS, TRANSCENDENTAL
from loadmaster.program.program import Program, TieKind
from loadmaster.program.zoo.graphs.families import FAMILIES, Shape
from loadmaster.program.zoo.graphs.kinds import KINDS, WEIGHT_BYTES, Kind

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
