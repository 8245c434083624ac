"""`Auto`: the best plan for several devices that can be had; and which solvers decide which task."""

from __future__ import annotations

import contextlib
import time

import numpy as np

from loadmaster.errors import MissingPackage
from loadmaster.problems.graph import GraphOptimization
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, Meter, Solution, State

PLACERS = ("single", "expert", "round-robin", "metis", "m-topo", "m-etf", "m-sct", "heft")
FUSERS = ("fusion-none", "fusion-fixed", "cost-model")
SCHEDULERS = ("fifo", "critical-path")
CONSTRUCTIVE = (*PLACERS, *FUSERS, *SCHEDULERS, "classical")
"""They make a plan, or a few, instead of trying many; nothing in them is left to chance."""
SEARCHES = ("random-best", "anneal", "brkga")
LEARNED = ("hdp",)
BY_CLOCK = ("auto", "cp-sat")
_KNOWN = {"placement": ("heft", "m-etf"), "fusion": ("cost-model",), "schedule": SCHEDULERS}
"""What Auto tries beside the pipelines of them all."""
_SHARE = 0.4
"""Of the time, at most so much for known methods before the search begins."""
_TIMES_FASTER = 2.0
"""A change is evaluated so much faster than a whole plan, at least."""


class Auto:
    """The base plan, the pipelines of every constructive method, some of them alone; then annealing
    from the best until the budget is spent. Never worse than any of them."""

    name, problem_kind = "auto", "graph"
    summary = "every constructive method, then annealing from the best: never worse than any"
    deterministic = False  # a time limit decides how far it gets

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        if state is None:  # a state is annealing's: go on with it
            self._construct(meter, problem, seed)
        if not meter.exhausted:
            options = {"length": _length(meter, problem)}
            make_solver("graph", "anneal", options).run(meter, seed, state)
        return meter.solution(white_box=True)

    def _construct(self, meter: Meter, problem: GraphOptimization, seed: int) -> None:
        whole = meter.budget
        if whole.seconds is not None:
            meter.budget = Budget(whole.evaluations, _SHARE * whole.seconds)
        for vector in (problem.vector(), problem.vector(schedule=np.zeros(problem.nodes))):
            if not meter.exhausted:
                meter.evaluate(vector)
        alone = [name for task in problem.tasks for name in _KNOWN[task]]
        for name in ("classical", *alone):
            with contextlib.suppress(MissingPackage):
                if not meter.exhausted:
                    make_solver("graph", name).run(meter, seed, None)
        meter.budget = whole


def _length(meter: Meter, problem: GraphOptimization) -> int | None:
    """Evaluations by which annealing is to be cold: what both limits leave room for."""
    most, seconds = meter.budget.evaluations, meter.seconds_left
    if seconds is None or meter.best is None:
        return most
    started = time.perf_counter()
    problem.measure(meter.best[None], 1)
    whole = max(1e-6, time.perf_counter() - started)
    reachable = meter.evaluations + int(_TIMES_FASTER * seconds / whole)
    return reachable if most is None else min(most, reachable)
