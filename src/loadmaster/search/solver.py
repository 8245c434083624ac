"""`Solver`: `solve(problem, budget, seed, observer) -> Solution`, any-time and within its budget.

A solver is handed a `Meter`: it asks it to evaluate decisions, and the meter counts, keeps the
best, reports every improvement to the observer, and says when the budget is spent. So no solver
counts, scores or compares for itself.
"""

from __future__ import annotations

import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.json_text import read_json
from loadmaster.plan.plan import Plan
from loadmaster.search.problem import BatchProblem, Bound, Decision, Note, Problem, Scores

State = Mapping[str, npt.NDArray[Any]]
"""What a solver needs to go on later: arrays by name (generator state included)."""
Scoring = Callable[[Decision, int], Scores]
"""Like `BatchProblem.score`."""


class Status(enum.StrEnum):
    """What is known when a solver stops. A time-out is never called infeasible."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Budget:
    """At most so many evaluations and so many seconds; None: no limit."""

    evaluations: int | None = None
    seconds: float | None = None

    def without(self, share: float) -> Budget:
        """What is left if a share of it is kept back."""
        return Budget(
            None if self.evaluations is None else self.evaluations - int(self.evaluations * share),
            None if self.seconds is None else self.seconds * (1 - share),
        )


class Observer:
    """Is called as a search goes on; override what you need. `stop` may be set from anywhere."""

    def __init__(self) -> None:
        self.stop = False

    def improved(self, meter: Meter) -> None:
        """`meter.best_value` and `meter.best` are new."""

    def chose(self, meter: Meter) -> None:
        """`meter.choice` is what the solver ends with."""

    def bounded(self, meter: Meter) -> None:
        """`meter.bound` has risen."""

    def progress(self, meter: Meter, metrics: Mapping[str, float]) -> None:
        """Called now and then."""

    def wants_checkpoint(self, meter: Meter) -> bool:
        """Whether to offer one now; for solvers whose state is costly to gather."""
        return True

    def checkpoint(self, meter: Meter, state: State) -> None:
        """The solver could go on from here."""

    def noted(self, meter: Meter, note: Note) -> None:
        """The problem has measured something."""


@dataclass(frozen=True, eq=False)
class Recalled:
    """A plan that a bank had, checked and evaluated: what a search begins with, or the answer itself."""

    decision: Decision
    value: int
    """Evaluated just now."""
    same: bool
    """It is of this very question; else it was adapted from the answer to one like it."""
    about: Mapping[str, Any]
    """As JSON: 'program', 'machine', 'solver', 'seed', 'evaluations', 'seconds' and 'date' of who found it."""
    bound: Bound | None = None
    """Of this question: what the bank says beyond the problem's own bound, where that is to be taken."""
    proven: bool = False
    """Nothing is better, by either bound."""
    made: bool = False
    """The search that is asked for was made, as the bank says."""

    @property
    def settled(self) -> bool:
        """Nothing is left to do."""
        return self.proven or self.made

    def as_json(self) -> dict[str, Any]:
        bound = None if self.bound is None else {"value": self.bound.value, "method": self.bound.method}
        return {
            "same": self.same,
            "settled": self.settled,
            "proven": self.proven,
            "made": self.made,
            "value": self.value,
            "recorded_bound": bound,
            "found": dict(self.about),
        }


