"""Plans from which searches begin: every pipeline of constructive parts, the best of them (`Classical`),
and the best placements with fusion fitted to their devices (`constructive`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Float64, Int32, Int64
from loadmaster.clock import now
from loadmaster.errors import MissingPackage
from loadmaster.graph import GraphOptimization
from loadmaster.graph.base import fixed_keys
from loadmaster.graph.decoder import leaves
from loadmaster.graph.list_placers import Heft, MEtf, Metis, MSct
from loadmaster.graph.placers import (
    Constructive,
    Expert,
    MTopo,
    Placer,
    Places,
    RoundRobin,
    Single,
    Vectors,
    find_clusters,
    follow_base,
)
from loadmaster.search.solver import Meter


def graph_of(meter: Meter) -> GraphOptimization:
    """The meter's problem."""
    problem = meter.problem
    assert isinstance(problem, GraphOptimization)
    return problem


def batch_size(problem: GraphOptimization, most: int) -> int:
    """So many vectors that a batch takes well below a second; the same on every machine."""
    return int(np.clip(300_000 // max(1, problem.nodes), 4, most))


def vector_key(vector: Float64) -> bytes:
    """What tells a vector from others: of a million ops it has 16 MiB itself."""
    return hashlib.blake2b(np.ascontiguousarray(vector).data, digest_size=16).digest()


def base_vectors(problem: GraphOptimization) -> list[Float64]:
    """The base plan as it is and, where the schedule is decided, with the order left to the rule for
    ties."""
    plain = [problem.vector(schedule=np.zeros(problem.nodes))] if "schedule" in problem.tasks else []
    return [problem.vector(), *plain]


LP_SECONDS = 2.0
"""For the linear programme of m-SCT, per fusion."""


def _placers() -> tuple[Placer, ...]:
    """What is cheap and often good comes first."""
    return (Expert(), MTopo(), MEtf(), Heft(), Metis(), Single(), RoundRobin(), MSct(lp_seconds=LP_SECONDS))


def seeds(problem: GraphOptimization, seconds: float | None = None) -> list[tuple[str, Float64]]:
    """(name, vector) of every constructive pipeline that was made within `seconds`, cheap ones
    first, the base before all; each vector once. Nothing is evaluated: some may not fit."""
    until = None if seconds is None else now() + seconds
    found: dict[bytes, tuple[str, Float64]] = {}
    for name, vectors in _pipelines(problem):
        for vector in vectors:
            found.setdefault(vector_key(vector), (name, vector))
            if until is not None and now() >= until:
                return list(found.values())
    return list(found.values())


def _pipelines(problem: GraphOptimization) -> Iterator[tuple[str, Vectors]]:
    yield "base", _one(problem.vector())
    for fusion_name, fusion in _fusions(problem):
        places = Places(problem, find_clusters(problem, fusion))
        yield fusion_name, _scheduled(fusion, None, places)
        if "placement" not in problem.tasks:
            continue
        for placer in _placers():
            name = f"{fusion_name}, {placer.name}"
            yield name, _placed(placer, fusion, places)


def _one(vector: Float64) -> Vectors:
    yield vector


def _fusions(problem: GraphOptimization) -> Iterator[tuple[str, Float64 | None]]:
    yield f"{problem.base.fusion} fusion", None
    if "fusion" in problem.tasks:
        if problem.base.fusion != "cost_model":
            yield "cost_model fusion", problem.cost_model_keys()
        if problem.base.fusion != "fixed":
            yield "fixed fusion", fixed_keys(problem.nodes)


def _placed(placer: Placer, fusion: Float64 | None, places: Places) -> Vectors:
    """A placer's devices, one after another."""
    try:
        placements = placer.place(places)
        value: int | None = None
        while True:
            device = placements.send(value)
            value = None
            for vector in _scheduled(fusion, device, places):
                found = yield vector
                value = found if value is None or (found is not None and found < value) else value
    except (StopIteration, MissingPackage):
        return  # without METIS or HiGHS the others are left


def _scheduled(fusion: Float64 | None, device: Int32 | None, places: Places) -> Vectors:
    """Longest path first, with and without transfers, where the schedule is decided."""
    problem = places.problem
    if "schedule" not in problem.tasks:
        yield follow_base(problem, fusion, device)
        return
    plain = problem.vector(fusion, device, np.zeros(problem.nodes))
    where = np.ascontiguousarray(problem.split(plain)[1])
    for moves in (False, True):
        yield problem.vector(fusion, device, places.keys(where, moves))


class Classical(Constructive):
    """Every constructive placement on every fusion under critical path; the base first, so that the
    answer is never worse."""

    name = "classical"
    summary = "the best of fusion by cost model or fixed, every constructive placement, critical path"

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        best: int | None = None
        for name, vectors in _pipelines(problem):
            value: int | None = None
            while True:
                try:
                    vector = vectors.send(value)
                except StopIteration:
                    break
                value = yield vector
                if value is not None and (best is None or value < best):
                    best = value
                    self.notes["pipeline"] = name


WORST = np.iinfo(np.int64).max
"""The value of what can't run."""
FITTED = 16
"""Placements of which variants are made: the best ones."""
CLASSICAL, SHARE = 0.3, 0.4
"""Of the time, at most: for constructive plans, and for all plans before the search itself."""


@dataclass
class Candidates:
    """Vectors [B, V] and their values [B], `WORST` for what can't run."""

    vectors: Float64
    values: Int64

    def best_placements(self, problem: GraphOptimization, count: int) -> list[int]:
        """Rows: the best of each placement, the best of them first."""
        rows, seen, at = [], set(), problem.part("device")
        for row in np.argsort(self.values, kind="stable").tolist():
            key = vector_key(self.vectors[row, at])
            if key not in seen and self.values[row] < WORST:
                seen.add(key)
                rows.append(row)
            if len(rows) == count:
                break
        return rows

    def add(self, meter: Meter, vectors: Iterable[Float64], share: float = 1.0) -> None:
        """Evaluate those that are new, as far as the budget goes, or a share of its time."""
        known = {vector_key(vector) for vector in self.vectors}
        keyed = ((vector_key(vector), vector) for vector in vectors)
        new = list({key: vector for key, vector in keyed if key not in known}.values())
        problem = graph_of(meter)
        size, limit = batch_size(problem, 64), meter.budget.seconds
        for first in range(0, len(new), size):
            late = limit is not None and len(self.values) and meter.seconds > share * limit
            if meter.exhausted or late:
                return
            batch = np.stack(new[first : first + size])
            found = meter.evaluate_many(batch).value
            self.vectors = np.concatenate([self.vectors, batch[: len(found)]])
            self.values = np.concatenate([self.values, np.where(found < 0, WORST, found)])

    def follow(self, meter: Meter, maker: Vectors, share: float) -> None:
        """Evaluate what a constructive solver makes, which receives each value, in a share of the
        time."""
        known = {vector_key(v): value for v, value in zip(self.vectors, self.values.tolist(), strict=True)}
        new: list[Float64] = []
        value: int | None = None
        limit = meter.budget.seconds
        while not meter.exhausted and (limit is None or meter.seconds < share * limit):
            try:
                vector = maker.send(value)
            except StopIteration:
                break
            key = vector_key(vector)
            if key not in known:
                found = meter.evaluate(vector)
                known[key] = WORST if found is None else found
                new.append(vector)
            value = None if known[key] == WORST else known[key]
        values = [known[vector_key(vector)] for vector in new]
        self.vectors = np.concatenate([self.vectors, np.array(new).reshape(-1, self.vectors.shape[1])])
        self.values = np.concatenate([self.values, np.array(values, dtype=np.int64)])


def constructive(meter: Meter, problem: GraphOptimization) -> Candidates:
    """What the meter knows already, the base plan, every constructive plan, and the best placements
    with fusion that fits them."""
    found = Candidates(np.zeros((0, problem.width)), np.zeros(0, dtype=np.int64))
    if meter.best is not None and meter.best_value is not None:
        found = Candidates(meter.best[None].copy(), np.array([meter.best_value], dtype=np.int64))
    found.add(meter, base_vectors(problem))
    found.follow(meter, Classical().make(problem), CLASSICAL)
    rows = found.best_placements(problem, FITTED)
    found.add(meter, variants(problem, found.vectors[rows]), SHARE)
    return found


def variants(problem: GraphOptimization, vectors: Float64) -> list[Float64]:
    """With the placement of each vector: the order left to the rule for ties, and fusion as it is,
    within devices alone, and within groups alone. A cluster runs on one device, so fusion that was
    made before the placement takes ops to devices that nobody chose for them."""
    fitting, zeros, made = Fitting(problem), np.zeros(problem.nodes), []
    for vector in vectors:
        fusion, device, _ = problem.split(vector)
        made.append(problem.vector(fusion, device, zeros))
        if "fusion" in problem.tasks:
            made += [
                problem.vector(fitting.keys(device), device, zeros),
                problem.vector(fitting.apart, device, zeros),
            ]
    return made


class Fitting:
    """Fusion keys that follow devices."""

    def __init__(self, problem: GraphOptimization) -> None:
        self._problem, self.plain = problem, fixed_keys(problem.nodes)
        self.apart = self.keys(np.arange(problem.groups))
        """[n] keys with which every group stays by itself."""

    def keys(self, device: npt.NDArray[np.generic]) -> Float64:
        """[n] as the fixed pass, but nothing is fused from one device into another; devices [G]."""
        return np.where(leaves(self._problem, device), 0.0, self.plain)
