"""`auto`: the best plan for several devices that can be had; and which solvers decide which task."""

from __future__ import annotations

import numpy as np

from loadmaster.graph import GraphOptimization
from loadmaster.graph.placers import Constructive, Vectors
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem

PLACERS = ("single", "expert", "round-robin", "metis", "m-topo", "m-etf", "m-sct", "heft")
FUSERS = ("fusion-none", "fusion-fixed", "cost-model")
SCHEDULERS = ("fifo", "critical-path")
CONSTRUCTIVE = (*PLACERS, *FUSERS, *SCHEDULERS, "classical")
"""They make a plan, or a few, instead of trying many; nothing in them is random."""
SEARCHES = ("random-best", "anneal", "brkga")
BY_CLOCK = ("auto", "cp-sat")
_KNOWN = {"placement": ("heft", "m-etf"), "fusion": ("cost-model",), "schedule": SCHEDULERS}
"""What is tried before the pipelines of them all."""
_SHARE = 0.1
"""Of the time, at most so much for them."""


def make_auto() -> Auto:
    """Some constructive methods by themselves; then `go+anneal`, which begins with the pipelines of
    them all and with GO's plans. Never worse than any of them, with or without a trained policy."""
    summary = "every constructive method and GO's plans, then chains of annealing: never worse than any"
    return Auto("graph", _schedule, summary=summary, scheduled=True)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, GraphOptimization)
    known = [name for task in problem.tasks for name in _KNOWN[task]]
    return [
        Stage(_BasePlan()),
        *(Stage(name, seconds_share=_SHARE, optional=True) for name in known),
        Stage("go+anneal", resumes=True),
    ]


class _BasePlan(Constructive):
    name = "base"
    summary = "the base plan, as it is and with its order left to the rule for ties"

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        yield problem.vector()
        yield problem.vector(schedule=np.zeros(problem.nodes))
