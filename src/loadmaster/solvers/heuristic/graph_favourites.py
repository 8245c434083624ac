"""Favourite children for m-SCT: of each step the one that should follow on the same device.

The linear programme (Hanen and Munier's, relaxed): start times t and, for every edge between groups,
x in [0, 1] that says how much of its transfer is paid; of all edges out of a step, and of all into one,
at most one is free of it. The makespan is least. An edge with x below one half is a favourite.
"""

from __future__ import annotations

import numpy as np

from loadmaster.clock import engine_limit
from loadmaster.errors import require
from loadmaster.solvers.heuristic.graph_placing import Int32, Int64, Places

THRESHOLD = 0.5
WRITTEN_PER_SECOND = 40_000
"""Steps and edges of which a programme can be written down in a second, before it is solved."""


def favourites(places: Places, seconds: float) -> tuple[Int32, bool]:
    """([steps] the favourite of each step or -1, whether the linear programme found them)."""
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
