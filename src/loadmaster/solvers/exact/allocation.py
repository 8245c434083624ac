"""The exact solver of the offset problem: complete, raced over orders and cores, with proofs.

The native search (`native/src/allocate`) does the work; this hands it the problem, lets the
problem score what it finds, and turns its proofs into bounds and statuses.
"""

from __future__ import annotations

from typing import Any

from loadmaster.host import cores
from loadmaster.problems.allocation import Allocation
from loadmaster.solvers.native import INFEASIBLE, OPTIMAL, run_native
from loadmaster.solvers.solver import Meter, Solution, State


class Exact:
    """Fits a capacity or finds the least height. `switches` turns techniques off for ablation."""

    name = "exact"
    problem_kind = "allocation"
    summary = "complete tree search over many orders on all cores; proves optimality and infeasibility"
    deterministic = True

    def __init__(
        self, switches: dict[str, Any] | None = None, threads: int | None = None, nodes: int | None = None
    ) -> None:
        self.switches = switches or {}
        self.threads = threads
        self.nodes = nodes
        """At most so many search nodes; None: until the budget ends."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Allocation)
        if meter.exhausted:
            return meter.solution()
        options = {"threads": self.threads or cores(), "seed": seed, **self.switches}
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
