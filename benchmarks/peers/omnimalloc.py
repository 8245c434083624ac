"""OmniMalloc's SuperMalloc, where its package is installed: a peer, measured beside our solvers of offsets.

It runs with six threads, its best setting on few cores: below that its ladder of bounds does not reach down to
the lower bound. It has no alignment, gaps or pairs, so such problems are not its own.
"""

from __future__ import annotations

import numpy as np

from loadmaster.allocation.problem import Allocation
from loadmaster.clock import engine_seconds
from loadmaster.errors import require
from loadmaster.search.solver import Meter, Solution, Solver, State

THREADS = 6


class OmniMalloc(Solver):
    """The portfolio branch-and-bound of OmniMalloc, minimising."""

    name = "omnimalloc"
    problem_kind = "allocation"
    summary = "OmniMalloc's SuperMalloc"
    deterministic = False

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Allocation)
        b = problem.buffers
        plain = (b.alignment == 1).all() and (b.pinned < 0).all()
        if meter.exhausted or b.gaps or b.apart or not plain:
            return meter.solution(unsupported=True)
        om = require("omnimalloc", "bench")
        allocators = require("omnimalloc.allocators", "bench")
        rows = zip(b.size.tolist(), b.lower.tolist(), b.upper.tolist(), strict=True)
        given = [
            om.Allocation(id=i, size=size, start=start, end=end) for i, (size, start, end) in enumerate(rows)
        ]
        left = engine_seconds(meter.seconds_left)
        solver = allocators.SupermallocAllocator(timeout=left, num_threads=THREADS)
        placed = om.allocate(given, allocator=solver)
        offsets = np.zeros(len(b), dtype=np.int64)
        for allocation in placed:
            offsets[allocation.id] = allocation.offset
        meter.evaluate(offsets)
        return meter.solution()
