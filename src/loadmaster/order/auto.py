"""`auto`: the order with the least peak that can be had, with a proof where one can be had in time."""

from __future__ import annotations

from loadmaster.order.problem import PeakOrder
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem

BY_CLOCK = ("auto", "peak-cut", "peak-dp", "peak-beam")
SEARCHABLE = 3_000
"""Up to so many ops the complete search has its turn."""


def make_auto() -> Auto:
    """The program's order first, so that nothing is ever worse; then cuts, then the complete search
    where the program is small, and more cuts with what is left of the budget."""
    summary = "minimum cuts, then complete search: never worse than the program's own order"
    return Auto("order", _schedule, summary=summary)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, PeakOrder)
    return [
        Stage("program-order", required=True),
        Stage("peak-cut", {"rounds": 24}),
        Stage("peak-dp", {"sets": 100_000}, lambda _: problem.nodes <= SEARCHABLE, seed_offset=1),
        Stage("peak-cut", {"rounds": 200}, seed_offset=2),
    ]
