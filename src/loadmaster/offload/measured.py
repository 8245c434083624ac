"""`MeasuredOffload`: offload plans with hardware in the loop.

Decisions, plans and rules are those of `Offload`; a value is the median of some measured runs. Only
plans with offsets that pass the checker are run. The simulator is still there (`simulated_ps`), and
the champion is named by `loadmaster.search.champion.remeasure`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import BadPlan, LoadmasterError, Refused
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.offload.model import Int8, Kernels
from loadmaster.offload.problem import GENES, LEADS, Offload, is_vector, options_of, with_room
from loadmaster.offload.residencies import Scheduled
from loadmaster.offload.search import Change
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.search.champion import TIMES, Champion, Leaders, remeasure
from loadmaster.search.evaluator import Measures
from loadmaster.search.measuring import Measuring, kept_evaluator
from loadmaster.search.metaheuristics import Rng
from loadmaster.search.problem import Decision, Scores
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import (
    Budget,
    Meter,
    Observer,
    Solution,
    Solver,
    State,
    generator_state,
    restore_generator,
    solve,
)

PACK_SECONDS = 0.2
"""What is hard to pack is left to others: the hardware's time is dear."""
_PLANS = 64


class MeasuredOffload(Measuring, Offload):
    """`evaluator` takes a plan and returns seconds (`loadmaster.search.evaluator`); see `Measuring`
    for how it is used. `baseline`, what rewards are relative to, is first the plan in which what is
    used again last leaves first."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        evaluator: Measures,
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
        """Finding offsets may take long, and leaders come up again and again."""
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


def measured_again(folder: Path, about: dict[str, Any]) -> MeasuredOffload:
    """What `save` wrote."""
    program, options = load(folder / "program.npz"), about["options"]
    if "kernels" in options:
        options["kernels"] = Kernels.of_json(options["kernels"], program.n_ops)
    return MeasuredOffload(program, read_machine(folder / "machine.toml"), kept_evaluator(about), **options)


_SEEN = 400
_APART = 0.02
"""Share of the gaps in which decisions differ of which both are measured."""


class Archive(Offload):
    """The simulated problem, which remembers the best decisions that a search has tried."""

    def __init__(self, problem: Offload) -> None:
        super().__init__(problem.program, problem.machine, **options_of(problem))
        self.seen = Leaders(_SEEN)

    def evaluate(self, decision: Decision) -> int | None:
        value = super().evaluate(decision)
        if value is not None:
            self.seen.add(decision, value)
        return value

    def distinct(self, first: Decision, count: int) -> list[Decision]:
        """`first` and the best others, those first that differ in more than a few gaps."""
        chosen = [np.asarray(first)]
        others = [each for each in self.seen.decisions() if is_vector(each) and self.admits(each)]
        for least in (max(2.0, _APART * self.gaps), 0.5):
            for each in others:
                if len(chosen) >= count:
                    return chosen
                if all(_apart(each, known) > least for known in chosen):
                    chosen.append(each)
        return chosen


class Refined(Solver):
    """`simulated` evaluations of the solver `base` in the simulator, then measurements: of `kept`
    distinct decisions, then of changes, the best of `screened` by the simulator every other time."""

    name, problem_kind = "refined", "offload"
    summary = "a simulated search, then its best plans and their neighbours measured (--evaluator)"
    deterministic = False  # hardware is not

    def __init__(
        self,
        base: str = "auto",
        simulated: int = 4_000,
        seconds: float = 30.0,
        kept: int = 12,
        screened: int = 16,
    ) -> None:
        if min(simulated, kept, screened) < 1 or seconds <= 0:
            raise ValueError("simulated, seconds, kept and screened must be above 0")
        self.base, self.simulated, self.seconds = base, simulated, seconds
        self.kept, self.screened = kept, screened
        self.candidates: list[Decision] | None = None
        """What a simulated search has found elsewhere, its champion first; None: it is made."""
        self.options = {
            "base": base,
            "simulated": simulated,
            "seconds": seconds,
            "kept": kept,
            "screened": screened,
        }

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        if not isinstance(problem, MeasuredOffload):
            raise LoadmasterError(
                "'refined' ends on hardware and there is none to measure on",
                object=self.name,
                remedy="give --evaluator, or --solver auto",
            )
        archive = Archive(problem)
        rng = np.random.default_rng(seed) if state is None else restore_generator(state["rng"])
        if state is None:
            candidates = self.candidates or self.prepared(archive, seed)
            problem.rebase(candidates[0])
            current, reward = self._measured(meter, candidates)
        else:
            current, reward = np.array(state["current"]), float(state["reward"])
            problem.rebase(state["baseline"])
        if current is not None and not meter.exhausted:
            self._climb(meter, archive, current, reward, rng)
        return meter.solution(simulated=archive.evaluate(problem.baseline))

    def prepared(self, archive: Archive, seed: int) -> list[Decision]:
        """What the simulator thinks is best, and what else to measure."""
        found = solve(
            make_labelled("offload", self.base), archive, Budget(self.simulated, self.seconds), seed
        )
        if found.decision is None:
            raise LoadmasterError(
                f"the simulated search found no plan for '{archive.program.name}'",
                object=archive.program.name,
                number=found.evaluations,
                remedy="give more capacity, or --set simulated=20000",
            )
        return archive.distinct(found.decision, self.kept)

    def _measured(self, meter: Meter, candidates: list[Decision]) -> tuple[Int8 | None, float]:
        """The best vector of the candidates, and its reward."""
        best: tuple[Int8 | None, float] = (None, -np.inf)
        for decision in candidates:
            if meter.exhausted:
                break
            reward = _reward(meter, decision)
            if is_vector(decision) and reward > best[1]:
                best = (np.asarray(decision, dtype=np.int8), reward)
        return best

    def _climb(self, meter: Meter, archive: Archive, current: Int8, reward: float, rng: Rng) -> None:
        """Changes one at a time. How early copies are issued comes first: a simulator knows least
        about what that gains."""
        change = Change(archive)
        leads = [lead for lead in range(len(LEADS)) if lead != int(current[-GENES])]
        tried = {current.tobytes()}
        while not meter.exhausted:
            if leads:
                trial = current.copy()
                trial[-GENES] = leads.pop()
            else:
                trial = self._trial(archive, change, current, tried, rng)
            if trial.tobytes() in tried:
                if len(tried) > 2**archive.gaps:  # a tiny problem: everything was measured
                    return
                continue
            tried.add(trial.tobytes())
            new = _reward(meter, trial)
            if new > reward and not meter.exhausted:  # luck is not enough: it must be better twice
                new = (new + _reward(meter, trial)) / 2
            if new > reward:
                current, reward = trial, new
            meter.checkpoint(
                {
                    "rng": generator_state(rng),
                    "current": current,
                    "reward": np.array(reward),
                    "baseline": meter.problem.baseline,  # type: ignore[attr-defined]
                }
            )
            meter.progress(reward=reward)

    def _trial(self, archive: Archive, change: Change, current: Int8, tried: set[bytes], rng: Rng) -> Int8:
        count = self.screened if rng.random() < 0.5 else 1
        trials = [change(rng, current) for _ in range(count)]
        fresh = [trial for trial in trials if trial.tobytes() not in tried] or trials
        return min(fresh, key=lambda trial: archive.evaluate(trial) or np.inf)


@dataclass(frozen=True)
class Refinement:
    """What hardware in the loop has gained."""

    leaders: Champion
    """The best that were found in turns with the simulator's champion."""
    champion: Champion
    """The best of those alone with the simulator's champion, measured anew: the best of several is
    better than it looked by luck alone."""
    decision: Decision
    """What to use: the winner if it is surely faster, else the simulator's champion."""
    simulated_ps: int
    """What the simulator says of its own champion."""
    bound_ps: int
    evaluations: int
    measurements: int
    failures: int

    @property
    def gained(self) -> bool:
        """Whether the winner is faster than the simulator's champion, beyond doubt."""
        return self.champion.gained

    def as_json(self) -> dict[str, Any]:
        return {
            **self.champion.as_json(),
            "gained": self.gained,
            "candidates": len(self.leaders.candidates),
            "baseline_simulated_ps": self.simulated_ps,
            "bound_ps": self.bound_ps,
            "evaluations": self.evaluations,
            "measurements": self.measurements,
            "failures": self.failures,
        }


