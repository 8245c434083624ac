"""`Classical`: the best pipeline of constructive parts, and its vectors as seeds for searches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadmaster.clock import now
from loadmaster.errors import MissingPackage
from loadmaster.graph import GraphOptimization
from loadmaster.graph.base import fixed_keys
from loadmaster.graph.list_placers import Heft, MEtf, Metis, MSct
from loadmaster.graph.placers import (
    Expert,
    Float64,
    Int32,
    Made,
    MTopo,
    Placer,
    Places,
    RoundRobin,
    Single,
    Vectors,
    clusters_of,
    like_base,
)

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
            found.setdefault(vector.tobytes(), (name, vector))
            if until is not None and now() >= until:
                return list(found.values())
    return list(found.values())


def _pipelines(problem: GraphOptimization) -> Iterator[tuple[str, Vectors]]:
    yield "base", _one(problem.vector())
    for fusion_name, fusion in _fusions(problem):
        places = Places(problem, clusters_of(problem, fusion))
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
                told = yield vector
                value = told if value is None or (told is not None and told < value) else value
    except (StopIteration, MissingPackage):
        return  # without METIS or HiGHS the others are left


def _scheduled(fusion: Float64 | None, device: Int32 | None, places: Places) -> Vectors:
    """Longest path first, with and without transfers, where the schedule is decided."""
    problem = places.problem
    if "schedule" not in problem.tasks:
        yield like_base(problem, fusion, device)
        return
    plain = problem.vector(fusion, device, np.zeros(problem.nodes))
    where = np.ascontiguousarray(problem.split(plain)[1])
    for moves in (False, True):
        yield problem.vector(fusion, device, places.keys(where, moves))


class Classical(Made):
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
