"""`Auto`: the best plan for several devices that can be had; and which solvers decide which task."""

from __future__ import annotations

import contextlib

import numpy as np

from loadmaster.errors import MissingPackage
from loadmaster.graph import GraphOptimization
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State

PLACERS = ("single", "expert", "round-robin", "metis", "m-topo", "m-etf", "m-sct", "heft")
FUSERS = ("fusion-none", "fusion-fixed", "cost-model")
SCHEDULERS = ("fifo", "critical-path")
CONSTRUCTIVE = (*PLACERS, *FUSERS, *SCHEDULERS, "classical")
"""They make a plan, or a few, instead of trying many; nothing in them is left to chance."""
SEARCHES = ("random-best", "anneal", "brkga")
BY_CLOCK = ("auto", "cp-sat")
_KNOWN = {"placement": ("heft", "m-etf"), "fusion": ("cost-model",), "schedule": SCHEDULERS}
"""What Auto tries before the pipelines of them all."""
_SHARE = 0.1
"""Of the time, at most so much for them."""


class Auto(Solver):
    """Some constructive methods by themselves; then `go+anneal`, which begins with the pipelines of
    them all and with GO's plans. Never worse than any of them, with or without a trained policy."""

    name, problem_kind = "auto", "graph"
    summary = "every constructive method and GO's plans, then chains of annealing: never worse than any"
    deterministic = scheduled = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        if state is None:  # a state is that of the search: go on with it
            self._construct(meter, problem, seed)
        if not meter.exhausted:
            return make_solver("graph", "go+anneal").run(meter, seed, state)
        return meter.solution()

    def _construct(self, meter: Meter, problem: GraphOptimization, seed: int) -> None:
        whole = meter.budget
        for vector in (problem.vector(), problem.vector(schedule=np.zeros(problem.nodes))):
            if not meter.exhausted:
                meter.evaluate(vector)
        for name in (name for task in problem.tasks for name in _KNOWN[task]):
            if whole.seconds is not None:
                meter.budget = Budget(whole.evaluations, _SHARE * whole.seconds)
            with contextlib.suppress(MissingPackage):
                if not meter.exhausted:
                    make_solver("graph", name).run(meter, seed, None)
        meter.budget = whole
        meter.progress()  # the search prepares for a while: the best of these is told before