def refine(
    problem: MeasuredOffload,
    budget: Budget,
    seed: int = 0,
    *,
    solver: Refined | None = None,
    observer: Observer | None = None,
    times: int = TIMES,
    together: int = 1,
    leaders: int = 5,
    first_times: int | None = None,
) -> Refinement:
    """Search, refine, measure the leaders again in turns with the simulator's champion (`first_times`,
    else `times`), then the best of them once more. `together`: see `remeasure`."""
    solution = solve(solver or Refined(), problem, budget, seed, observer)
    candidates = problem.leaders.decisions()[:leaders]
    first = remeasure(problem, candidates, times=first_times or times, seed=seed, together=together)
    assert first.winner.decision is not None
    champion = remeasure(problem, [first.winner.decision], times=times, seed=seed + 1, together=together)
    return Refinement(
        first,
        champion,
        first.winner.decision if champion.gained else problem.baseline,
        problem.simulated_ps(problem.baseline),
        Offload.bound(problem).value,
        solution.evaluations,
        problem.measurements,
        problem.failures,
    )


def _reward(meter: Meter, decision: Decision) -> float:
    return float(meter.evaluate_many(np.asarray(decision)[None]).reward[0])


def _apart(one: Decision, other: Decision) -> float:
    """In how many genes two decisions differ; the rows of a plan differ from every vector."""
    if not (is_vector(one) and is_vector(other)):
        return np.inf
    return float(np.count_nonzero(np.asarray(one) != np.asarray(other)))
