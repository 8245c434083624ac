"""`RunObserver`: checks every improvement before anybody hears of it, then stores and logs it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from loadmaster.clock import now
from loadmaster.plan.plan import Plan
from loadmaster.runs.checkpoint import write_checkpoint
from loadmaster.runs.folder import RunFolder
from loadmaster.runs.history import compute_gap
from loadmaster.search.problem import Bound, Decision, Note, Problem
from loadmaster.search.solver import Meter, Observer, State

_SLOW_CHECK = 0.05
"""Seconds; a check that takes longer is not made for every improvement of a burst."""
_LAST_CHECKS = 2
"""What follows a search takes about so many times as long as a check: the last plan is made, checked, simulated and
written."""
_CHECK_SHARE = 4
"""A slow check is followed by so many times its duration without one."""
_CHECK_SECONDS_PER_TENSOR = 5e-5
"""A guess before the first check: of a large program, the first answers of a burst are not worth
one. The last is always checked."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands, for people who watch it."""

    unit: str
    best: int | None
    bound: int | None
    evaluations: int
    seconds: float
    per_second: float | None
    seconds_left: float | None
    """By the limit of seconds, or estimated from the evaluations left."""
    improvements: int
    activity: str = ""
    """What keeps it from evaluating plans just now, as 'compiling'."""

    @property
    def gap(self) -> float | None:
        return compute_gap(self.best, self.bound)


class Display(Protocol):
    """Shows where a run stands; decides by itself how often. May be called from two threads."""

    def show(self, standing: Standing) -> None: ...

    def doing(self, text: str) -> None:
        """What goes on before and after the search; until something else is shown."""
        ...

    def close(self) -> None: ...


def _is_long_enough(evaluations: int, most: int, seconds: float) -> bool:
    """Whether a pace tells when the end will be: early plans are improvements, which are checked and written, and slow."""
    return evaluations >= most / 100 or seconds >= 10.0


class Pace:
    """Evaluations a second of the time in which plans are evaluated: set-up and compiling don't count, and neither do
    the first evaluations, which come with them."""

    def __init__(self, evaluations: int, seconds: float) -> None:
        self._first, self._last, self._seconds = evaluations, evaluations, seconds
        self._steps, self._active = 0, 0.0
        self._quiet = 0.0
        """Seconds since the last step, which count once the next one has come."""

    def add(self, evaluations: int, seconds: float, activity: str) -> None:
        """So many evaluations after so many seconds, with something else going on or nothing."""
        if not activity:
            self._quiet += seconds - self._seconds
        self._seconds = seconds
        if evaluations == self._last:
            return
        if self._steps == 0:
            self._first = evaluations
        else:
            self._active += self._quiet
        self._steps, self._last, self._quiet = self._steps + 1, evaluations, 0.0

    @property
    def per_second(self) -> float | None:
        """None: not known yet."""
        done, took = self._last - self._first, self._active + self._quiet / 2
        return done / took if self._steps > 1 and took > 0.05 else None


@dataclass(frozen=True)
class Best:
    """The best plan that has passed the checker."""

    decision: Decision | None
    """None: an earlier session found it, and the plan does not tell the decision."""
    value: int
    plan: Plan


