"""Hardware in the loop: what measured rewards find beside what the simulator found.

Every search gets as many evaluations and as much time as the others, and its best are measured again in
turns with the simulator's plan, in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.suites import Row
from loadmaster.arrays import Int8
from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.offload.heuristics import static_gaps
from loadmaster.offload.measured import MeasuredOffload, Refined
from loadmaster.offload.problem import Offload, is_vector
from loadmaster.offload.search import Anneal
from loadmaster.plan.plan import Plan
from loadmaster.planner import solve_checked
from loadmaster.program.program import Program
from loadmaster.search.champion import Champion, Leaders, remeasure
from loadmaster.search.evaluator import Evaluator
from loadmaster.search.measuring import picoseconds
from loadmaster.search.problem import Decision, Note
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Observer, Solver

MAPPED: Mapping[str, Mapping[str, Any]] = {
    "ageing-evolution": {"population": 12, "sample": 4},
    "annealing": {},
    "egrl": {"batch": 5},
}
"""Black-box searches of the Mapping problem, with populations for few measurements."""
SEARCHES = ("refined", "anneal", *MAPPED)
_LEADERS = 3
_SHARES = (1.0, 0.9, 0.75, 0.6)
"""Of the memory for what is resident for life; the rest is for what streams."""


class FromPlan(Anneal):
    """Annealing from one decision, where the simulator ended; not from rules."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = np.asarray(decision, dtype=np.int8)

    def seed(self, meter: Meter, problem: Offload) -> list[tuple[int, Int8]]:
        value = meter.evaluate(self.decision)
        return [] if value is None or not problem.gaps else [(value, self.decision)]


