"""`ProblemKind`: one kind of problem as the planner sees it.

How it is made from a request and which parts of a request it understands; what there is to say of it before it is
solved and of its plan; and what stands beside a solver's plan: known methods' plans, a bound, the optimum, the best
plans measured again. Each problem's package has one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError, nearest
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.search.champion import Champion
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.registry import make_labelled
from loadmaster.search.request import BadRequest, PlanRequest
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State, solve
from loadmaster.simulate import Timeline
from loadmaster.units import show_time

P = TypeVar("P", bound=Problem)
Say = Callable[[str], None]
"""Hears what takes long."""


@dataclass(frozen=True)
class Row:
    """One plan, or the bound, beside the others. Values are in the result's unit."""

    role: str
    """'baseline', 'result', 'reference' (the optimum, or the best that is known) or 'bound'"""
    name: str
    value: int | None
    status: str = ""
    evaluations: int = 0
    seconds: float = 0.0
    """That it took to find."""
    white_box: bool = True
    """Whether the method reads the program; a black box only sees values."""
    gap: float | None = None
    """value / bound - 1"""
    speedup: float | None = None
    """Value of the plan that others are compared with / value."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of it, by name."""
    decision: Decision | None = field(default=None, compare=False, repr=False)
    """Of an optimum that was found just now: its plan is a candidate like any other."""


@dataclass(frozen=True, eq=False)
class Known:
    """A known method's answer. It costs no evaluations of the solver's budget."""

    name: str
    decision: Decision | None
    """None: the method found nothing."""
    value: int | None
    status: str = ""
    evaluations: int = 0
    seconds: float = 0.0
    legal: bool = True
    """Else it only says what it would need."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a search has come to."""

    solution: Solution
    plan: Plan | None
    """The one that is handed over."""
    value: int | None
    """The plan's."""
    known: Sequence[Known]
    before: Known | None = None
    """What the user has today."""
    calibrate: str = ""
    """The command that measures the model's ops."""


@dataclass
class Facts:
    """What there is to say of a plan: numbers by name, how full memories get or how busy devices are, sentences."""

    numbers: dict[str, Any] = field(default_factory=dict)
    places: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Headline:
    """What a search found, measured again, and what is taken of it."""

    champion: Champion
    decision: Decision | None
    value: int
    note: str
    baseline: str | None = None
    """The known method that was measured in turns with it."""


class ProblemKind(ABC, Generic[P]):
    """See the module. Methods that are not abstract are for kinds that have more to say."""

    name: ClassVar[str]
    accepts: ClassVar[frozenset[str]]
    """The parts of a request (`PlanRequest.given`) that it understands; others are refused."""
    by_clock: ClassVar[Collection[str]]
    """Solvers that get a time limit if the user gives none."""
    white_box: ClassVar[Collection[str]] = ()
    """Solvers that read the program."""
    grey_box: ClassVar[Collection[str]] = ()
    """Solvers that read what fits where, or the machine's description as a hint, and times from evaluations."""
    settles: ClassVar[tuple[str, ...]] = ()
    """Roles whose status is 'optimal' at the bound, whatever the method says of itself."""
    shows_itself: ClassVar[bool] = False
    """Whether a baseline has a row too that is the solver itself."""
    before: ClassVar[tuple[str, ...]] = ()
    """Known methods that users have without us, the likeliest first: what plans are held against is the first of
    them that has a legal plan."""
    space: ClassVar[str]
    """The plans that bound and 'optimal' are about."""
    left_out: ClassVar[str]
    """What no such plan does, though another might gain by it."""
    bound_row: ClassVar[str] = "more"
    """When the bound has a row: 'always', if something is 'proven', or if that is 'more' than other rows say."""

    @abstractmethod
    def make(self, request: PlanRequest) -> P:
        """The problem of a request that has nothing that is not understood."""

    @abstractmethod
    def describe(self, problem: P, source: str) -> str:
        """What will be decided, in one line; `source`: the model as the user named it."""

    @abstractmethod
    def known(self, problem: P, source: str, seconds: float = math.inf) -> list[Known]:
        """Known methods' plans. Once so many seconds are over, those that are left are left out."""

    @abstractmethod
    def facts(self, problem: P, found: Found) -> Facts:
        """What there is to say of a plan."""

    def default_search(self, problem: P) -> tuple[str, int | None]:
        """The solver, and how many evaluations (None: as ever), if the user names no solver."""
        return "auto", None

    def check_solver(self, problem: P, solver: Solver) -> None:
        """Refuse a solver that has no answer here, before anything is written."""

    def not_decided(self, problem: P) -> str | None:
        """What this machine could do and the problem does not ask for, in a sentence."""
        return None

    def bound(self, problem: P, seconds: float = math.inf) -> Bound:
        """The best bound that is quick to have, and takes about so many seconds at most."""
        return problem.bound()

    def machine(self, problem: P) -> Machine:
        """The machine that plans are for."""
        return problem.machine

    def unit(self, problem: P) -> str:
        """Of the values of rows: 'ps' or 'bytes'."""
        return problem.unit

    def row_in_unit(self, problem: P, row: Row, decision: Decision | None) -> Row:
        """A row in that unit."""
        return row

    def bound_in_unit(self, problem: P, bound: Bound) -> Bound:
        return bound

    def row_figures(self, problem: P, value: int | None) -> dict[str, Any]:
        """More figures of a row, from its value."""
        return {}

    def measure_again(self, problem: P, solver: str, seed: int, say: Say) -> Headline | None:
        """The best plans again, where values are noisy: the best of many is optimistic."""
        return None

    def find_optimum(
        self, problem: P, solver: str, solution: Solution, seconds: float, say: Say
    ) -> Row | None:
        """The optimum, or the best that is known; it may raise the solution's bound."""
        return None

    def explain(self, problem: P, solution: Solution, seconds: float, seed: int) -> LoadmasterError | None:
        """Why there is no plan, where more is known than that none was found."""
        return None


