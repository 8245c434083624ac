"""Solvers of the offset problem that prove something: our own search, and CP-SAT.

The native search (`native/src/allocate`) does the work of `Exact`; this hands it the problem, lets the
problem score what it finds, and turns its proofs into bounds and statuses. CP-SAT (fixed intervals in
time, free ones in address, no overlap) is a second opinion beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.allocation.problem import Allocation
from loadmaster.errors import require
from loadmaster.host import cores
from loadmaster.search.native import INFEASIBLE, OPTIMAL, run_native
from loadmaster.search.or_tools import Value, run_cp_sat
from loadmaster.search.solver import Meter, Solution, Solver, State, Status


class Exact(Solver):
    """Fits a capacity or finds the least height. `techniques` turns some of them off, for ablation."""

    name = "exact"
    problem_kind = "allocation"
    summary = "complete tree search over many orders on all cores; proves optimality and infeasibility"
    deterministic = True

    def __init__(
        self, techniques: dict[str, Any] | None = None, threads: int | None = None, nodes: int | None = None
    ) -> None:
        self.options = techniques or {}
        self.threads = threads
        self.nodes = nodes
        """At most so many search nodes; None: until the budget ends."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Allocation)
        if meter.exhausted:
            return meter.solution()
        options = {"threads": self.threads or cores(), "seed": seed, **self.options}
        if problem.capacity is None:
            answer = run_native(
                meter, lambda stop, improved: problem.native.minimize(options, stop, improved), self.nodes
            )
            meter.raise_bound(answer.bound, "exact search")
            if answer.status == OPTIMAL and meter.best_value is not None:
                meter.raise_bound(min(answer.height, meter.best_value), "exact search")
        else:
            capacity = problem.capacity
            answer = run_native(
                meter, lambda stop, _: problem.native.fit(capacity, options, stop), self.nodes
            )
            meter.raise_bound(answer.bound, "exact search")
        return meter.solution(infeasible=answer.status == INFEASIBLE, nodes=answer.nodes)


class CpSat(Solver):
    """Decides a capacity, or minimises the height. `work`: see `run_cp_sat`."""

    name = "cp-sat"
    problem_kind = "allocation"
    summary = "OR-tools' CP-SAT with a no-overlap-2D model (needs: pip install 'loadmaster[exact]')"
    deterministic = True

    def __init__(self, work: float | None = None) -> None:
        self.work = work

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Allocation)
        if meter.exhausted:
            return meter.solution()
        cp_model = require("ortools.sat.python.cp_model", "exact")
        model, offsets = _model(cp_model, problem)

        def submit(value: Value) -> None:
            if meter.evaluations_left != 0:
                meter.evaluate(np.array([value(offset) for offset in offsets], dtype=np.int64))

        result = run_cp_sat(model, meter, seed, found=submit, work=self.work)
        if result.status in (Status.OPTIMAL, Status.FEASIBLE):
            submit(result.value)
        if result.bound is not None:
            meter.raise_bound(result.bound, "CP-SAT")
        return meter.solution(infeasible=result.status == Status.INFEASIBLE)


def _model(cp_model: Any, problem: Allocation) -> tuple[Any, list[Any]]:
    """(model, the offset of every buffer)"""
    b, pieces = problem.buffers, problem.buffers.pieces
    model = cp_model.CpModel()
    # Without a capacity the sum of the sizes is room enough for any order.
    slack = int((b.alignment - 1).sum()) + int(b.pinned.max(initial=0))
    top = problem.capacity if problem.capacity is not None else int(b.size.sum()) + slack
    offsets = []
    for i in range(len(b)):
        align, pin, size = int(b.alignment[i]), int(b.pinned[i]), int(b.size[i])
        if pin >= 0:
            offsets.append(model.new_constant(pin))
        elif align == 1:
            offsets.append(model.new_int_var(0, max(0, top - size), f"offset{i}"))
        else:
            unit = model.new_int_var(0, max(0, top - size) // align, f"unit{i}")
            offsets.append(unit * align)
    times, addresses = [], []
    for piece, i in enumerate(pieces.buffer.tolist()):
        low, high = int(pieces.low[piece]), int(pieces.high[piece])
        start, end = int(pieces.lower[piece]), int(pieces.upper[piece])
        if high > low:
            times.append(model.new_fixed_size_interval_var(start, end - start, f"time{piece}"))
            addresses.append(
                model.new_fixed_size_interval_var(offsets[i] + low, high - low, f"address{piece}")
            )
    model.add_no_overlap_2d(times, addresses)
    for a, c in b.apart:
        if not (b.size[a] and b.size[c]):  # an empty interval would still forbid to lie around it
            continue
        both = [
            model.new_fixed_size_interval_var(offsets[i], int(b.size[i]), f"apart{i}-{a}-{c}") for i in (a, c)
        ]
        model.add_no_overlap(both)
    if problem.capacity is None:
        height = model.new_int_var(problem.bound().value, top, "height")
        for i in range(len(b)):
            model.add(offsets[i] + int(b.size[i]) <= height)
        model.minimize(height)
    return model, offsets