class _Seen(Observer):
    """Remembers what was measured."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.values: list[int] = []

    def noted(self, meter: Meter, note: Note) -> None:
        if note.what == self.what and note.seconds:
            self.values.append(picoseconds(float(np.median(note.seconds))))


class _Turns:
    """Plans that an evaluator measures in turns with a baseline: their numbers are the decisions."""

    def __init__(self, evaluator: Evaluator, baseline: Plan, plans: Sequence[Plan]) -> None:
        self.evaluator, self.baseline, self.plans = evaluator, baseline, plans
        self.leaders = Leaders()

    def admits(self, decision: Decision) -> bool:
        return True

    def sample(self, decision: Decision | None, number: int) -> int:
        plan = self.baseline if decision is None else self.plans[int(decision[0])]
        return picoseconds(self.evaluator(plan))

    def simulated_ps(self, decision: Decision) -> int:
        return 0  # not known of maps


def in_turns(
    evaluator: Evaluator, baseline: Plan, plans: Sequence[Plan], times: int, together: int, seed: int = 0
) -> tuple[int, Champion]:
    """(the number of the fastest plan, how it compares with the baseline)"""
    numbers = [np.array([number]) for number in range(len(plans))]
    found = remeasure(_Turns(evaluator, baseline, plans), numbers, times=times, seed=seed, together=together)
    assert found.winner.decision is not None
    return int(found.winner.decision[0]), found


@dataclass(frozen=True)
class Loop:
    """One model under one budget with something that measures."""

    case: str
    program: Program
    machine: Machine
    evaluator: Evaluator
    candidates: Sequence[Decision]
    """Of a simulated search, its champion first."""
    options: Mapping[str, Any]
    """Of the offload problem: what kernels need."""
    evaluations: int = 30
    seconds: float = 60.0
    """Of each search, without what is measured again after it."""
    repeats: int = 2
    times: int = 20
    together: int = 4

    def row(self, search: str, seed: int = 0) -> Row:
        """Run one search, and measure its best again."""
        began = time.perf_counter()
        about: dict[str, Any] = {"machine": self.machine.name, "solver": f"{search}+hardware", "seed": seed}
        try:
            value, base, evaluations, extra = self._run(search, seed)
        except LoadmasterError as error:
            return Row(
                self.case,
                -1.0,
                "ps",
                "failed",
                seconds=time.perf_counter() - began,
                extra={"kind": "loop", "reason": error.message},
                **about,
            )
        bound = float(self._simulated().bound().value)
        return Row(
            self.case,
            value,
            "ps",
            "ok",
            evaluations=evaluations,
            seconds=time.perf_counter() - began,
            baseline=base,
            bound=bound,
            gap=value / bound - 1 if bound else None,
            extra={"kind": "loop", **extra},
            **about,
        )

    def _run(self, search: str, seed: int) -> tuple[float, float, int, dict[str, Any]]:
        """(winner's time, the simulator's plan's, evaluations, the rest)"""
        began = time.perf_counter()
        problem, solver = self._mapping(search) if search in MAPPED else self._offload(search)
        try:
            seen = _Seen(problem.what)
            limits = Budget(self.evaluations, self.seconds)
            found = solve_checked(problem, solver, limits, seed, observer=seen).solution
            searched = time.perf_counter() - began
            leaders = problem.leaders.decisions()[:_LEADERS]
            if not leaders:
                raise LoadmasterError(
                    "no plan of the search ran",
                    object=search,
                    number=problem.failures,
                    remedy="give more capacity",
                )
            plans = [problem.plan(each) for each in leaders]
            baseline = self._simulated().plan(self.candidates[0])
            best, _ = in_turns(self.evaluator, baseline, plans, 2 * self.together, self.together, seed)
            _, champion = in_turns(
                self.evaluator, baseline, [plans[best]], self.times, self.together, seed + 1
            )
        finally:
            problem.close()
        stated = champion.as_json()
        stated |= {
            "first_ps": next(iter(seen.values), None),
            "best_ps": found.value,
            "measured_plans": len(seen.values),
            "search_seconds": searched,
            "gained": champion.speedup.low > 1,
            "candidates": len(leaders),
            "measurements": problem.measurements,
            "failures": problem.failures,
            "simulated_ps": None if search in MAPPED else problem.simulated_ps(leaders[best]),
            "baseline_simulated_ps": self._simulated().evaluate(self.candidates[0]),
        }
        return stated["median_ps"], stated["baseline_ps"], found.evaluations, stated

    def _simulated(self) -> Offload:
        return Offload(self.program, self.machine, **self.options)

    def _offload(self, search: str) -> tuple[MeasuredOffload, Solver]:
        problem = MeasuredOffload(
            self.program, self.machine, self.evaluator, repeats=self.repeats, warmups=0, **self.options
        )
        problem.rebase(self.candidates[0])
        if search == "anneal":
            return problem, FromPlan(next(each for each in self.candidates if is_vector(each)))
        solver = Refined()
        solver.candidates = list(self.candidates)
        return problem, solver

    def _mapping(self, search: str) -> tuple[MeasuredMapping, Solver]:
        # Every map is made to fit: few measurements are too precious for penalties.
        problem = MeasuredMapping(
            self.program,
            self.machine.with_reach("all"),
            self.evaluator,
            repeats=self.repeats,
            warmups=0,
            invalid="repair",
        )
        solver: Any = make_labelled("mapping", search, dict(MAPPED[search]))
        solver.start = static_map(problem, self._simulated())
        return problem, solver


def static_map(mapping: MeasuredMapping, simulated: Offload) -> Int8:
    """The map of the simulator's best plan in which each tensor is resident for life or evicted after every use."""
    model = simulated.model
    keeps = [static_gaps(simulated, share) for share in _SHARES]
    keep = min(keeps, key=lambda each: simulated.evaluate(simulated.vector(each)) or 2**62)
    resident = np.ones(model.items, dtype=bool)
    resident[model.gap_item[~keep]] = False
    memory = np.full(simulated.program.n_tensors, -1, dtype=np.int64)
    memory[model.root[resident]] = model.fast
    legal: Int8 = mapping.rectify(mapping.of_tensors(memory)[None])[2][0]
    return legal


def loop_rows(
    loop: Loop, searches: Sequence[str], left: Callable[[], float], keep: Callable[[Row], None]
) -> None:
    """Each search in turn, as long as there is time; `keep` gets each row when it is there."""
    for number, search in enumerate(searches):
        if left() < 0:
            return print(f"time is up: {', '.join(searches[number:])} not run on {loop.case}", flush=True)
        keep(loop.row(search))