class RunObserver(Observer):
    """Between a meter and a run folder. Without a folder it still checks and shows."""

    def __init__(
        self,
        problem: Problem,
        solver: str,
        run: RunFolder | None = None,
        display: Display | None = None,
        *,
        identity: str = "",
        checkpoint_seconds: float = 1.0,
    ) -> None:
        super().__init__()
        self.problem, self.solver, self.run = problem, solver, run
        self.best: Best | None = None
        self.choice: Best | None = None
        """What the solver ends with in place of the best; none once something better is found."""
        self.ahead: Best | None = None
        """What an earlier session had found beyond the checkpoint that this one goes on from."""
        self.baseline: tuple[str, Best] | None = None
        """The best of known methods' plans, with its name; of values that can be had again alone."""
        self.clocked = False
        """Whether a time limit may keep this session from coming so far again."""
        self.bound: Bound | None = None
        self.refused: list[str] = []
        """What the checker said against plans that the meter took for improvements: bugs."""
        self.busy = False
        """Something is being written that must not be cut in two."""
        self._display, self._identity = display, identity
        self._checkpoint_seconds = checkpoint_seconds
        self._checkpoint_after = self._check_after = self._progress_after = 0.0
        self._pending = False
        self._passed: list[tuple[int, int]] = []
        """(evaluations, value) of improvements that are not in the log yet."""
        self._accepted: tuple[Decision | None, int | None] = (None, None)
        self._improvements = 0
        self._metrics: dict[str, float] = {}
        self._pace = Pace(0, 0.0)
        # The display is refreshed from another thread, which also writes lines of progress.
        self._lock = threading.RLock()
        self._stopped = False

    def begin(self, meter: Meter) -> None:
        """The meter is set up: take over what it has, and tell the bound."""
        self._pace = Pace(meter.evaluations, meter.seconds)
        expected = _CHECK_SECONDS_PER_TENSOR * self.problem.program.n_tensors
        if expected > _SLOW_CHECK:
            self._check_after = time.monotonic() + _CHECK_SHARE * expected
        self._pending = meter.best is not None
        self.settle(meter)
        self.bounded(meter)
        self._progress_after = meter.seconds + 1.0

    def improved(self, meter: Meter) -> None:
        assert meter.best_value is not None
        self._pending = True
        self._passed.append((meter.evaluations, meter.best_value))
        if time.monotonic() >= self._check_after:
            self.settle(meter)

    def settle(self, meter: Meter) -> None:
        """Check, store and report the meter's best, unless that has been done."""
        if not self._pending or meter.best is None or meter.best_value is None:
            return
        self._pending = False
        passed, self._passed = self._passed, []
        if self.best is not None and meter.best_value >= self.best.value:
            self._accepted = (meter.best, meter.best_value)  # found again after a resume
            return
        started, begun = time.monotonic(), now()
        plan = self.problem.plan(meter.best)
        violations = self.problem.violations(plan)
        self.set_pace(meter, started, now() - begun)
        if violations:
            self._refuse(meter, plan, f"{len(violations)} violations, first {violations[0]}")
            return
        self._accept(meter, Best(meter.best, meter.best_value, plan), passed)
        self.tick(meter)

    def chose(self, meter: Meter) -> None:
        self.settle(meter)
        assert meter.choice is not None
        decision, value = meter.choice
        plan = self.problem.plan(decision)
        violations = self.problem.violations(plan)
        if violations:
            meter.choice = None
            message = f"{len(violations)} violations, first {violations[0]}"
            self.refused.append(message)
            self.write(meter, "error", what="violations", plan=plan.hash, message=message)
            return
        with self._whole():
            if self.run is not None:
                self.run.store_plan(plan, self.problem)
            with self._lock:
                self.choice = Best(decision, value, plan)
                self.write(
                    meter,
                    "choose",
                    value=value,
                    plan=plan.hash,
                    solver=self.solver,
                    gap=compute_gap(value, None if self.bound is None else self.bound.value),
                )
            self._set_best(self.choice)

    def take_baseline(self, name: str, best: Best) -> None:
        """A known method's plan is a candidate too: until the solver has found a better one, it is in `best.json`."""
        if not self.problem.repeatable or (
            self.baseline is not None and self.baseline[1].value <= best.value
        ):
            return
        self.baseline = (name, best)
        ahead = self.ahead is not None and self.ahead.value <= best.value
        if self.run is not None and self.better_baseline is not None and not ahead:
            self.run.set_best(best.plan.hash)

    @property
    def better_baseline(self) -> tuple[str, Best] | None:
        """The known method's plan that is better than all that the solver has found."""
        if self.baseline is None or (self.best is not None and self.best.value <= self.baseline[1].value):
            return None
        return self.baseline

    def _set_best(self, best: Best) -> None:
        """In `best.json`, unless it holds what is still to be found again, or a better plan of a known method."""
        if self.ahead is not None and best.value <= self.ahead.value:
            self.ahead = None
        if self.run is not None and self.ahead is None:
            known = self.better_baseline
            self.run.set_best((best if known is None else known[1]).plan.hash)

    def set_pace(self, meter: Meter, started: float, seconds: float) -> None:
        """A check that began then is over: how long it took says when the next may be made, and how much of the time
        has to be kept back for the last one (`seconds`, by the clock of limits)."""
        took = time.monotonic() - started
        if seconds > _SLOW_CHECK and meter.budget.seconds is not None:
            meter.reserve = min(_LAST_CHECKS * seconds, meter.budget.seconds / 2)
        self._check_after = started + (1 + _CHECK_SHARE) * took if took > _SLOW_CHECK else 0.0

    def _accept(self, meter: Meter, best: Best, passed: list[tuple[int, int]]) -> None:
        # Those that an earlier session has logged are found again after a resume.
        known = math.inf if self.best is None else self.best.value
        missed = [pair for pair in passed if pair[0] < meter.evaluations and pair[1] < known]
        more = {"passed": missed} if missed else {}
        with self._whole():
            if self.run is not None:
                self.run.store_plan(best.plan, self.problem)  # durable before the line names it
            with self._lock:
                self.best, self.choice = best, None
                self._improvements += 1
                self._accepted = (best.decision, best.value)
                self.write(
                    meter,
                    "improve",
                    value=best.value,
                    plan=best.plan.hash,
                    solver=self.solver,
                    gap=self._gap(),
                    checked=True,
                    **more,
                )
            self._set_best(best)

    def ended(self, meter: Meter) -> None:
        """The run has come to its own end: what it has found is the answer, and nothing else, unless
        time was too short to find again what an earlier session had found."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None and self.clocked:
            self._accept(meter, ahead, [])
        result = self.choice or self.best
        if result is not None:
            self._set_best(result)

    def seal(self, seconds: float) -> bool:
        """In place of a main thread that does not come back: `best.json` is in order, and no other
        thread writes any more. Whether that succeeded, and the log still lacks its last line."""
        if not self._lock.acquire(timeout=seconds) or self._stopped:  # never released
            return False
        result = self.choice or self.best
        if result is not None:
            self._set_best(result)
        return True

    def _refuse(self, meter: Meter, plan: Plan, message: str) -> None:
        # Back to what is sound: or the wrong value would hide every true improvement after it.
        meter.best, meter.best_value = self._accepted
        self.refused.append(message)
        self.write(meter, "error", what="violations", plan=plan.hash, message=message)

    def noted(self, meter: Meter, note: Note) -> None:
        self.write(
            meter,
            "measure",
            evaluation=note.evaluation,
            what=note.what,
            seconds=list(note.seconds),
            message=note.message,
        )

    def bounded(self, meter: Meter) -> None:
        with self._lock:
            if self.bound is None or meter.bound.value > self.bound.value:
                self.bound = meter.bound
                self.write(
                    meter,
                    "bound",
                    value=self.bound.value,
                    method=self.bound.method,
                    proven_optimal=self.optimal,
                )

    def progress(self, meter: Meter, metrics: Mapping[str, float]) -> None:
        # A first answer is worth a check at once; solvers tell progress when a burst is over.
        if self.best is None or time.monotonic() >= self._check_after:
            self.settle(meter)
        self._metrics = dict(metrics)
        self.tick(meter)

    def tick(self, meter: Meter, activity: str = "") -> None:
        """Show where the run stands, and log it now and then: more rarely in a long run."""
        with self._lock:
            standing = self._standing(meter, activity)
            if self.run is not None and standing.seconds >= self._progress_after:
                pause = min(10.0, max(1.0, standing.seconds / 60))
                self._progress_after = standing.seconds + pause
                self.write(
                    meter,
                    "progress",
                    best=standing.best,
                    bound=standing.bound,
                    gap=standing.gap,
                    evals_per_s=standing.per_second,
                    metrics=self._metrics,
                )
        if self._display is not None:
            self._display.show(standing)

    def wants_checkpoint(self, meter: Meter) -> bool:
        """Never once the search is to end: what a solver leaves unfinished then, an unbroken run, or
        one with a larger budget, would have finished."""
        due = time.monotonic() >= self._checkpoint_after
        return self.run is not None and due and not meter.exhausted

    def checkpoint(self, meter: Meter, state: State) -> None:
        at = time.monotonic()
        if self.run is None or not self.wants_checkpoint(meter):
            return
        self.settle(meter)
        with self._whole():
            path, sha256 = write_checkpoint(self.run, meter, state, self._identity)
            self.write(meter, "checkpoint", path=path, sha256=sha256, verdict="ok")
        took = time.monotonic() - at
        self._checkpoint_after = at + (
            max(self._checkpoint_seconds, 50 * took) if self._checkpoint_seconds else 0.0
        )

    @property
    def optimal(self) -> bool:
        return self.best is not None and self.bound is not None and self.best.value <= self.bound.value

    def write(self, meter: Meter, event: str, **fields: object) -> None:
        """One line in the log, if there is one; Ctrl-C does not cut it in two."""
        if self.run is not None and self.run.log is not None:
            with self._whole(), self._lock:
                self.run.log.append(event, meter.seconds, meter.evaluations, **fields)
                self._stopped = event == "stop"

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # Ctrl-C raises in the main thread alone
            return
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _gap(self) -> float | None:
        return compute_gap(
            None if self.best is None else self.best.value, None if self.bound is None else self.bound.value
        )

    def _standing(self, meter: Meter, activity: str) -> Standing:
        evaluations, seconds = meter.evaluations, meter.seconds
        self._pace.add(evaluations, seconds, activity)
        rate = self._pace.per_second
        whole = meter.run_budget
        left = [] if whole.seconds is None else [max(0.0, whole.seconds - seconds)]
        if (
            whole.evaluations is not None
            and rate
            and _is_long_enough(evaluations, whole.evaluations, seconds)
        ):
            left.append(max(0, whole.evaluations - evaluations) / rate)
        return Standing(
            self.problem.unit,
            None if self.best is None else self.best.value,
            None if self.bound is None else self.bound.value,
            evaluations,
            seconds,
            rate,
            min(left, default=None) if all(map(math.isfinite, left)) else None,
            self._improvements,
            activity,
        )
