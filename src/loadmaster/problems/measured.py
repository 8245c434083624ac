"""`MeasuredMapping`: the Mapping problem with hardware in the loop.

A map is rectified by the machine file first; only one that fits, has offsets and passes the
checker is measured. Its value is the median of some repeats. Values differ from time to time, so
they are not `repeatable`: nothing is cached, no bound is claimed, and the champion is named by
`loadmaster.problems.champion.remeasure`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import BadPlan, LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.plan.plan import Plan
from loadmaster.problems.evaluator import (
    AbsentEvaluator,
    CommandEvaluator,
    EvaluationError,
    Evaluator,
)
from loadmaster.problems.gauge import Gauge, Measurement
from loadmaster.problems.mapping import Int8, Mapping
from loadmaster.problems.problem import Bound, Decision, Note, Scores
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.units import PICOSECONDS

FAILURES = 20
"""So many in a row end a run."""
DRIFT = 0.02
_MESSAGE = 500


class MeasuredMapping(Mapping):
    """`evaluator` takes a plan and returns seconds (`loadmaster.problems.evaluator`).

    Each map is run `warmups` + `repeats` times. The baseline, `evaluator.baseline()` or the
    compiler's plan, is measured at the start and again after `baseline_every` evaluations; rewards
    use the latest. 20 failures in a row raise a `LoadmasterError`.
    """

    def __init__(
        self,
        program: Program,
        machine: Machine,
        evaluator: Evaluator,
        *,
        repeats: int = 5,
        warmups: int = 2,
        baseline_every: int = 50,
        invalid: str = "penalty",
        power: float = 2.0,
    ) -> None:
        super().__init__(program, machine, invalid=invalid, power=power)
        if baseline_every < 1:
            raise ValueError("baseline_every must be at least 1")
        self.gauge, self.baseline_every = Gauge(evaluator, repeats, warmups), baseline_every
        self.measurements = 0
        """Values that were measured, of maps and of the baseline; warm-ups left out."""
        self.failures = 0
        self.baselines: list[tuple[float, ...]] = []
        """Seconds by board, a row for every time that it was measured."""
        self._since_baseline = self._failed_in_a_row = self._scored = 0
        self._latest: dict[bytes, int] = {}
        self._notes: list[Note] = []
        bind = getattr(evaluator, "bind", None)
        if bind is not None:
            bind(program, machine)

    @property
    def repeatable(self) -> bool:
        return False

    def bound(self) -> Bound:
        """On hardware nothing is proved."""
        return Bound(0, "none: measured")

    def switches(self) -> dict[str, Any]:
        return {**super().switches(), "evaluator": self.gauge.name, "repeats": self.gauge.repeats,
                "warmups": self.gauge.warmups, "baseline_every": self.baseline_every}  # fmt: skip

    def take_notes(self) -> list[Note]:
        """What was measured since the last call, for a log."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Let go of the hardware, where the evaluator can."""
        getattr(self.gauge.evaluator, "close", lambda: None)()

    @property
    def compiler_ps(self) -> int:
        """The latest baseline, of the first board."""
        if not self.baselines:
            self._measure_baseline(self._scored)
        return _picoseconds(self.baselines[-1][0])

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        """Measured values and rewards of maps int8[B, 2N]; the reward of a failure is -1."""
        _, epsilon, rectified = self.rectify(decisions)
        count = len(rectified)
        runs = (epsilon == 0) | (self.invalid == "repair")
        value, reward = np.full(count, -1, dtype=np.int64), np.where(runs, -1.0, -epsilon)
        failed = np.zeros(count, dtype=np.bool_)
        start = 0
        while start < count:
            if not self.baselines or self._since_baseline >= self.baseline_every:
                self._measure_baseline(first + start)
            end = min(count, start + self.baseline_every - self._since_baseline)
            rows = start + np.flatnonzero(runs[start:end])
            for row, found in zip(rows.tolist(), self._measure(rectified[rows]), strict=True):
                self._scored = max(self._scored, first + row + 1)
                self._account(found, "map", first + row)
                failed[row] = found.fault is not None
                if found.fault is None:
                    value[row] = _picoseconds(found.median)
                    reward[row] = (self.baselines[-1][found.board] / found.median) ** self.power
                    self._latest[rectified[row].tobytes()] = int(value[row])
            self._since_baseline += end - start
            start = end
        return Scores(value, reward, failed)

    def evaluate(self, decision: Decision) -> int | None:
        """The latest median of this map if it has been measured, else it is measured now; None if
        it does not fit, or the measurement failed."""
        _, epsilon, rectified = self.rectify(np.asarray(decision)[None])
        if epsilon[0] > 0 and self.invalid != "repair":
            return None
        known = self._latest.get(rectified[0].tobytes())
        if known is None:
            known = int(self.score(rectified, self._scored).value[0])
        return None if known < 0 else known

    def sample(self, decision: Decision | None, number: int) -> int:
        """One measurement, without warm-ups; of the baseline if None."""
        if decision is None:
            seconds = self.gauge.baseline_once(self.plan(self.compiler))
        else:
            seconds = self.gauge.once(self.plan(decision))
        self.measurements += 1
        return _picoseconds(seconds)

    def save(self, folder: Path) -> None:
        evaluator, command = self.gauge.evaluator, None
        if isinstance(evaluator, CommandEvaluator) and evaluator.portable:
            command = {"text": evaluator.command, "timeout_s": evaluator.timeout_s}
        about = {
            "measured": {"name": self.gauge.name, "command": command},
            "options": {"repeats": self.gauge.repeats, "warmups": self.gauge.warmups,
                        "baseline_every": self.baseline_every, "invalid": self.invalid,
                        "power": self.power},
        }  # fmt: skip
        (folder / "problem.json").write_text(json.dumps(about), encoding="utf-8")

    def _measure(self, maps: Int8) -> Iterator[Measurement]:
        """One for each map; those without a sound plan never reach the evaluator."""
        plans = [self._sound_plan(chosen) for chosen in maps]
        measured = self.gauge.measure([plan for plan in plans if isinstance(plan, Plan)])
        for plan in plans:
            yield next(measured) if isinstance(plan, Plan) else Measurement((), plan)

    def _sound_plan(self, chosen: Int8) -> Plan | str:
        try:
            plan = self.plan(chosen)
        except BadPlan as error:
            return error.message
        violations = self.violations(plan)
        return f"the checker refuses it: {violations[0]}" if violations else plan

    def _measure_baseline(self, evaluation: int) -> None:
        found = self.gauge.measure_baseline(self.plan(self.compiler))
        self._since_baseline = 0
        fault = next((each.fault for each in found if each.fault is not None), None)
        if fault is not None and not self.baselines:
            raise EvaluationError(f"the baseline can't be measured: {fault}", object=self.gauge.name,
                                  remedy="try the evaluator alone")  # fmt: skip
        new, message = tuple(each.median for each in found if each.fault is None), None
        if fault is None:
            old = self.baselines[-1] if self.baselines else new
            drift = max((b / a - 1 for a, b in zip(old, new, strict=True)), key=abs)
            if abs(drift) > DRIFT:
                message = f"the baseline drifted by {drift:+.1%} since it was last measured"
            self.baselines.append(new)  # else the last one stands
        for each in found:
            self._account(each, "baseline", evaluation, message)

    def _account(self, found: Measurement, what: str, evaluation: int, message: str | None = None) -> None:  # fmt: skip
        self.measurements += len(found.seconds)
        if found.fault is not None:
            message = f"machine '{self.machine.name}' allows it, and it failed: {found.fault}"
        self._notes.append(Note(evaluation, what, found.seconds, message and message[:_MESSAGE]))
        self.failures += found.fault is not None
        self._failed_in_a_row = 0 if found.fault is None else self._failed_in_a_row + 1
        if self._failed_in_a_row >= FAILURES:
            raise LoadmasterError(
                f"{FAILURES} measurements in a row failed, the last because {found.fault}",
                object=self.gauge.name, number=FAILURES,
                remedy="see to the hardware and resume the run")  # fmt: skip


def measured_again(folder: Path, about: dict[str, Any]) -> MeasuredMapping:
    """What `save` wrote. Nothing is run: that a folder names a command is no reason to."""
    name, command = about["measured"]["name"], about["measured"]["command"]
    evaluator: Evaluator = AbsentEvaluator(name, "only a command without absolute paths is kept")
    if command is not None:
        try:
            evaluator = CommandEvaluator(command["text"], command["timeout_s"])
        except EvaluationError as error:
            evaluator = AbsentEvaluator(name, error.message)
    return MeasuredMapping(load(folder / "program.npz"), read_machine(folder / "machine.toml"),
                           evaluator, **about["options"])  # fmt: skip


def _picoseconds(seconds: float) -> int:
    return max(1, round(seconds * PICOSECONDS))
