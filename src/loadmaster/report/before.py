"""The plan that a run is held against: the baseline of its log, or the problem's own."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.errors import LoadmasterError
from loadmaster.plan import Plan
from loadmaster.problems.graph import GraphOptimization
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.problems.mapping import Mapping
from loadmaster.problems.order.problem import PeakOrder
from loadmaster.report.subject import Subject, value_of

_PREFERRED = ("compiler", "production", "msa", "base", "program-order", "first-fit", "all-slow")
"""Names of baselines: what would be used without us comes first."""


def before(subject: Subject) -> Subject | None:
    """What stood before, simulated on the same terms; None where there is nothing, or the same."""
    try:
        found = _of_log(subject) or _of_problem(subject)
        if found is None or found.plan.hash == subject.plan.hash:
            return None
        found.timeline  # noqa: B018  one that can't run is none
    except LoadmasterError:
        return None
    return found


def _of_log(subject: Subject) -> Subject | None:
    if subject.history is None or subject.run is None or subject.problem is None:
        return None
    lines = subject.history.of("baseline")
    rank = {name: number for number, name in enumerate(_PREFERRED)}
    for line in sorted(lines, key=lambda line: rank.get(line["name"], len(rank))):
        plan = subject.run.load_plan(line["plan"], subject.problem)
        return _like(subject, str(line["name"]), plan, int(line["value"]))
    return None


def _of_problem(subject: Subject) -> Subject | None:
    problem = subject.problem
    if problem is None:
        return _like(subject, "nothing decided", Plan())
    if isinstance(problem, Mapping):
        return _like(subject, "compiler", problem.plan(problem.compiler))
    if isinstance(problem, GraphOptimization):
        return _like(subject, "base", problem.plan(problem.vector()))
    if isinstance(problem, MallocGame):
        return _like(subject, "all-slow", Plan())
    if isinstance(problem, PeakOrder):
        return _like(subject, "program-order", Plan())
    return None


def _like(subject: Subject, name: str, plan: Plan, value: int | None = None) -> Subject:
    other = replace(subject, name=name, plan=plan, run=None, history=None, note="", value=value)
    if value is None:
        other.value = value_of(other)
    return other
