"""`auto`: all rules, then annealing, then a choice among the best: the plan that bears the most."""

from __future__ import annotations

from loadmaster.offload.steady import ENOUGH, SHARE, ChooseSteady
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem

RULES = ("all-resident", "prefetch", "layerwise", "belady", "static", "stream", "msa")
"""Tried first, quickest first; annealing begins with those of `spread` as well."""
WHITE_BOX = frozenset({*RULES, "spread"})


def make_auto() -> Auto:
    """Never worse than the best rule, but for the price of a steadier plan (`steady.PRICE`)."""
    summary = "all rules, then annealing, then the steadiest of the best plans"
    return Auto("offload", _schedule, summary=summary, scheduled=True)


def _schedule(problem: Problem) -> list[Stage]:
    if not problem.repeatable:  # nothing is left for a choice: what was measured is compared elsewhere
        return [*(Stage(name, optional=True) for name in RULES), Stage("anneal", resumes=True)]
    share = 1 - SHARE
    rules = [
        Stage(name, seconds_share=share, evaluations_share=share, enough=ENOUGH, optional=True)
        for name in RULES
    ]
    search = Stage("anneal", seconds_share=share, evaluations_share=share, enough=ENOUGH, resumes=True)
    return [*rules, search, Stage(ChooseSteady(), required=True)]
