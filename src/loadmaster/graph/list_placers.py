"""Placers that weigh transfers: list scheduling (HEFT, m-ETF and m-SCT), with the memory of devices in
mind, and graph partitioning (METIS).

List placers walk over steps, and the first step of a group decides for the group. That is short-sighted:
the transfers of the group's other steps (its backward half, its share of gradients) don't count. So
each rule is tried as it is in the books, and then with transfers that wait for each other and with a
share of the group's later transfers counted when its device is chosen; the best plan is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from loadmaster.arrays import Int32, Int64, distinct
from loadmaster.clock import engine_limit
from loadmaster.errors import require
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.groups import root_homes
from loadmaster.graph.placers import NONE, Placements, Placer, Places

THRESHOLD = 0.5
WRITTEN_PER_SECOND = 40_000
"""Steps and edges of which a programme can be written down in a second, before it is solved."""


def favourites(places: Places, seconds: float) -> tuple[Int32, bool]:
    """([steps] the favourite child of each step, which should follow on the same device, or -1; whether
    the linear programme found them).

    The linear programme (Hanen and Munier's, relaxed): start times t and, for every edge between groups,
    x in [0, 1] that says how much of its transfer is paid; of all edges out of a step, and of all into
    one, at most one is free of it. The makespan is least. An edge with x below one half is a favourite.
    """
    _, _, time, edges = places.table
    own = np.where(time < 0, np.iinfo(np.int64).max, time).min(axis=1, initial=2**60)
    favourite = np.full(len(own), -1, dtype=np.int32)
    crossing = np.flatnonzero(edges[2] > 0)
    chosen: Int64 | None = crossing
    if len(crossing):
        chosen = _by_programme(own, edges, crossing, seconds)
    solved = chosen is not None
    if chosen is None:
        chosen = _dearest(edges, crossing)
    favourite[edges[0][chosen]] = edges[1][chosen]
    return favourite, solved


def _dearest(edges: Int64, crossing: Int64) -> Int64:
    """Edges by falling cost, as long as neither end has one."""
    taken_from, taken_to, chosen = set[int](), set[int](), []
    for row in crossing[np.argsort(-edges[2][crossing], kind="stable")].tolist():
        a, b = int(edges[0][row]), int(edges[1][row])
        if a not in taken_from and b not in taken_to:
            taken_from.add(a)
            taken_to.add(b)
            chosen.append(row)
    return np.array(chosen, dtype=np.int64)


def _by_programme(own: Int64, edges: Int64, crossing: Int64, seconds: float) -> Int64 | None:
    """Rows of the favourite edges; None if it was not solved in time."""
    if len(own) + len(edges[0]) > WRITTEN_PER_SECOND * seconds:
        return None
    mathopt = require("ortools.math_opt.python.mathopt", "exact")
    unit = max(1.0, float(own.sum()) / 1e6)  # numbers near one keep the solver's tolerances away
    model = mathopt.Model()
    start = [model.add_variable(lb=0.0) for _ in own]
    paid = {row: model.add_variable(lb=0.0, ub=1.0) for row in crossing.tolist()}
    last = model.add_variable(lb=0.0)
    out: dict[int, list[int]] = {}
    into: dict[int, list[int]] = {}
    ends = np.ones(len(own), dtype=bool)
    for row, (a, b, move) in enumerate(edges.T.tolist()):
        ends[a] = False
        gap = float(own[a]) / unit
        if row in paid:
            out.setdefault(a, []).append(row)
            into.setdefault(b, []).append(row)
            model.add_linear_constraint(start[b] - start[a] - (move / unit) * paid[row] >= gap)
        else:
            model.add_linear_constraint(start[b] - start[a] >= gap)
    for rows in (*out.values(), *into.values()):
        free = mathopt.fast_sum([paid[row] for row in rows])
        model.add_linear_constraint(free >= float(len(rows) - 1))
    for step in np.flatnonzero(ends).tolist():
        model.add_linear_constraint(last - start[step] >= float(own[step]) / unit)
    model.minimize(last)
    limit = engine_limit(seconds)
    result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=mathopt.SolveParameters(time_limit=limit))
    if result.termination.reason != mathopt.TerminationReason.OPTIMAL:
        return None
    values = result.variable_values()
    rows = [row for row, variable in paid.items() if values[variable] < THRESHOLD]
    return np.array(rows, dtype=np.int64)


OUTLOOKS = ((False, 0), (True, 30), (True, 100), (True, 0), (False, 30))
"""(transfers wait for each other, percent of a group's later transfers that count)"""
ROOMS = (1.0, 0.8, 0.6, 0.4)
"""Shares of the capacities that a placer may use, until its plan fits: what groups hold is a guess."""


class _List(Placer):
    """`variants`: how many of the outlooks are tried; 1 is the rule as it is in the books."""

    def __init__(self, variants: int = len(OUTLOOKS)) -> None:
        super().__init__()
        self.variants = variants
        self.options: dict[str, float] = {"variants": variants}

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        self.prepare(places, seconds)
        for engines, ahead in OUTLOOKS[: max(1, self.variants)]:
            for share in ROOMS:
                room = (places.capacity * share).astype(np.int64)
                value = yield self.listed(places, room, engines, ahead)
                if value is None or value < UNFIT:
                    break

    def prepare(self, places: Places, seconds: float | None) -> None:
        """Called once, before any placement is made."""

    @abstractmethod
    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        """[G] devices."""


class Heft(_List):
    name = "heft"
    summary = "steps by upward rank, each where it ends first, in the first gap that is long enough"

    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        return places.native.heft(room, engines, ahead)


class MEtf(_List):
    name = "m-etf"
    summary = "always the step and the device that can start first, where there is room"

    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        return places.native.earliest_start(room, NONE, engines, ahead)


class MSct(_List):
    """`lp_seconds`: limit of the linear programme that finds favourite children; where it is not
    solved in time, the dearest transfers choose them."""

    name = "m-sct"
    summary = "as m-etf, but a device may wait for the favourite child of what it ran last"

    def __init__(self, variants: int = len(OUTLOOKS), lp_seconds: float = 30.0) -> None:
        super().__init__(variants)
        self.lp_seconds = lp_seconds
        self.options = {"variants": variants, "lp_seconds": lp_seconds}
        self._favourite: Int32 = NONE

    def prepare(self, places: Places, seconds: float | None) -> None:
        limit = self.lp_seconds if seconds is None else min(self.lp_seconds, seconds / 2)
        self._favourite, solved = favourites(places, limit)
        self.notes["favourites"] = "linear programme" if solved else "dearest transfers"
        if not solved:
            self.notes["reason"] = f"the linear programme was not solved within {limit:.1f} s"

    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        favourite = np.ascontiguousarray(self._favourite, dtype=np.int32)
        return places.native.earliest_start(room, favourite, engines, ahead)


_LARGEST = 1 << 20
"""Weights are scaled below it: METIS adds them up in 32 bits."""


class Metis(Placer):
    """Once with equal time and once with equal memory per part; the better plan is kept."""

    name = "metis"
    summary = "graph partitioning by METIS: few bytes between devices, equal time or memory on each"

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        metis, problem = require("pymetis", "bench"), places.problem
        if problem.groups <= problem.devices or problem.devices == 1:
            yield (np.arange(problem.groups) % problem.devices).astype(np.int32)
            return
        start, other, bytes_ = group_edges(problem)
        cost = np.maximum(problem.durations, 0).min(axis=1) * problem.program.op_repeat[problem.node_op]
        work = np.bincount(problem.node_group, cost, minlength=problem.groups)
        for weight in (work, places.bytes):
            yield parts(metis, problem.devices, start, other, bytes_, weight)


def parts(metis: Any, devices: int, start: Int64, other: Int64, bytes_: Int64, weight: Any) -> Int32:
    """[G] the device of each group: few bytes between devices, equal weight on each."""
    edges, between, inside = (
        metis.CSRAdjacency(start.tolist(), other.tolist()),
        _scaled(bytes_),
        _scaled(weight),
    )
    with _silent():
        _, part = metis.part_graph(
            devices, edges, eweights=between, vweights=inside, recursive=False, options=metis.Options(seed=0)
        )
    return np.array(part, dtype=np.int32)


_SILENT = threading.Lock()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Nothing reaches standard output meanwhile: where a part stays empty METIS says so there, whatever its options,
    in the midst of a command's table or JSON."""
    with _SILENT, contextlib.ExitStack() as after:
        try:
            flush = ctypes.CDLL(None).fflush  # what C has printed so far waits in a buffer of its own
            kept = os.dup(1)
        except (OSError, TypeError, AttributeError):  # no standard output, or no C library by that name
            yield
            return
        after.callback(os.close, kept)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        after.callback(os.close, nowhere)
        flush(None)
        os.dup2(nowhere, 1)
        try:
            yield
        finally:
            flush(None)
            os.dup2(kept, 1)


def _scaled(weight: Any) -> list[int]:
    top = max(1.0, float(np.max(weight, initial=0)))
    scaled: list[int] = np.ceil(np.asarray(weight) / top * _LARGEST / 16).astype(np.int64).tolist()
    return [max(1, value) for value in scaled]


def group_edges(problem: GraphOptimization) -> tuple[Int64, Int64, Int64]:
    """(row starts [G + 1], neighbour [E], bytes [E]) of the graph of groups, both ways. A tensor
    counts once for every group that reads it; weights count between their home and their readers."""
    program, group = problem.program, problem.op_group.astype(np.int64)
    home, root = root_homes(program), program.tensor_alias[program.read_tensor]
    real = (home[root] >= 0) & ~program.op_view[program.read_op]
    roots, readers = root[real].astype(np.int64), group[program.read_op[real]]
    key = distinct(roots * problem.groups + readers)
    roots, readers = np.divmod(key, problem.groups)
    makers, size = group[home[roots]], program.storage_bytes[roots]
    apart = makers != readers
    a, b, size = makers[apart], readers[apart], size[apart]
    pair, inverse = np.unique(
        np.concatenate([a, b]) * problem.groups + np.concatenate([b, a]), return_inverse=True
    )
    total = np.bincount(inverse, np.concatenate([size, size]), minlength=len(pair))
    source, other = np.divmod(pair, problem.groups)
    start = np.searchsorted(source, np.arange(problem.groups + 1))
    return start.astype(np.int64), other.astype(np.int64), total.astype(np.int64)
