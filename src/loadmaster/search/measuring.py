"""What problems with hardware in the loop share: the gauge, baselines, notes, and what failures cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.search.evaluator import (
    CommandEvaluator,
    EvaluationError,
    Gauge,
    Measurement,
    Measures,
    RecordedEvaluator,
    evaluator_name,
)
from loadmaster.search.problem import Bound, Decision, Note, Scores
from loadmaster.units import PICOSECONDS

FAILURES = 20
"""So many in a row end a run."""
DRIFT = 0.02
_MESSAGE = 500
_NAME = 4096


class Measuring(ABC):
    """Plans are run `warmups` + `repeats` times; a value is the median of the repeats. The baseline,
    `evaluator.baseline()` or `baseline_plan()`, is measured at the start and again after
    `baseline_every` evaluations; rewards use the latest. 20 failures in a row raise a
    `LoadmasterError`."""

    program: Program
    machine: Machine
    what = "plan"
    """What is measured, in notes."""

    def start_measuring(
        self, program: Program, evaluator: Measures, repeats: int, warmups: int, baseline_every: int
    ) -> None:
        """Once, when the problem is made."""
        if baseline_every < 1:
            raise ValueError("baseline_every must be at least 1")
        self.gauge, self.baseline_every = Gauge(evaluator, repeats, warmups), baseline_every
        self.measurements = 0
        """Values that were measured, of decisions and of the baseline; warm-ups left out."""
        self.failures = 0
        self.baselines: list[tuple[float, ...]] = []
        """Seconds by board, a row for every time that it was measured."""
        self._since_baseline = self._failed_in_a_row = self._scored = 0
        self._notes: list[Note] = []
        self.gauge.evaluator.bind(program, self.machine)

    def measure_with(self, evaluator: Measures) -> None:
        """Measure again with the evaluator of a run that was loaded: the folder names it, and only
        who gives it here has it run. Another one than the folder names is refused."""
        recorded, given = self.gauge.name, evaluator_name(evaluator)
        if given != recorded:
            raise EvaluationError(
                f"the run was measured by '{recorded}' and not by '{given}'",
                object=recorded,
                number=given,
                remedy="give the same evaluator, or start another run",
            )
        self.gauge = Gauge(evaluator, self.gauge.repeats, self.gauge.warmups)
        self.gauge.evaluator.bind(self.program, self.machine)

    @abstractmethod
    def baseline_plan(self) -> Plan:
        """What stands for the hardware's own compiler, should the evaluator have none."""

    @abstractmethod
    def plan(self, decision: Decision) -> Plan: ...

    @property
    def repeatable(self) -> bool:
        return False

    def bound(self) -> Bound:
        """On hardware nothing is proved."""
        return Bound(0, "none: measured")

    @property
    def baseline_ps(self) -> int:
        """The latest baseline, of the first board."""
        if not self.baselines:
            self._measure_baseline(self._scored)
        return picoseconds(self.baselines[-1][0])

    def take_notes(self) -> list[Note]:
        """What was measured since the last call, for a log."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Let go of the hardware, where the evaluator can."""
        self.gauge.evaluator.close()

    def sample(self, decision: Decision | None, number: int) -> int:
        """One measurement, without warm-ups; of the baseline if None."""
        if decision is None:
            seconds = self.gauge.baseline_once(self.baseline_plan())
        else:
            seconds = self.gauge.once(self.plan(decision))
        self.measurements += 1
        return picoseconds(seconds)

    def measured_scores(
        self,
        plan_of: Callable[[int], Plan | str],
        runs: npt.NDArray[np.bool_],
        reward: npt.NDArray[np.float64],
        first: int,
        power: float,
    ) -> Scores:
        """Scores of the rows that `runs`; `plan_of` gives a sound plan or says why there is none. The
        other rows keep their `reward`; that of a failure is -1."""
        count = len(runs)
        value, reward = np.full(count, -1, dtype=np.int64), np.where(runs, -1.0, reward)
        failed = np.zeros(count, dtype=np.bool_)
        start = 0
        while start < count:
            if not self.baselines or self._since_baseline >= self.baseline_every:
                self._measure_baseline(first + start)
            end = min(count, start + self.baseline_every - self._since_baseline)
            rows = (start + np.flatnonzero(runs[start:end])).tolist()
            for row, found in zip(rows, self._measure([plan_of(row) for row in rows]), strict=True):
                self._scored = max(self._scored, first + row + 1)
                self._account(found, self.what, first + row)
                failed[row] = found.fault is not None
                if found.fault is None:
                    value[row] = picoseconds(found.median)
                    reward[row] = (self.baselines[-1][found.board] / found.median) ** power
            self._since_baseline += end - start
            start = end
        return Scores(value, reward, failed)

    def _measure(self, plans: Sequence[Plan | str]) -> Iterator[Measurement]:
        """One for each; those without a sound plan never reach the evaluator."""
        measured = self.gauge.measure([plan for plan in plans if isinstance(plan, Plan)])
        for plan in plans:
            yield next(measured) if isinstance(plan, Plan) else Measurement((), plan)

    def _measure_baseline(self, evaluation: int) -> None:
        found = self.gauge.measure_baseline(self.baseline_plan())
        self._since_baseline = 0
        fault = next((each.fault for each in found if each.fault is not None), None)
        if fault is not None and not self.baselines:
            raise EvaluationError(
                f"the baseline can't be measured: {fault}",
                object=self.gauge.name,
                remedy="try the evaluator alone",
            )
        new, message = tuple(each.median for each in found if each.fault is None), None
        if fault is None:
            old = self.baselines[-1] if self.baselines else new
            drift = max((b / a - 1 for a, b in zip(old, new, strict=True)), key=abs)
            if abs(drift) > DRIFT:
                message = f"the baseline drifted by {drift:+.1%} since it was last measured"
            self.baselines.append(new)  # else the last one stands
        for each in found:
            self._account(each, "baseline", evaluation, message)

    def _account(self, found: Measurement, what: str, evaluation: int, message: str | None = None) -> None:
        self.measurements += len(found.seconds)
        if found.fault is not None:
            message = f"machine '{self.machine.name}' allows it, and it failed: {found.fault}"
        self._notes.append(Note(evaluation, what, found.seconds, message and message[:_MESSAGE]))
        self.failures += found.fault is not None
        self._failed_in_a_row = 0 if found.fault is None else self._failed_in_a_row + 1
        if self._failed_in_a_row >= FAILURES:
            raise LoadmasterError(
                f"{FAILURES} measurements in a row failed, the last because {found.fault}",
                object=self.gauge.name,
                number=FAILURES,
                remedy="see to the hardware and resume the run",
            )

    def measured_options(self) -> dict[str, Any]:
        """For the keys of a run."""
        return {
            "evaluator": self.gauge.name,
            "repeats": self.gauge.repeats,
            "warmups": self.gauge.warmups,
            "baseline_every": self.baseline_every,
        }

    def measured_about(self) -> dict[str, Any]:
        """For a run's folder, with the command where there is one that can be kept."""
        evaluator, command = self.gauge.evaluator, None
        if isinstance(evaluator, RecordedEvaluator | CommandEvaluator) and evaluator.portable:
            command = {"text": evaluator.command, "timeout_s": evaluator.timeout_s}
        return {
            "measured": {"name": self.gauge.name, "command": command},
            "options": {
                "repeats": self.gauge.repeats,
                "warmups": self.gauge.warmups,
                "baseline_every": self.baseline_every,
            },
        }


def kept_evaluator(about: dict[str, Any]) -> RecordedEvaluator:
    """The evaluator of `measured_about`, which can't be run: see `RecordedEvaluator`."""
    name, command = about["measured"]["name"], about["measured"]["command"]
    if not isinstance(name, str) or len(name) > _NAME:
        raise ValueError(f"its evaluator has no name of at most {_NAME:,} characters")
    if command is None:
        return RecordedEvaluator(name)
    text, timeout_s = command["text"], command["timeout_s"]
    if not isinstance(text, str) or type(timeout_s) not in (int, float):
        raise ValueError("its evaluator is no command")
    return RecordedEvaluator(name, text, timeout_s)


def picoseconds(seconds: float) -> int:
    """Measured seconds as an integer; never 0, which would mean that nothing ran."""
    return max(1, round(seconds * PICOSECONDS))