@dataclass
class Solution:
    """What a solver found. `decision` is None if it found nothing."""

    status: Status
    decision: Decision | None
    value: int | None
    bound: Bound
    evaluations: int
    seconds: float
    best_value: int | None = None
    """Of the best decision evaluated: `value` may be a little above, where the solver chose another."""
    policy: Mapping[str, npt.NDArray[Any]] | None = None
    """What a learned solver has trained: arrays by name."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """What the solver counted of its own search, as JSON takes it: for logs and benchmarks."""
    refused: list[str] = field(default_factory=list)
    """What did not count and why: stages that could not run, plans that the checker refused."""
    warnings: list[str] = field(default_factory=list)
    stop: str | None = None
    """Why a run ended: 'optimal', 'infeasible', 'budget', 'time', 'done' or 'interrupted'."""
    interrupted: bool = False
    run: Path | None = None
    """The run's folder, where one was written."""
    plan: Plan | None = None
    """A resumed run's best, where the decision can't be made again from it (`decision` is None)."""
    baseline: str | None = None
    """The known method whose plan is better than all that the solver found, where a run compared them."""
    recalled: Recalled | None = None
    """What came from a bank of plans, if anything did."""

    @property
    def gap(self) -> float | None:
        """value / bound - 1"""
        if self.value is None or self.bound.value <= 0:
            return None
        return self.value / self.bound.value - 1


