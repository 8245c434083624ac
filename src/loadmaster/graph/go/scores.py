"""What GO sees of a plan in hand and of changes to it, and its two small networks: one says where groups should be
(a prior for what is freed and where it is put again), one ranks changes before they are evaluated.

All numbers are ratios (to the plan's time, to a memory's capacity), so that they mean the same on every graph
and machine, and none depends on how devices are numbered: a change is described by sums and extremes over
groups and devices. Shapes: S steps, G groups, D devices, E pairs of groups, K candidates, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Bool, Float32, Float64, Int32, Int64
from loadmaster.errors import LoadmasterError
from loadmaster.graph.decoder import EXACT, Decoder
from loadmaster.graph.large_neighbourhood import OPERATORS, Candidates, Proposer, Standing

SHARPNESS = 50.0
"""How fast a step counts less as critical with its slack, in parts of the time."""
BLOCK = 96
"""Rows of a product of matrices: a library that shares larger ones among threads takes longer to do so than they take."""
BINS = 64
"""Of time, in which it is told how busy a device is."""


class GraphView:
    """What does not depend on a plan: steps, groups and what they exchange."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, problem = decoder, decoder.problem
        self.groups, self.devices = problem.groups, problem.devices
        _, group, time, edges = decoder.places.table
        self.step_group = group.astype(np.int64)
        self.step_time = np.where(time < 0, np.iinfo(np.int64).max, time).min(axis=1, initial=2**60) * 1.0
        self.work = decoder.work
        self.bytes = decoder.places.bytes.astype(np.float64)
        capacity = decoder.places.capacity[np.array(problem.machine.home)]
        self.capacity: Float64 = np.maximum(1.0, capacity.astype(np.float64))
        a, b = self.step_group[edges[0]], self.step_group[edges[1]]
        self.crossing = np.flatnonzero(a != b)
        self.source, self.reader = edges[0][self.crossing], edges[1][self.crossing]
        self.move = edges[2][self.crossing].astype(np.float64)
        pairs, self.pair_of = np.unique(
            a[self.crossing] * self.groups + b[self.crossing], return_inverse=True
        )
        self.first, self.second = pairs // max(1, self.groups), pairs % max(1, self.groups)
        """[E] pairs of groups of which the second reads the first's results."""
        self.pair_move = sum_by(self.pair_of, self.move, len(pairs))

    def by_device(self, device: Int32, amount: Float64) -> Float64:
        """[K, D] sums of amounts [G] over the groups of each device, of devices [K, G]."""
        found = np.stack([(device == d) @ amount for d in range(self.devices)], axis=1)
        return np.asarray(found, dtype=np.float64)


class PlanView:
    """A plan in hand as the decoder reckons it: who is critical, who is busy when, what is cut."""

    def __init__(self, graph: GraphView, device: Int32) -> None:
        self.graph, self.device = graph, device
        places = graph.decoder.places
        outlook = np.rint(1_000 * np.array(EXACT[:4])).astype(np.int64)
        start, end, latest = places.native.timeline(
            np.ascontiguousarray(device, dtype=np.int32), np.minimum(places.capacity, 2**50), outlook
        )
        self.time = max(1.0, float(end.max(initial=1)))
        slack = np.minimum(1.0, (latest - end) / self.time)
        critical = np.exp(-SHARPNESS * slack)
        self.start, self.end = start / self.time, end / self.time
        groups, step_group = graph.groups, graph.step_group
        self.critical = sum_by(step_group, graph.step_time * critical, groups) / self.time
        """[G] critical work."""
        self.slack = np.ones(groups)
        np.minimum.at(self.slack, step_group, slack)
        both = np.minimum(critical[graph.source], critical[graph.reader])
        self.pair_move = graph.pair_move / self.time
        self.pair_critical = sum_by(graph.pair_of, graph.move * both, len(graph.first)) / self.time
        self.cut: Bool = device[graph.first] != device[graph.second]
        self.work = graph.work / self.time
        self.load = graph.by_device(device[None], self.work)[0]
        self.held = graph.by_device(device[None], graph.bytes)[0] / graph.capacity

    @cached_property
    def beside(self) -> Float64:
        """[G, D] the work of a group, by how busy each device is when its steps run."""
        graph = self.graph
        bins = np.clip((self.start * BINS).astype(np.int64), 0, BINS - 1)
        busy = np.zeros((graph.devices, BINS))
        np.add.at(busy, (self.device[graph.step_group], bins), graph.step_time)
        busy = np.minimum(busy * BINS / self.time, 2.0)
        weight = graph.step_time / self.time
        return np.stack(
            [sum_by(graph.step_group, weight * busy[d, bins], graph.groups) for d in range(graph.devices)],
            axis=1,
        )

    @cached_property
    def reckoned(self) -> Int64:
        """[2] makespan and time of transfers."""
        return np.asarray(self.graph.decoder.reckon(self.device[None])[0], dtype=np.int64)


