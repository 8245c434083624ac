"""What any solver must do, as one function: `conforms(make, problem)`.

It spies on the problem rather than on the meter, so that a solver can't hide what it does.
"""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from clocks import Ticking
from loadmaster.clock import running
from loadmaster.search.problem import BatchProblem, Bound, Decision, Problem, Scores
from loadmaster.search.solver import Budget, Meter, Observer, Solution, Solver, State, Status

LOOK, DECISION = 0.01, 0.001
"""Seconds that pass, on the clock of these tests, with a look at it and with a decision."""


@dataclass
class Moment:
    """A checkpoint, and the meter at that time."""

    evaluations: int
    best: Decision | None
    bound: Bound
    file: io.BytesIO
    """The state, as it is stored."""

    @property
    def state(self) -> State:
        self.file.seek(0)
        with np.load(self.file, allow_pickle=False) as stored:
            return {name.removeprefix("array."): stored[name] for name in stored.files}


class Watcher(Observer):
    """Remembers all that happens."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.improvements: list[tuple[int, Decision]] = []
        self.moments: list[Moment] = []
        self.stop_after = stop_after
        self.stopped_at = 0.0

    def improved(self, meter: Meter) -> None:
        assert meter.best is not None and meter.best_value is not None
        self.improvements.append((meter.best_value, meter.best.copy()))

    def checkpoint(self, meter: Meter, state: State) -> None:
        best = None if meter.best is None else meter.best.copy()
        self.moments.append(Moment(meter.evaluations, best, meter.bound, _stored(state)))


def _stored(state: State) -> io.BytesIO:
    """As an npz without pickle: anything else can't be stored."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"array.{name}": value for name, value in state.items()}
    np.savez(file, allow_pickle=False, **arrays)
    return file


@dataclass
class Outcome:
    solution: Solution
    meter: Meter
    watcher: Watcher
    asked: int
    """Decisions that the problem was asked to evaluate or to score."""
    seconds: float
    """On the clock of these tests, from the start or from the request to stop."""


@running()
def watched(
    make: Callable[[], Solver],
    problem: Problem,
    budget: Budget,
    seed: int = 0,
    moment: Moment | None = None,
    stop_after: int | None = None,
    look: float = 0.0,
) -> Outcome:
    """One run of a fresh solver on a copy of the problem that counts. Time passes with looks at the
    clock and with decisions if a `look` takes any; engines with a clock of their own keep to it."""
    spy, watcher, clock = copy.copy(problem), Watcher(), Ticking(look)
    asked = 0

    def note(count: int) -> None:
        nonlocal asked
        asked += count
        clock.advance(count * DECISION if look else 0.0)
        if stop_after is not None and asked >= stop_after and not watcher.stop:
            watcher.stop, watcher.stopped_at = True, clock.time

    # Both ask the problem itself, not the spy: one that scores by `evaluate` is counted once.
    def evaluate(decision: Decision) -> int | None:
        note(1)
        return problem.evaluate(decision)

    def score(decisions: Decision, first: int = 0) -> Scores:
        note(len(decisions))
        return cast(BatchProblem, problem).score(decisions, first)

    meter = Meter(spy, budget, watcher, clock=clock, evaluations=0 if moment is None else moment.evaluations)
    if moment is not None:
        meter.bound = moment.bound
        if moment.best is not None:
            meter.restore(moment.best)
    object.__setattr__(spy, "evaluate", evaluate)
    if hasattr(problem, "score"):
        object.__setattr__(spy, "score", score)
    solution = make().run(meter, seed, None if moment is None else moment.state)
    return Outcome(solution, meter, watcher, asked, clock.time - watcher.stopped_at)


def conforms(
    make: Callable[[], Solver],
    problem: Problem,
    *,
    evaluations: tuple[int, ...] = (1, 2, 7, 60),
    seconds: float = 0.3,
    seeds: tuple[int, ...] = (0, 1),
) -> None:
    """Raise AssertionError with the rule that a solver breaks."""
    for seed in seeds:
        for limit in sorted(evaluations):
            outcome = watched(make, problem, Budget(evaluations=limit), seed)
            assert outcome.asked <= limit, f"budget: {outcome.asked} evaluations of {limit}"
            _sound(problem, outcome)
            if make().deterministic:
                again = watched(make, problem, Budget(evaluations=limit), seed)
                _same(outcome, again, "seed: the same seed gave another answer")
        _resumes(make, problem, limit, outcome, seed)
    timed = watched(make, problem, Budget(seconds=seconds), look=LOOK)
    assert timed.seconds <= seconds + 1, f"budget: {timed.seconds:.2f} s of {seconds}"
    _sound(problem, timed)
    stopped = watched(make, problem, Budget(seconds=10.0), stop_after=1, look=LOOK)
    if stopped.watcher.stop:  # it may have ended before
        assert stopped.seconds <= 1, f"stop: it went on for {stopped.seconds:.2f} s"
    _sound(problem, stopped)


def _sound(problem: Problem, outcome: Outcome) -> None:
    solution, meter = outcome.solution, outcome.meter
    assert outcome.asked <= meter.evaluations, "score: it asked the problem, not the meter"
    assert solution.evaluations == meter.evaluations, "count: evaluations are not the meter's"
    values = [value for value, _ in outcome.watcher.improvements]
    assert all(b < a for a, b in itertools.pairwise(values)), f"monotone: {values}"
    for value, decision in outcome.watcher.improvements:
        _checked(problem, decision, value)
    assert solution.bound.value >= problem.bound().value, "bound: below the problem's own"
    if solution.decision is None:
        assert solution.value is None, "value: without a decision"
        assert solution.status in (Status.INFEASIBLE, Status.UNKNOWN), f"status: {solution.status}"
        return
    assert solution.value is not None
    _checked(problem, solution.decision, solution.value)
    if meter.choice is None:
        assert values and solution.value == values[-1], "value: not the best that was reported"
    else:
        assert values and solution.value == meter.choice[1] >= values[-1], "value: not its choice"
    optimal = solution.value <= solution.bound.value
    assert solution.value >= solution.bound.value, "bound: above what was found"
    assert solution.status == (Status.OPTIMAL if optimal else Status.FEASIBLE), "status"


def _checked(problem: Problem, decision: Decision, value: int) -> None:
    now = problem.evaluate(decision)
    violations = problem.violations(problem.plan(decision))
    assert not violations, f"checker: {violations[0]}"
    assert now == value, f"value: claimed {value}, the problem says {now}"


def _same(a: Outcome, b: Outcome, message: str) -> None:
    assert a.solution.value == b.solution.value, message
    assert a.solution.evaluations == b.solution.evaluations, message
    assert (a.solution.decision is None) == (b.solution.decision is None), message
    if a.solution.decision is not None:
        assert np.array_equal(a.solution.decision, b.solution.decision), message


def _resumes(make: Callable[[], Solver], problem: Problem, limit: int, whole: Outcome, seed: int) -> None:
    """From any checkpoint of a whole run it goes on as if that had never stopped."""
    while not whole.watcher.moments and limit <= whole.meter.evaluations < 1000 and not whole.meter.optimal:
        limit *= 4  # it may make checkpoints rarely; if it ended by itself, more changes nothing
        whole = watched(make, problem, Budget(evaluations=limit), seed)
    moments = whole.watcher.moments
    for moment in {id(m): m for m in (*moments[:1], *moments[len(moments) // 2 :][:1])}.values():
        rest = watched(make, problem, Budget(evaluations=limit), seed, moment)
        _same(whole, rest, "resume: from a checkpoint it came to another answer")
