"""A local search over plans, and what must hold of every plan that it looks at.

* *judge*: the problem's own judge accepts a plan just where its `violations` are none.
* *value*: what it says a plan is worth is what native and reference simulator say.
* *bound*: no legal plan is worth less than what is claimed (see `cases`).
* *timeline*: `check` says the same with the simulator's timeline and without, where one device runs
  everything; a plan that the simulator refuses is refused by `check`, and one that `check` accepts runs
  and fits.
* *scope*: `violations` are those of `check`, and `outside`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from generate import Rng, chance
from law.cases import Case, Claim, has_exact
from law.moves import changed
from loadmaster.errors import BadPlan
from loadmaster.plan.check import Violation, check
from loadmaster.plan.plan import Plan
from loadmaster.simulate.simulator import Simulator, Timeline
from reference.simulate import simulate_reference

SAMPLE = 0.34
"""Of the plans that are refused, and of the slow comparisons."""


@dataclass(frozen=True)
class Finding:
    """A plan that is seen differently, or a claim that does not hold."""

    kind: str
    seed: int
    rule: str
    text: str
    plan: Plan = field(compare=False)


@dataclass
class Outcome:
    """What an instance showed. Values are None where no legal plan was met."""

    findings: list[Finding] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    first: int | None = None
    """What the first legal plan was worth,"""
    own: int | None = None
    """the best one that a search without a solver's help found,"""
    best: int | None = None
    """and the best of all."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def optimum(self) -> int | None:
        """The least value, where it is claimed that some plan has it."""
        return max((claim.value for claim in self.claims if claim.reached), default=None)


class Court:
    """Looks at plans of one problem."""

    def __init__(self, case: Case, problem: Any, seed: int, rng: Rng) -> None:
        self.case, self.problem, self.seed, self.rng = case, problem, seed, rng
        self.machine = case.machine(problem)
        self.simulator = Simulator(problem.program, self.machine)
        self.outcome = Outcome()
        self.best: Plan | None = None
        self.seen: set[str] = set()

    def finding(self, rule: str, text: str, plan: Plan) -> None:
        """The first of each rule is enough."""
        if rule not in self.seen:
            self.seen.add(rule)
            self.outcome.findings.append(Finding(self.case.kind, self.seed, rule, text, plan))

    def look(self, plan: Plan) -> int | None:
        """What a plan is worth; None: it is not legal."""
        self.outcome.counts["plans"] += 1
        try:
            return self._look(plan)
        except Exception as error:  # whatever it is: plans may hold anything
            self.finding("raises", f"{type(error).__name__}: {error}", plan)
            return None

    def _look(self, plan: Plan) -> int | None:
        problem = self.problem
        found: list[Violation] = problem.violations(plan)
        thorough = chance(self.rng, SAMPLE)
        if found and not thorough:
            return None
        if any(each.rule == "shape" for each in found):
            return None  # nothing else can be said of it
        outside = self.case.outside(problem, plan)
        timeline = None
        try:
            timeline = self.simulator.run(plan)
        except BadPlan as error:
            if not check(problem.program, self.machine, plan):
                self.finding("timeline", f"check accepts what the simulator refuses: {error}", plan)
        value = None
        if not found and not outside and timeline is not None:
            self.outcome.counts["legal"] += 1
            value = self.case.value(problem, plan, timeline)
            if self.outcome.first is None:
                self.outcome.first = value
            if self.outcome.best is None or value < self.outcome.best:
                self.outcome.best, self.best, thorough = value, plan, True
        if thorough:
            checked = check(problem.program, self.machine, plan)
            timed = checked
            if timeline is not None:
                timed = check(problem.program, self.machine, plan, timeline)
                self._timeline(plan, timeline, checked, timed)
            # Only a timeline tells who is in a memory together where several devices work.
            self._scope(plan, found, checked if self._alone(plan) else timed, outside)
            if not outside:
                self._judged(plan, found, value)
            if value is not None and timeline is not None:
                self._reference(plan, timeline)
        return value

    def _reference(self, plan: Plan, timeline: Timeline) -> None:
        slow = simulate_reference(self.problem.program, self.machine, plan)
        for name in ("total_ps", "memory_peak", "memory_top"):
            if not np.array_equal(getattr(slow, name), getattr(timeline, name)):
                self.finding(
                    "reference",
                    f"the reference says {name} {getattr(slow, name)} and the "
                    f"simulator {getattr(timeline, name)}",
                    plan,
                )

    def _judged(self, plan: Plan, found: list[Violation], value: int | None) -> None:
        """Of a plan inside; `value`: what it is worth, if it is legal."""
        if found and not self.case.whole:
            return  # its decision may stand for another plan, which is sound
        try:
            self._compared(plan, found, value)
        except BadPlan:
            self.outcome.counts["plans of no decision"] += not found

    def _compared(self, plan: Plan, found: list[Violation], value: int | None) -> None:
        own = self.case.judged(self.problem, plan)
        if own is not None and found:
            self.finding("judge", f"the problem says {own:,}, and it violates: {found[0]}", plan)
        if own is None and not found:
            self.finding("judge", "the problem says that it is not legal, and nothing is violated", plan)
        if own is not None and value is not None and own != value:
            self.finding("value", f"the problem says {own:,} and the simulator {value:,}", plan)
        if value is not None and not self.case.rows:
            self.decide(self.problem.decision(plan))  # may raise: keys do not express every cluster

    def _scope(
        self, plan: Plan, found: list[Violation], checked: list[Violation], outside: str | None
    ) -> None:
        """`violations` are those of `check`, or the plan is outside."""
        if found and not checked and not outside:
            self.finding("scope", f"inside, accepted by check, and yet: {found[0]}", plan)
        if not found and checked:
            self.finding("scope", f"the problem accepts what check refuses: {checked[0]}", plan)
        if not found and outside:
            self.finding("scope", f"the problem accepts a plan that is outside: {outside}", plan)
            self.outcome.counts["outside accepted"] += 1

    def _alone(self, plan: Plan) -> bool:
        """Whether one device runs everything in order."""
        return len(self.machine.devices) == 1 and plan.queue == "order"

    def _timeline(
        self, plan: Plan, timeline: Timeline, checked: list[Violation], timed: list[Violation]
    ) -> None:
        """`timed`: what is found with the timeline."""
        if self._alone(plan) and not checked and timed:
            self.finding("timeline", f"check refuses it with its timeline alone: {timed[0]}", plan)
        # Without a timeline, a copy counts from its issue to its need: then check may refuse more.
        if self._alone(plan) and checked and not timed and not plan.copy_rows:
            self.finding("timeline", f"check refuses it without its timeline alone: {checked[0]}", plan)
        if self._alone(plan) and not checked and not timeline.fits:
            self.finding("timeline", f"check accepts a plan that is {timeline.memory_over} over", plan)
        if not timed and not timeline.fits:
            self.finding("timeline", f"check accepts a timeline that is {timeline.memory_over} over", plan)

    def decide(self, decision: Any) -> Plan | None:
        """The plan of a decision, if the problem calls it legal: then it is, and worth what it says."""
        problem = self.problem
        value = self.case.decided(problem, decision)
        if value is None:
            return None
        plan: Plan = problem.plan(decision)
        found = problem.violations(plan)
        if found:
            self.finding("decision", f"a decision is worth {value:,} and its plan violates: {found[0]}", plan)
            return None
        real = self.case.value(problem, plan, self.simulator.run(plan))
        if real != value:
            self.finding("decision", f"a decision is worth {value:,} and its plan {real:,}", plan)
        return plan

    def climb(self, start: Plan, moves: int) -> None:
        """Accept what is legal and no worse; now and then a little worse."""
        ground, rng = self.case.ground(self.problem), self.rng
        plan, value = start, self.look(start)
        for _ in range(moves):
            weights = self.case.beyond if chance(rng, 0.1) else self.case.moves
            tried = changed(ground, plan, weights, rng)
            worth = self.look(tried)
            if worth is None:
                continue
            slack = max(1, worth // 20) if chance(rng, 0.1) else 0
            if value is None or worth <= value + slack:
                plan, value = tried, worth


def search(case: Case, problem: Any, seed: int, rng: Rng, moves: int) -> Outcome:
    """Half of the moves from plans that no solver made, half from plans of decisions."""
    court = Court(case, problem, seed, rng)
    starts = list(case.starts(problem, rng))
    try:
        made = [court.decide(decision) for decision in case.decisions(problem, rng)]
    except Exception as error:
        court.finding("raises", f"a decision: {type(error).__name__}: {error}", Plan())
        made = []
    known = [plan for plan in made if plan is not None]
    first = next((plan for plan in [*starts, *known[:1]] if court.look(plan) is not None), Plan())
    court.climb(first, moves // 2)
    court.outcome.own = court.outcome.best
    for start in [*starts[1:], *known[:2]]:
        court.climb(start, moves // 8)
    if court.best is not None:
        court.climb(court.best, moves // 8)
    try:
        court.outcome.claims = list(case.claims(problem, rng))
    except Exception as error:
        court.finding("raises", f"a claim: {type(error).__name__}: {error}", Plan())
    if case.asks_exact and not has_exact():
        court.outcome.counts["not compared with OR-tools"] += 1
    for claim in beaten(court.outcome, court.outcome.claims):
        text = f"a legal plan is worth {court.outcome.best:,}, and {claim.who} says {claim.value:,}"
        court.finding(f"bound ({claim.who})", text, court.best or Plan())
    return court.outcome


def beaten(outcome: Outcome, claims: list[Claim]) -> list[Claim]:
    """The claims that the best plan proves wrong."""
    return [claim for claim in claims if outcome.best is not None and outcome.best < claim.value]


def run_instance(case: Case, seed: int, moves: int) -> Outcome | None:
    """One instance by its seed; None: nothing was posed."""
    rng = np.random.default_rng([seed, *case.kind.encode()])
    try:
        for _ in range(50):
            problem = case.make(rng)
            if problem is not None:
                return search(case, problem, seed, rng, moves)
    except Exception as error:
        error.add_note(f"{case.kind} seed {seed}")
        raise
    return None


def told(finding: Finding) -> str:
    """A finding in words, with the plan as one would write it down."""
    return (
        f"{finding.kind} seed {finding.seed} [{finding.rule}] {finding.text}\n    {plan_rows(finding.plan)}"
    )


def plan_rows(plan: Plan) -> str:
    """The call that makes it."""
    parts = [f"residencies={[tuple(row) for row in plan.residency_rows]}"] if plan.residency_rows else []
    parts += [f"copies={[tuple(row) for row in plan.copy_rows]}"] if plan.copy_rows else []
    for name in ("device", "order", "fusion", "priority", "transfers"):
        column = getattr(plan, name)
        parts += [f"{name}={column.tolist()}"] if column is not None else []
    parts += [f"queue={plan.queue!r}"] if plan.queue != "order" else []
    return f"Plan.of({', '.join(parts)})"
