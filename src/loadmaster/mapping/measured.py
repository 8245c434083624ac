"""`MeasuredMapping`: the Mapping problem with hardware in the loop.

A map is rectified by the machine file first; only one that fits, has offsets and passes the
checker is measured. Its value is the median of some repeats. Values differ from time to time, so
they are not `repeatable`: nothing is cached, no bound is claimed, and the champion is named by
`loadmaster.search.champion.remeasure`. `evaluator_report` says what to know of an evaluator before a
search depends on it.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.arrays import Int8
from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.search.evaluator import CommandEvaluator, EvaluationError, Gauge, Measures
from loadmaster.search.measuring import Measuring, kept_evaluator
from loadmaster.search.problem import Decision, Scores


class MeasuredMapping(Measuring, Mapping):
    """`evaluator` takes a plan and returns seconds (`loadmaster.search.evaluator`); see `Measuring`
    for how it is used. The baseline is the compiler's plan, should the evaluator have none."""

    what = "map"

    def __init__(
        self,
        program: Program,
        machine: Machine,
        evaluator: Measures,
        *,
        repeats: int = 5,
        warmups: int = 2,
        baseline_every: int = 50,
        invalid: str = "penalty",
        power: float = 2.0,
    ) -> None:
        Mapping.__init__(self, program, machine, invalid=invalid, power=power)
        self._latest: dict[bytes, int] = {}
        self.start_measuring(program, evaluator, repeats, warmups, baseline_every)

    def options(self) -> dict[str, Any]:
        return {**super().options(), **self.measured_options()}

    @property
    def compiler_ps(self) -> int:
        """The latest baseline, of the first board."""
        return self.baseline_ps

    def baseline_plan(self) -> Plan:
        return self.plan(self.compiler)

    def plan(self, decision: Decision) -> Plan:
        return Mapping.plan(self, decision)

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        """Measured values and rewards of maps int8[B, 2N]; the reward of a failure is -1."""
        _, epsilon, rectified = self.rectify(decisions)
        runs = (epsilon == 0) | (self.invalid == "repair")
        scores = self.measured_scores(
            lambda row: self._sound_plan(rectified[row]), runs, -epsilon, first, self.power
        )
        for row in np.flatnonzero(scores.value >= 0).tolist():
            self._latest[rectified[row].tobytes()] = int(scores.value[row])
        return scores

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

    def save(self, folder: Path) -> None:
        about = self.measured_about()
        about["options"] |= {"invalid": self.invalid, "power": self.power}
        (folder / "problem.json").write_text(json.dumps(about), encoding="utf-8")

    def _sound_plan(self, chosen: Int8) -> Plan | str:
        try:
            plan = self.plan(chosen)
        except BadPlan as error:
            return error.message
        violations = self.violations(plan)
        return f"the checker refuses it: {violations[0]}" if violations else plan


def load_measured(folder: Path, about: dict[str, Any]) -> MeasuredMapping:
    """What `save` wrote."""
    return MeasuredMapping(
        load(folder / "program.npz"),
        read_machine(folder / "machine.toml"),
        kept_evaluator(about),
        **about["options"],
    )


MOST_VARIATION = 0.1


@dataclass
class EvaluatorReport:
    """Seconds that it gave; None where it failed."""

    name: str
    valid_s: float | None = None
    """Of the compiler's plan."""
    repeated_s: list[float] = field(default_factory=list)
    """Of the same plan again."""
    all_slowest_s: float | None = None
    broken: str | None = None
    """What is said of a command that fails: nothing less than this must come out of one."""
    findings: list[str] = field(default_factory=list)
    """What is wrong, or odd."""

    @property
    def variation(self) -> float | None:
        """(largest - smallest) / median of the same plan."""
        values = self.repeated_s
        return (max(values) - min(values)) / statistics.median(values) if values else None

    @property
    def ok(self) -> bool:
        """It measures plans; there may be findings all the same."""
        return (
            self.valid_s is not None
            and self.all_slowest_s is not None
            and bool(self.repeated_s)
            and self.broken is not None
        )


def evaluator_report(evaluator: Measures, problem: Mapping, repeats: int = 5) -> EvaluatorReport:
    """Run an evaluator through a valid plan, the same plan again and again, the plan with all in
    the slowest memory, and a command that is broken."""
    gauge = Gauge(evaluator, repeats=1, warmups=0)
    gauge.evaluator.bind(problem.program, problem.machine)
    report = EvaluatorReport(gauge.name)
    plan, slow = problem.plan(problem.compiler), problem.plan(problem.all_slowest())
    try:
        report.valid_s = gauge.once(plan)
        report.repeated_s = [gauge.once(plan) for _ in range(repeats)]
        report.all_slowest_s = gauge.once(slow)
    except EvaluationError as error:
        report.findings.append(error.message)
    broken = CommandEvaluator(shlex.join([sys.executable, "-c", "raise SystemExit('broken on purpose')"]))
    broken.bind(problem.program, problem.machine)
    try:
        broken(plan)
        report.findings.append("a command that fails passes for one that does not")
    except EvaluationError as error:
        report.broken = error.message
    finally:
        broken.close()
    if report.variation is not None and report.variation > MOST_VARIATION:
        report.findings.append(
            f"the same plan differs by {report.variation:.0%}: raise repeats, or quieten the machine"
        )
    if report.all_slowest_s is not None and report.all_slowest_s < min(report.repeated_s):
        report.findings.append(
            "all in the slowest memory is faster than the compiler's plan: the "
            "machine file and the hardware disagree"
        )
    return report
