"""`auto`: the best game that can be had."""

from __future__ import annotations

from loadmaster.malloc_game.heuristics import has_production
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem

WHITE_BOX = frozenset(
    {"all-slow", "greedy-order", "greedy-density", "msa", "production", "cp-sat", "exhaustive"}
)
"""They make one plan, or prove something, instead of trying many."""
BY_CLOCK = ("auto", "cp-sat", "exhaustive")


def make_auto() -> Auto:
    """Greedy and, where there is one, the production placement; then the order of memory space
    assignment is evolved until the budget is spent."""
    summary = "known heuristics, then the order of memory space assignment is evolved"
    return Auto("malloc-game", _schedule, summary=summary)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, MallocGame)
    known = ["all-slow", "greedy-order", "greedy-density"]
    if has_production(problem):
        known.append("production")
    return [*(Stage(name) for name in known), Stage("msa-order", resumes=True)]