class Meter:
    """One solver's view of one problem within one budget."""

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        observer: Observer | None = None,
        *,
        evaluations: int = 0,
        seconds: float = 0.0,
        clock: Callable[[], float] = now,
    ) -> None:
        self.problem = problem
        self.budget = budget
        self.run_budget = budget
        """Of the whole run: a stage of it may have less for a while."""
        self.observer = observer or Observer()
        self.evaluations = evaluations
        """Counted over all sessions of a resumed run."""
        self.best: Decision | None = None
        self.best_value: int | None = None
        self.choice: tuple[Decision, int] | None = None
        """What the solver ends with in place of the best, and its value."""
        self.start: Decision | None = None
        """A legal decision from elsewhere, `Problem.adapt`ed: a search that can begin with one may."""
        self.enough = 0.0
        """How far above the bound, relative to it, a search may end as if nothing were left to gain."""
        self.reserve = 0.0
        """Seconds of the budget that are kept back, to check what was found."""
        self.out_of_time = False
        """Whether the seconds have ended it: what is kept back may turn out not to be needed after that."""
        self.unpackable = 0
        """Legal decisions that would have been the best, had they had a plan."""
        self.bound = problem.bound()
        self.score: Scoring | None = None
        """Scores batches in place of the problem, on other machines for example."""
        # Where values are noisy, the problem keeps the candidates: only what a search submitted.
        self._recall = None if problem.repeatable else problem.recall
        self.clock = clock
        self._started = clock() - seconds

    @property
    def seconds(self) -> float:
        """Seconds of running, earlier sessions included."""
        return self.clock() - self._started

    @property
    def seconds_left(self) -> float | None:
        if self.budget.seconds is None:
            return None
        return max(0.0, self.budget.seconds - self.reserve - self.seconds)

    @property
    def evaluations_left(self) -> int | None:
        if self.budget.evaluations is None:
            return None
        return max(0, self.budget.evaluations - self.evaluations)

    @property
    def optimal(self) -> bool:
        return self.best_value is not None and self.best_value <= self.bound.value

    @property
    def spent(self) -> bool:
        """Whether the budget is, or somebody asked to stop."""
        self.out_of_time = self.out_of_time or self.seconds_left == 0.0
        return self.observer.stop or self.evaluations_left == 0 or self.seconds_left == 0.0

    @property
    def exhausted(self) -> bool:
        """Whether to stop: the budget is spent, somebody asked, or nothing is left to gain."""
        spent = self.spent
        if spent or self.best_value is None:
            return spent
        return self.best_value - self.bound.value <= int(self.bound.value * self.enough)

    def evaluate(self, decision: Decision) -> int | None:
        """Score one decision and remember it if it is the best; None if it is not legal."""
        self.evaluations += 1
        try:
            value = self.problem.evaluate(decision)
        finally:
            self._pass_notes()
        self._take(decision, -1 if value is None else value)
        return value

    def evaluate_many(self, decisions: Decision) -> Scores:
        """Score decisions [B, ...] of a `BatchProblem`; those beyond the budget are left out."""
        left = self.evaluations_left
        batch = decisions if left is None else decisions[:left]
        start = self.evaluations
        try:
            score = self.score or cast(BatchProblem, self.problem).score
            scores = score(batch, start)
        finally:
            self._pass_notes()
        for row, value in enumerate(scores.value.tolist()):
            self.evaluations = start + row + 1  # so that an improvement is reported at its own number
            self._take(batch[row], value)
        return scores

    def take_many(self, values: npt.NDArray[np.int64], decision: Callable[[int], Decision]) -> None:
        """Count decisions that a solver has timed in bulk by the problem's own rules; `decision(row)`
        makes one. What would be the best is evaluated like any other; below 0: it is not legal."""
        for row, value in enumerate(values[: self.evaluations_left].tolist()):
            if value >= 0 and (self.best_value is None or value < self.best_value):
                self.evaluate(decision(row))
            else:
                self.evaluations += 1

    def choose(self, decision: Decision) -> None:
        """End with this decision, though its value may not be the best: for the sake of something that
        values do not show. It is one more evaluation, and its own value is what is reported."""
        value = self.evaluate(decision)
        if value is None or not self.problem.admits(decision):
            raise ValueError("what a solver ends with must have a plan")
        self.choice = (np.array(decision), value)
        self.observer.chose(self)

    def _take(self, decision: Decision, value: int) -> None:
        if value >= 0 and self._recall is not None:
            self._recall(decision, value)
        if value < 0 or (self.best_value is not None and value >= self.best_value):
            return
        if not self.problem.admits(decision):
            self.unpackable += 1
            return
        self.best, self.best_value = np.array(decision), value
        self.observer.improved(self)

    def _pass_notes(self) -> None:
        for note in self.problem.take_notes():
            self.observer.noted(self, note)

    def restore(self, decision: Decision, measured: int | None = None) -> None:
        """Take up the best of an earlier session; it was counted and reported there. `measured` is
        its value where the problem's values are not repeatable."""
        value = self.problem.evaluate(decision) if self.problem.repeatable else measured
        self.best, self.best_value = np.array(decision), value

    def raise_bound(self, value: int, method: str) -> None:
        """A solver has proved that nothing is below `value`; of measured values nobody can."""
        if value > self.bound.value and self.problem.repeatable:
            self.bound = Bound(value, method)
            self.observer.bounded(self)

    def progress(self, **metrics: float) -> None:
        self.observer.progress(self, metrics)

    def checkpoint(self, state: State) -> None:
        self.observer.checkpoint(self, state)

    def solution(
        self,
        *,
        infeasible: bool = False,
        policy: Mapping[str, npt.NDArray[Any]] | None = None,
        **metrics: Any,
    ) -> Solution:
        """The choice, else the best so far, with what is known about it.

        Args:
          infeasible: whether it is proved that no decision is legal.
          policy: arrays by name, of a solver that trains one.
          metrics: what the solver counted of its own search (`Solution.metrics`).
        """
        decision, value = self.choice or (self.best, self.best_value)
        if value is not None:
            status = Status.OPTIMAL if value <= self.bound.value else Status.FEASIBLE
        else:
            status = Status.INFEASIBLE if infeasible else Status.UNKNOWN
        return Solution(
            status,
            decision,
            value,
            self.bound,
            self.evaluations,
            self.seconds,
            best_value=self.best_value,
            policy=policy,
            metrics=metrics,
        )


RENAMED_OPTIONS = {"tutored": "pretrain_steps", "tutor_positions": "pretrain_positions"}
"""Option of a solver as the first runs and policies spelled it -> its name."""


class BadOption(LoadmasterError):
    """A solver can't work with what an option was set to."""


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "tuple": "several words",
    "dict": "a dict, from Python",
    "None": "",
}
MOST_OF_AN_OPTION = 10**9
_MOST_OF = {"population": 10**6, "threads": 4096, "slices": 4096, "slice_bytes": 10**15}
"""Of those that take memory or threads as they are given, and of bytes."""