def find_before(known: Sequence[Known], wanted: str | None, preferred: Sequence[str]) -> Known | None:
    """What a plan is held against: the method that the user names, else the first of those preferred that has a
    plan. One that only says what it would need still is what the user has."""
    found = {each.name: each for each in known if each.value is not None}
    if wanted is None:
        legal = [name for name in preferred if name in found and found[name].legal]
        name = next(iter([*legal, *(name for name in preferred if name in found)]), None)
        return None if name is None else found[name]
    if wanted not in found:
        raise BadRequest(
            f"there is no plan of '{wanted}' to hold others against{nearest(wanted, list(found))}",
            object="--before",
            number=wanted,
            remedy=f"use {', '.join(found) or 'none'}",
        )
    return found[wanted]


def solve_known(problem: Problem, names: Sequence[str], seconds: float = math.inf) -> list[Known]:
    """What each method finds, and what it says of its own answer; none begins after so many seconds but the first."""
    found, until = dict[str, Solution](), now() + seconds
    for name in names:
        if not found or now() < until:
            found[name] = solve(make_labelled(problem.kind, name), problem, Budget())
    return [
        Known(name, each.decision, each.value, str(each.status), each.evaluations, each.seconds)
        for name, each in found.items()
    ]


def known_values(problem: Problem, names: Sequence[str], seconds: float = math.inf) -> list[Known]:
    """Those that find something, as values to compare with alone."""
    found = solve_known(problem, names, seconds)
    return [replace(each, status="", evaluations=0) for each in found if each.decision is not None]


def traffic_numbers(machine: Machine, plan: Plan, timeline: Timeline, fast: int) -> dict[str, Any]:
    """What a plan moves, by name; `fast`: the memory that it moves tensors into."""
    return {
        "residencies": 0 if plan.residencies is None else len(plan.residencies),
        "copies": 0 if plan.copies is None else len(plan.copies),
        "stall_picoseconds": int(timeline.op_stall.sum()),
        "fast_peak_bytes": int(timeline.memory_peak[fast]),
        "fast_capacity_bytes": machine.memories[fast].capacity,
    }


def headline_text(champion: Champion, measured: bool, over: str) -> str:
    """The headline of noisy values, with its interval and what the search had thought of it."""
    winner, speedup = champion.winner, champion.speedup
    first = "–" if winner.first_ps is None else show_time(winner.first_ps)
    low, high = show_time(round(winner.time_ps.low)), show_time(round(winner.time_ps.high))
    simulated = f", simulated {show_time(champion.simulated_ps)}" if measured else ""
    return (
        f"measured again {len(winner.samples_ps)} times: median {show_time(round(winner.time_ps.middle))} "
        f"({low} to {high}), {speedup.middle:.3f} × over {over} ({speedup.low:.3f} to "
        f"{speedup.high:.3f}); the search had measured {first}{simulated}"
    )


class Bounded(Solver):
    """A solver that knows a bound from the start, so that the gap is known while it works."""

    def __init__(self, solver: Solver, bound: Bound) -> None:
        self._solver, self._bound = solver, bound
        self.name, self.problem_kind = solver.name, solver.problem_kind
        self.summary, self.deterministic = solver.summary, solver.deterministic
        self.options, self.scheduled = solver.options, solver.scheduled

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        meter.raise_bound(self._bound.value, self._bound.method)
        return self._solver.run(meter, seed, state)