FEATURES = 32 + len(OPERATORS)


def make_features(plan: PlanView, standing: Standing, device: Int32, operator: Int64) -> Float32:
    """[K, F] of changes of a plan to devices [K, G], made by operators [K]."""
    graph, count = plan.graph, len(device)
    here = plan.device
    changed: Bool = device != here
    cut = device[:, graph.first] != device[:, graph.second]
    new, gone = cut & ~plan.cut, ~cut & plan.cut
    load = graph.by_device(device, plan.work)
    held = graph.by_device(device, graph.bytes) / graph.capacity
    reckoned = graph.decoder.reckon(device).astype(np.float64)
    before = np.maximum(1.0, plan.reckoned.astype(np.float64))
    groups = np.arange(graph.groups)
    there = plan.beside[groups[None], device] - plan.beside[groups, here]
    moved, critical = changed @ plan.work, changed @ plan.critical
    ones = np.ones(count)
    columns = (
        20 * np.log(np.maximum(1.0, reckoned[:, 0]) / before[0]),
        20 * (load.max(axis=1) - plan.load.max()),
        2 * load.max(axis=1),
        5 * (held.max(axis=1) - plan.held.max()),
        held.max(axis=1),
        (held > 1).sum(axis=1),
        signed_log((reckoned[:, 1] - plan.reckoned[1]) / plan.time),
        np.log1p(changed.sum(axis=1)),
        signed_log(moved),
        signed_log(critical),
        critical / np.maximum(1e-9, moved),
        10 * np.where(changed, plan.slack, 1.0).min(axis=1, initial=1.0),
        signed_log(new @ plan.pair_move),
        signed_log(gone @ plan.pair_move),
        signed_log(new @ plan.pair_critical),
        signed_log(gone @ plan.pair_critical),
        signed_log(new @ plan.pair_move - gone @ plan.pair_move),
        signed_log(new @ plan.pair_critical - gone @ plan.pair_critical),
        np.log1p(new.sum(axis=1)),
        np.log1p(gone.sum(axis=1)),
        (new.sum(axis=1) - gone.sum(axis=1)) / np.maximum(1, changed.sum(axis=1)),
        signed_log((changed * there).sum(axis=1)),
        signed_log(changed @ plan.beside[groups, here]),
        signed_log((load**2).sum(axis=1) - (plan.load**2).sum()),
        ones * np.log2(graph.devices),
        ones * np.log(max(1, graph.groups)) / 2,
        ones * 2 * plan.load.max(),
        ones * plan.held.max(),
        ones * np.log1p(10 * plan.cut.mean() if len(plan.cut) else 0.0),
        ones * signed_log(np.atleast_1d(plan.pair_move[plan.cut].sum())),
        ones * np.log(plan.load.sum() / max(1e-9, graph.devices * plan.load.max())),
        ones * standing.within,
    )
    chosen = np.zeros((count, len(OPERATORS)))
    chosen[np.arange(count), operator] = 1.0
    rows = np.concatenate([np.stack(columns, axis=1), chosen], axis=1)
    clipped: Float32 = np.clip(np.nan_to_num(rows), -10, 10).astype(np.float32)
    return clipped


def signed_log(amount: Float64) -> Float64:
    """Signed logarithm: amounts are parts of the time, of which thousandths matter."""
    return np.asarray(np.sign(amount) * np.log1p(1e3 * np.abs(amount)), dtype=np.float64)