def check_option(solver: str, option: str, value: object, annotation: str, least: int = 0) -> None:
    """Raise if a value is not of the type that the solver's code says, or is no number of anything."""
    types = [each.partition("[")[0].replace("Sequence", "tuple") for each in annotation.split(" | ")]
    if not set(types) <= _WORDS.keys():
        return  # the solver looks at it
    given = "None" if value is None else type(value).__name__.replace("list", "tuple")
    fits = given in types or (given == "int" and "float" in types)
    asked = " or ".join(_WORDS[each] for each in types if each != "None")
    if fits and isinstance(value, int | float) and given != "bool":
        most = _MOST_OF.get(option, MOST_OF_AN_OPTION)
        fits, asked = least <= value <= most, f"{asked} from {least} to {most}"
    if not fits:
        raise BadOption(
            f"solver '{solver}' can't work with {option} = {value!r}", object=option, remedy=f"give {asked}"
        )


def rename_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they are called now, from what a user or an old file gave."""
    return {RENAMED_OPTIONS.get(name, name): value for name, value in options.items()}


class Solver(ABC):
    """A way to solve problems of one kind."""

    name: str
    problem_kind: str
    summary: str
    """One line for `loadmaster solvers`."""
    deterministic: bool
    """The same seed and evaluations give the same answer (time limits aside)."""
    scheduled: bool = False
    """What it does depends on how much of the budget is over, so that a run with a larger one is another
    from its first evaluation on."""
    least_options: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """The least of its options that are numbers, where it is not 0."""
    options: Mapping[str, Any] = MappingProxyType({})
    """What makes this solver again, beside its name: for a run that is resumed (JSON)."""

    @abstractmethod
    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        """Solve `meter.problem` until `meter.exhausted`, from `state` if there is one."""


def solve(
    solver: Solver,
    problem: Problem,
    budget: Budget,
    seed: int = 0,
    observer: Observer | None = None,
    state: State | None = None,
    clock: Callable[[], float] = now,
) -> Solution:
    """Run a solver on a problem within a budget. Ctrl-C keeps the best so far. `clock`: of the seconds
    of the budget, such as `time.process_time` where a computer has other work too."""
    if solver.problem_kind != problem.kind:
        raise ValueError(f"solver '{solver.name}' solves {solver.problem_kind}, not {problem.kind}")
    meter = Meter(problem, budget, observer, clock=clock)
    try:
        return solver.run(meter, seed, state)
    except KeyboardInterrupt:
        meter.observer.stop = True
        return replace(meter.solution(), interrupted=True)


def generator_state(rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """The whole state as bytes uint8[n], so that a solver can go on where it was."""
    text = json.dumps(rng.bit_generator.state, default=int)
    return np.frombuffer(text.encode(), dtype=np.uint8)


def restore_generator(state: npt.NDArray[np.uint8]) -> np.random.Generator:
    """The generator that `generator_state` saw."""
    rng = np.random.default_rng(0)
    try:
        rng.bit_generator.state = read_json(state.tobytes())
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise LoadmasterError(
            f"the checkpoint's random generator can't be restored: {error}",
            object="rng",
            remedy="go on from an older checkpoint, or start again",
        ) from None
    return rng


class PartMeter(Meter):
    """For a part of the work that is about another problem, within the budget of the whole: what is
    evaluated here counts there too; its best and its checkpoints do not."""

    def __init__(self, whole: Meter, problem: Problem, budget: Budget) -> None:
        super().__init__(problem, budget, clock=whole.clock)
        self.whole = whole

    @property
    def spent(self) -> bool:
        return self.whole.spent or super().spent

    def evaluate(self, decision: Decision) -> int | None:
        self.whole.evaluations += 1
        return super().evaluate(decision)

    def progress(self, **metrics: float) -> None:
        self.whole.progress(**metrics)
