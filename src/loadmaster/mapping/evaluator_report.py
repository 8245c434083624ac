"""`evaluator_report`: what to know of an evaluator before a search depends on it."""

from __future__ import annotations

import shlex
import statistics
import sys
from dataclasses import dataclass, field

from loadmaster.mapping.problem import Mapping
from loadmaster.search.evaluator import CommandEvaluator, EvaluationError, Evaluator, Gauge

SPREAD = 0.1


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
    def spread(self) -> float | None:
        """(largest - smallest) / median of the same plan."""
        values = self.repeated_s
        return (max(values) - min(values)) / statistics.median(values) if values else None

    @property
    def ok(self) -> bool:
        """It measures plans; findings may still be worth reading."""
        return (
            self.valid_s is not None
            and self.all_slowest_s is not None
            and bool(self.repeated_s)
            and self.broken is not None
        )


def evaluator_report(evaluator: Evaluator, problem: Mapping, repeats: int = 5) -> EvaluatorReport:
    """Run an evaluator through a valid plan, the same plan again and again, the plan with all in
    the slowest memory, and a command that is broken."""
    gauge = Gauge(evaluator, repeats=1, warmups=0)
    bind = getattr(evaluator, "bind", None)
    if bind is not None:
        bind(problem.program, problem.machine)
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
    if report.spread is not None and report.spread > SPREAD:
        report.findings.append(
            f"the same plan differs by {report.spread:.0%}: raise repeats, or quieten the machine"
        )
    if report.all_slowest_s is not None and report.all_slowest_s < min(report.repeated_s):
        report.findings.append(
            "all in the slowest memory is faster than the compiler's plan: the "
            "machine file and the hardware disagree"
        )
    return report