def sum_by(index: npt.NDArray[np.integer], values: Float64, count: int) -> Float64:
    """[count] sums of the values of each index."""
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


def operator_numbers(proposer: Proposer, candidates: Candidates) -> Int64:
    """[K] in `OPERATORS`, of which a problem may have some alone."""
    names = [OPERATORS.index(name) for name in proposer.bandit.operators]
    return np.array(names, dtype=np.int64)[candidates.operator]


PARTS = ("mean", "deviation", "enter", "enter_bias", "inner", "inner_bias", "leave", "leave_bias")


@dataclass(frozen=True)
class Network:
    """Two hidden layers over normalised features; the parameters of training are all but the first two."""

    mean: Float32
    deviation: Float32
    """[F]"""
    enter: Float32
    enter_bias: Float32
    inner: Float32
    inner_bias: Float32
    leave: Float32
    leave_bias: Float32

    def __call__(self, features: Float32) -> Float32:
        """[..., outputs] of features [..., F]."""
        flat = features.reshape(-1, features.shape[-1])
        blocks = -(-len(flat) // BLOCK)
        x: Float32 = np.zeros((blocks * BLOCK, flat.shape[1]), dtype=np.float32)
        x[: len(flat)] = (flat - self.mean) / self.deviation
        x = x.reshape(blocks, BLOCK, -1)
        x = silu(x @ self.enter + self.enter_bias)
        x = silu(x @ self.inner + self.inner_bias)
        found: Float32 = x @ self.leave + self.leave_bias
        found = found.reshape(blocks * BLOCK, -1)[: len(flat)]
        return found.reshape(*features.shape[:-1], -1)

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """By name."""
        return {f"{prefix}.{name}": getattr(self, name) for name in PARTS}


@dataclass(frozen=True)
class Shape:
    """Of a network."""

    features: int
    hidden: int
    outputs: int

    def make(self, seed: int, mean: Float32 | None = None, deviation: Float32 | None = None) -> Network:
        """One that has learned nothing."""
        rng = np.random.default_rng([seed, 4])

        def layer(inputs: int, outputs: int, scale: float = 1.0) -> Float32:
            drawn = rng.normal(size=(inputs, outputs)) * scale * np.sqrt(2 / inputs)
            return np.asarray(drawn, dtype=np.float32)

        def zeros(count: int) -> Float32:
            return np.zeros(count, dtype=np.float32)

        return Network(
            zeros(self.features) if mean is None else mean,
            zeros(self.features) + 1 if deviation is None else deviation,
            layer(self.features, self.hidden),
            zeros(self.hidden),
            layer(self.hidden, self.hidden),
            zeros(self.hidden),
            layer(self.hidden, self.outputs, 0.1),
            zeros(self.outputs),
        )

    def read(self, arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> Network:
        """The network of arrays by name; raises `LoadmasterError` where they are none."""
        like, parts = self.make(0), {}
        for name in PARTS:
            wanted, found = getattr(like, name).shape, arrays.get(f"{prefix}.{name}")
            if found is None or found.shape != wanted or not np.isfinite(found.astype(np.float64)).all():
                raise LoadmasterError(
                    f"it has no '{prefix}.{name}' of shape {wanted}",
                    object=name,
                    remedy="train it again with this version",
                )
            parts[name] = found.astype(np.float32)
        return Network(**parts)


RANKER = Shape(FEATURES, 64, 2)
"""Outputs: the logit that a change is for the better, and the signed root of the logarithm of what it gains."""


def rank(ranker: Network, features: Float32) -> Float64:
    """[K] by which candidates are ranked: the logarithm of what is expected of a gain."""
    logit, gain = ranker(features).astype(np.float64).T
    likely = -np.logaddexp(0.0, -logit)
    return np.asarray(likely + 2 * np.log(np.maximum(gain, 0.0) + 0.02), dtype=np.float64)


def silu(x: npt.NDArray[np.floating]) -> Float32:
    """x / (1 + exp(-x))"""
    return np.asarray(x / (1 + np.exp(-np.clip(x, -30, 30))), dtype=np.float32)
