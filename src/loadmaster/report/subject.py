"""`Subject`: a plan that a report is about, with its timeline, its verdict and where it comes from."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from loadmaster.errors import BadPlan, LoadmasterError, nearest
from loadmaster.files import open_regular
from loadmaster.graph import GraphOptimization
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.order.problem import PeakOrder
from loadmaster.plan import Plan, load_plan
from loadmaster.plan.check import Violation, check
from loadmaster.program.program import Program
from loadmaster.runs.compare import run_of
from loadmaster.runs.folder import RunFolder, is_run, kept_before
from loadmaster.runs.history import History, compute_gap, find_handed_over
from loadmaster.runs.log import BadRun
from loadmaster.search.problem import Problem
from loadmaster.search.registry import load_problem
from loadmaster.search.request import BadRequest
from loadmaster.simulate import Timeline, simulate

_MOST_BYTES = 2**28


@dataclass
class Subject:
    """One plan. `value` is the problem's, in its `unit`; without a problem, the simulated time."""

    name: str
    program: Program
    machine: Machine
    plan: Plan
    problem: Problem | None = None
    run: RunFolder | None = None
    history: History | None = None
    value: int | None = None
    bound: int | None = None
    bound_method: str = ""
    note: str = ""
    """What a reader has to know beside the figures."""

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.program, self.machine, self.plan)

    @cached_property
    def violations(self) -> list[Violation]:
        """What the checker says, and the problem's own rules where there is a problem."""
        if self.problem is not None:
            return self.problem.violations(self.plan)
        return check(self.program, self.machine, self.plan, self.timeline)

    @property
    def unit(self) -> str:
        return "ps" if self.problem is None else self.problem.unit

    @property
    def kind(self) -> str:
        return "plan" if self.problem is None else self.problem.kind

    @property
    def gap(self) -> float | None:
        return compute_gap(self.value, self.bound)


def own_report(paths: list[Path]) -> Path | None:
    """Of one run alone: its own report, which is made anew each time."""
    return paths[0] / "report.html" if len(paths) == 1 and is_run(paths[0]) else None


def is_plan(path: Path) -> bool:
    """Whether a path is a plan's file: JSON that says so."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    with open_regular(path, _MOST_BYTES) as file:
        return b'"loadmaster_plan"' in file.read(4096)


def read_run(path: Path, history: History | None = None) -> Subject:
    """The best plan of a run. `history`: its log, where that has been read already."""
    run = RunFolder.open(path)
    problem, history = load_problem(path), history or History(run.read_log().lines)
    found = find_handed_over(run, history, problem)
    if found is None:
        raise BadRun(f"run '{path}' has no plan yet", object=str(path), remedy="give one that found a plan")
    known, beside = found
    plan = beside or run.load_plan(known.plan, problem)
    bound = history.bound or problem.bound()
    note = "" if problem.repeatable else "the value was measured; the pictures are simulated"
    own = known.origin == run.about["solver"].get("name")
    name = _short(run) if own else f"{known.origin}, beside {_short(run)}"
    return Subject(
        name,
        problem.program,
        problem.machine,
        plan,
        problem,
        run,
        history,
        known.value,
        bound.value,
        bound.method,
        note,
    )


def read_plan(path: Path, like: Subject | None = None) -> Subject:
    """A plan's file: in a run, or for the same program and machine as `like`."""
    home = run_of(path)
    if home is not None:
        problem = load_problem(home.path)
        plan = load_plan(path, problem.program, problem.machine)
        bound = History(home.read_log().lines).bound or problem.bound()
        subject = Subject(
            path.name,
            problem.program,
            problem.machine,
            plan,
            problem,
            home,
            bound=bound.value,
            bound_method=bound.method,
        )
    elif like is not None:
        plan = load_plan(path, like.program, like.machine)
        subject = Subject(
            path.name,
            like.program,
            like.machine,
            plan,
            like.problem,
            bound=like.bound,
            bound_method=like.bound_method,
        )
    else:
        raise BadPlan(
            f"plan '{path}' lies in no run, so its program is not known",
            object=str(path),
            remedy="loadmaster report MODEL PLAN --machine MACHINE",
        )
    subject.value = compute_value(subject)
    return subject


def compute_value(subject: Subject) -> int | None:
    """What a plan is worth to its problem; its time where there is none. Nothing is measured."""
    if subject.problem is None:
        return subject.timeline.total_ps
    if not subject.problem.repeatable:
        return None
    return subject.problem.value_of(subject.plan)


def check_same_subject(subjects: list[Subject]) -> None:
    """Raise unless all are about one program on one machine, in one unit."""
    first = subjects[0]
    for other in subjects[1:]:
        for what, ours, theirs in (
            ("program", first.program.hash, other.program.hash),
            ("machine", first.machine.hash, other.machine.hash),
            ("unit", first.unit, other.unit),
        ):
            if ours != theirs:
                raise LoadmasterError(
                    f"'{first.name}' and '{other.name}' differ in their {what}",
                    object=other.name,
                    remedy="one report is about one program and machine",
                )


def make_problem_key(subject: Subject) -> str:
    """Values are compared only where these are equal."""
    return json.dumps({} if subject.run is None else subject.run.about["keys"], sort_keys=True)


def _short(run: RunFolder) -> str:
    return f"{run.about['solver'].get('name')}, seed {run.about['seed']}"


_PREFERRED = (
    "one-arena",
    "compiler",
    "production",
    "all-resident",
    "layerwise",
    "msa",
    "base",
    "program-order",
)
"""Names of baselines: what would be used without us comes first. Runs say which one was meant for them."""


def find_before(subject: Subject, wanted: str | None = None) -> Subject | None:
    """What stood before, simulated on the same terms; None where there is nothing, or the same. `wanted`: the
    baseline that is meant, else the one that the run was held against."""
    try:
        found = _of_log(subject, wanted) or _of_problem(subject)
        if found is None or found.plan.hash == subject.plan.hash:
            return None
        found.timeline  # noqa: B018  one that can't run is none
    except BadRequest:
        raise
    except LoadmasterError:
        return None
    return found


def _of_log(subject: Subject, wanted: str | None) -> Subject | None:
    if subject.history is None or subject.run is None or subject.problem is None:
        return None
    lines = subject.history.of("baseline")
    names = [str(line["name"]) for line in lines]
    if wanted is not None and wanted not in names:
        raise BadRequest(
            f"run '{subject.run.name}' has no baseline '{wanted}'{nearest(wanted, names)}",
            object="--before",
            number=wanted,
            remedy=f"use {', '.join(names) or 'none'}",
        )
    first = wanted or kept_before(subject.run.about) or ""
    rank = {name: number for number, name in enumerate((first, *_PREFERRED))}
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
        other.value = compute_value(other)
    return other
