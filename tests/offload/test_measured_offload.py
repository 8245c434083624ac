"""Offload plans with hardware in the loop: what reaches it, what it is worth, and what is gained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.measured import Archive, MeasuredOffload, Refined, refine
from loadmaster.offload.problem import Offload, with_room
from loadmaster.plan import Plan
from loadmaster.runs import run_solver
from loadmaster.search.champion import remeasure
from loadmaster.search.evaluator import EvaluationError, Evaluator
from loadmaster.search.problem import Bound
from loadmaster.search.registry import load_problem, make_labelled
from loadmaster.search.solver import Budget, Meter, solve
from loadmaster.simulate import simulate
from offload_stack import LAYER_BYTES, gpu, stack

PROGRAM = stack(layers=6)
MACHINE = gpu(4 * LAYER_BYTES)


class Hardware(Evaluator):
    """Behaves as the simulator of a machine says, with noise; can fail."""

    name = "hardware"

    def __init__(self, machine: Any = MACHINE, noise: float = 0.0, fails: Any = None) -> None:
        self.machine, self.noise, self.fails = machine, noise, fails
        self.rng, self.calls = np.random.default_rng(1), 0

    def true_ps(self, plan: Plan) -> int:
        return int(simulate(PROGRAM, self.machine, plan).total_ps)

    def __call__(self, plan: Plan, /) -> float:
        self.calls += 1
        if self.fails is not None and self.fails(self.calls):
            raise EvaluationError("it is on fire", object=self.name, remedy="put it out")
        return self.true_ps(plan) / 1e12 * max(0.5, 1 + self.noise * self.rng.standard_normal())


def slower_link(factor: float) -> Any:
    """A machine whose link from the host is not what the machine file says."""
    links = tuple(replace(link, bandwidth=int(link.bandwidth / factor)) for link in MACHINE.links)
    return replace(MACHINE, links=links)


def some(problem: Offload, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return problem.vector(rng.random(problem.gaps) < 0.5, int(rng.integers(8)))


def test_values_are_measured_and_rewards_are_relative_to_the_baseline() -> None:
    hardware = Hardware()
    problem = MeasuredOffload(PROGRAM, MACHINE, hardware)
    plain = Offload(PROGRAM, MACHINE)
    decision = with_room(plain, some(plain, 0))
    assert decision is not None
    value = problem.evaluate(decision)
    assert value == plain.evaluate(decision) == problem.simulated_ps(decision)
    calls = hardware.calls
    assert problem.evaluate(decision) == value and hardware.calls == calls, "known already"
    scores = problem.score(np.stack([decision, problem.baseline]))
    assert scores.reward[1] == pytest.approx(1.0)
    base = hardware.true_ps(problem.plan(problem.baseline))
    assert scores.reward[0] == pytest.approx((base / value) ** 2)
    assert problem.bound() == Bound(0, "none: measured") and not problem.repeatable
    assert {note.what for note in problem.take_notes()} == {"baseline", "plan"}
    problem.rebase(decision)
    assert problem.score(decision[None]).reward[0] == pytest.approx(1.0)


def test_what_has_no_sound_plan_never_reaches_the_hardware() -> None:
    hardware = Hardware()
    problem = MeasuredOffload(PROGRAM, MACHINE, hardware)
    rows = problem.decision(problem.plan(problem.baseline))
    broken = np.array(rows)[1:]  # a tensor that is used is nowhere
    assert problem.evaluate(broken) is None and hardware.calls == 0
    assert problem.evaluate(rows) is not None and hardware.calls > 0


def test_a_failure_costs_one_evaluation_and_many_end_the_run() -> None:
    hardware = Hardware(fails=lambda call: 7 < call <= 14)
    problem = MeasuredOffload(PROGRAM, MACHINE, hardware)
    decision = with_room(problem, some(problem, 3))
    assert decision is not None
    scores = problem.score(decision[None])
    assert scores.failed is not None and scores.failed[0] and scores.value[0] == -1
    assert scores.reward[0] == -1 and problem.failures == 1
    broken = MeasuredOffload(PROGRAM, MACHINE, Hardware(fails=lambda call: call > 7))
    meter = Meter(broken, Budget(200))
    assert make_labelled("offload", "evolution").run(meter, 0, None).value is None
    with pytest.raises(LoadmasterError, match="20 measurements in a row failed"):
        make_labelled("offload", "anneal").run(meter, 0, None)


@pytest.mark.parametrize("name", ["anneal", "evolution"])
def test_searches_of_the_offload_problem_learn_from_measurements(name: str) -> None:
    hardware = Hardware(slower_link(2.0), noise=0.002)
    problem = MeasuredOffload(PROGRAM, MACHINE, hardware, repeats=3, warmups=0)
    solution = solve(make_labelled("offload", name), problem, Budget(120), seed=1)
    assert solution.decision is not None and solution.evaluations == 120
    champion = remeasure(problem)
    assert champion.speedup.low > 1, "better than what leaves by need alone"


def test_the_hardware_finds_what_the_simulator_does_not_know() -> None:
    """The link is three times slower than the machine file says: other plans are best."""
    hardware = Hardware(slower_link(3.0), noise=0.003)
    problem = MeasuredOffload(PROGRAM, MACHINE, hardware, repeats=3, warmups=0)
    found = refine(problem, Budget(120), solver=Refined(simulated=300), times=10)
    assert found.gained and found.champion.speedup.low > 1
    assert found.decision is found.champion.winner.decision
    best, start = (hardware.true_ps(problem.plan(d)) for d in (found.decision, problem.baseline))
    assert best < start
    interval = found.champion.winner.time_ps
    assert interval.low <= interval.middle <= interval.high
    assert interval.low * 0.99 <= best <= interval.high * 1.01
    told = found.as_json()
    assert told["gained"] and told["evaluations"] == 120
    assert told["measurements"] == problem.measurements


def test_where_the_simulator_is_right_nothing_is_left() -> None:
    """Enough room for everything: whatever is found is noise."""
    machine = gpu(40 * LAYER_BYTES)
    problem = MeasuredOffload(PROGRAM, machine, Hardware(machine, noise=0.02), repeats=1, warmups=0)
    found = refine(problem, Budget(30), solver=Refined(simulated=50), times=20, together=2)
    assert not found.gained
    assert np.array_equal(found.decision, problem.baseline)
    assert found.simulated_ps >= Offload(PROGRAM, machine).limit_ps
    assert found.champion.speedup.low <= 1 and len(found.leaders.candidates) == 5


def test_candidates_are_distinct_and_the_champion_is_first() -> None:
    archive = Archive(Offload(PROGRAM, MACHINE))
    champion = solve(make_labelled("offload", "auto"), archive, Budget(150)).decision
    found = archive.distinct(champion, 8)
    assert np.array_equal(found[0], champion) and 2 <= len(found) <= 8
    assert len({np.asarray(each).tobytes() for each in found}) == len(found)


def test_refined_needs_hardware() -> None:
    with pytest.raises(LoadmasterError, match="there is none to measure on"):
        solve(Refined(), Offload(PROGRAM, MACHINE), Budget(5))


def test_a_run_can_be_kept_and_resumed(tmp_path: Path) -> None:
    problem = MeasuredOffload(PROGRAM, MACHINE, Hardware(noise=0.01), repeats=1, warmups=0)
    solver = Refined(simulated=60)
    first = run_solver(solver, problem, Budget(20), folder=tmp_path, checkpoint_seconds=0.0)
    run = first.run
    again = load_problem(run)
    assert isinstance(again, MeasuredOffload) and again.gauge.repeats == 1
    with pytest.raises(EvaluationError, match="is only recorded"):
        again.gauge.once(again.plan(again.baseline))
    other = MeasuredOffload(PROGRAM, MACHINE, Hardware(noise=0.01), repeats=1, warmups=0)
    second = run_solver(solver, other, Budget(30), resume=run)
    assert second.evaluations == 30


def test_measurements_in_a_row_are_drawn_together() -> None:
    """Rounds that differ from each other must widen the interval, however many values they have."""

    class Weather(Hardware):
        def __call__(self, plan: Plan, /) -> float:
            self.calls += 1
            return 1.0 + 0.1 * ((self.calls - 1) // 5 % 2)

    problem = MeasuredOffload(PROGRAM, MACHINE, Weather())
    decision = with_room(problem, some(problem, 5))
    assert decision is not None
    champion = remeasure(problem, [decision], times=20, together=5, seed=3)
    assert len(champion.winner.samples_ps) == 20
    with pytest.raises(ValueError, match="multiple"):
        remeasure(problem, [decision], times=20, together=6)


def test_the_mapping_problem_is_measured_on_such_a_machine_too() -> None:
    """EGRL, annealing and ageing evolution see nothing but measured rewards."""
    calls: list[Plan] = []

    def hardware(plan: Plan) -> float:
        calls.append(plan)
        held = sum(int(PROGRAM.storage_bytes[row.tensor]) for row in plan.residency_rows if row.memory == 0)
        return 1.0 - held / 1e12

    problem = MeasuredMapping(PROGRAM, MACHINE.with_reach("all"), hardware, repeats=1, warmups=0)
    for name, options in (("annealing", {}), ("ageing-evolution", {"population": 8, "sample": 4})):
        solution = solve(make_labelled("mapping", name, options), problem, Budget(40))
        assert solution.decision is not None and solution.value is not None
    assert isinstance(problem, Mapping) and len(calls) > 60
