"""`MeasuredOffload`: offload plans with hardware in the loop.

Decisions, plans and rules are those of `Offload`; a value is the median of some measured runs. Only
plans with offsets that pass the checker are run. The simulator is still there (`simulated_ps`), and
the champion is named by `loadmaster.search.champion.remeasure`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import BadPlan, Refused
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.offload.kernels import Kernels
from loadmaster.offload.problem import Offload, is_vector
from loadmaster.offload.residencies import Scheduled
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.search.champion import Leaders
from loadmaster.search.evaluator import Evaluator
from loadmaster.search.measuring import Measuring, kept_evaluator
from loadmaster.search.problem import Decision, Scores

SQUEEZES = (0, 2, 5, 10, 16, 24, 32)
"""128ths of the memory that are left unused, one after another, until offsets are found."""
PACK_SECONDS = 0.2
"""What is hard to pack is hardly worth the hardware's time."""
_PLANS = 64


class MeasuredOffload(Measuring, Offload):
    """`evaluator` takes a plan and returns seconds (`loadmaster.search.evaluator`); see `Measuring`
    for how it is used. `baseline`, what rewards are relative to, is first the plan in which what is
    used again last leaves first."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        evaluator: Evaluator,
        *,
        repeats: int = 5,
        warmups: int = 2,
        baseline_every: int = 50,
        power: float = 2.0,
        reserve: int = 0,
        kernels: Kernels | None = None,
    ) -> None:
        Offload.__init__(self, program, machine, reserve=reserve, kernels=kernels)
        self.power = power
        self.leaders = Leaders()
        """The best distinct decisions that a search has submitted."""
        self._baseline: Decision | None = None
        self._latest: dict[str, int] = {}
        self._plans: dict[bytes, Plan] = {}
        self.start_measuring(program, evaluator, repeats, warmups, baseline_every)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "power": self.power, **self.measured_options()}

    @property
    def baseline(self) -> Decision:
        if self._baseline is None:
            found = with_room(self, self.vector(np.ones(self.gaps, dtype=bool)))
            if found is None:
                raise Refused(
                    f"no offsets were found for a plan of '{self.program.name}'",
                    object=self.program.name,
                    remedy="give more capacity",
                )
            self._baseline = found
        return self._baseline

    def rebase(self, baseline: Decision) -> None:
        """Rewards are relative to this decision from now on; it is measured when next needed."""
        self._baseline = np.array(baseline)
        self.baselines.clear()

    def baseline_plan(self) -> Plan:
        return self.plan(self.baseline)

    def plan(self, decision: Decision) -> Plan:
        """Finding offsets may take long, and leaders are asked for again and again."""
        key = np.ascontiguousarray(decision).tobytes()
        if key not in self._plans:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[key] = Offload.plan(self, decision)
        return self._plans[key]

    def with_offsets(self, made: Scheduled, seconds: float = PACK_SECONDS) -> Plan | None:
        return Offload.with_offsets(self, made, seconds)

    def score(self, decisions: Decision | Sequence[Decision], first: int = 0) -> Scores:
        """Measured values and rewards; the reward of a failure, or of what can't be run, is -1."""
        sound = [self._sound_plan(decision) for decision in decisions]
        runs = np.array([isinstance(plan, Plan) for plan in sound], dtype=bool)
        scores = self.measured_scores(sound.__getitem__, runs, np.full(len(sound), -1.0), first, self.power)
        for plan, value in zip(sound, scores.value.tolist(), strict=True):
            if isinstance(plan, Plan) and value >= 0:
                self._latest[plan.hash] = value
        return scores

    def evaluate(self, decision: Decision) -> int | None:
        """The latest median of its plan if that has been measured, else it is measured now; None if
        there is no sound plan, or the measurement failed."""
        plan = self._sound_plan(decision)
        if isinstance(plan, str):
            return None
        known = self._latest.get(plan.hash)
        if known is None:
            known = int(self.score([decision], self._scored).value[0])
        return None if known < 0 else known

    def simulated_ps(self, decision: Decision) -> int:
        return Offload.evaluate(self, decision) or 0

    def recall(self, decision: Decision, value: int) -> None:
        """A search has submitted this decision, or an earlier session of it had: a candidate."""
        self.leaders.add(decision, value)

    def save(self, folder: Path) -> None:
        about = self.measured_about()
        about["options"] |= {"power": self.power, **Offload.options(self)}
        (folder / "problem.json").write_text(json.dumps(about), encoding="utf-8")

    def _sound_plan(self, decision: Decision) -> Plan | str:
        """The plan, or why it is not run."""
        if is_vector(decision) and not self.admits(decision):
            return "it has no offsets"
        try:
            plan = self.plan(decision)
            violations = self.violations(plan)
        except BadPlan as error:
            return error.message
        return f"the checker refuses it: {violations[0]}" if violations else plan


def with_room(problem: Offload, decision: Decision) -> Decision | None:
    """The vector with as little memory left unused as lets offsets be found; None: none were."""
    for squeeze in SQUEEZES:
        tried = np.array(decision)
        tried[-1] = max(squeeze, int(tried[-1]))
        if problem.admits(tried):
            return tried
    return None


def options_of(problem: Offload) -> dict[str, Any]:
    """What makes another problem about the same decisions."""
    return {"reserve": problem.reserve, "kernels": problem.kernels}


def measured_again(folder: Path, about: dict[str, Any]) -> MeasuredOffload:
    """What `save` wrote."""
    program, options = load(folder / "program.npz"), about["options"]
    if "kernels" in options:
        options["kernels"] = Kernels.of_json(options["kernels"], program.n_ops)
    return MeasuredOffload(program, read_machine(folder / "machine.toml"), kept_evaluator(about), **options)
