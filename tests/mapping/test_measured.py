"""Hardware in the loop: what reaches it, what failures cost, runs, and the champion's rule."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import Plan
from loadmaster.program import Builder, Program
from loadmaster.runs import History, RunFolder, run_solver
from loadmaster.runs.compare import read_side
from loadmaster.runs.replay import replay
from loadmaster.search.champion import Leaders, remeasure
from loadmaster.search.evaluator import CommandEvaluator, EvaluationError, Evaluator
from loadmaster.search.problem import Bound, keys
from loadmaster.search.registry import load_problem
from loadmaster.search.solver import (
    Budget,
    Meter,
    Solution,
    Solver,
    State,
    Status,
    generator_state,
    restore_generator,
)

MACHINE = load_machine("nnp-i")


def chain(nodes: int = 6, size: int = 2**20) -> Program:
    build = Builder("chain")
    x = build.tensor("x", bytes=64, kind="input")
    for i in range(nodes):
        w = build.tensor(f"w{i}", bytes=size, kind="weight")
        y = build.tensor(f"y{i}", bytes=size, kind="output" if i == nodes - 1 else "activation")
        build.op(f"op{i}", "matmul", reads=[x, w], writes=[y], matrix=1000)
        x = y
    return build.build()


PROGRAM = chain()


class Hardware(Evaluator):
    """Takes 1 ms and 1 ms for each tensor outside of memory 0, with a bit of noise if asked to."""

    name = "hardware"

    def __init__(self, noise: float = 0.0, fails: Any = None) -> None:
        self.calls: list[str] = []
        self.noise, self.fails, self.rng = noise, fails, np.random.default_rng(1)

    def seconds(self, plan: Plan) -> float:
        slow = sum(row.memory != 0 for row in plan.residency_rows)
        return 1e-3 * (1 + slow) * max(0.5, 1 + self.noise * float(self.rng.standard_normal()))

    def __call__(self, plan: Plan, /) -> float:
        self.calls.append(plan.hash)
        if self.fails is not None and self.fails(len(self.calls)):
            raise EvaluationError("it is on fire", object=self.name, remedy="put it out")
        return self.seconds(plan)


class RandomMaps(Solver):
    """Random maps, now and then two at a time; goes on where it was."""

    name = "random-maps"
    problem_kind = "mapping"
    summary = "for tests"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem: Any = meter.problem
        rng = np.random.default_rng(seed) if state is None else restore_generator(state["rng"])
        while not meter.exhausted:
            maps = rng.integers(3, size=(1 + meter.evaluations % 2, 2 * problem.nodes))
            meter.evaluate_many(maps.astype(np.int8))
            meter.checkpoint({"rng": generator_state(rng)})
        return meter.solution()


def maps_of(problem: Mapping, count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.integers(3, size=(count, 2 * problem.nodes)).astype(np.int8)


def test_values_are_medians_and_rewards_use_the_baseline() -> None:
    hardware = Hardware()
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware)
    scores = problem.score(np.stack([problem.all_slowest(), problem.compiler]))
    slow, fast = (hardware.seconds(problem.plan(m)) for m in (problem.all_slowest(), problem.compiler))
    assert scores.value.tolist() == [round(slow * 1e12), round(fast * 1e12)]
    assert scores.reward[0] == pytest.approx((fast / slow) ** 2) and scores.reward[1] == 1
    assert scores.failed is not None and not scores.failed.any()
    assert len(hardware.calls) == 3 * 7 and problem.measurements == 3 * 5
    assert problem.compiler_ps == round(fast * 1e12)
    assert problem.bound() == Bound(0, "none: measured") and problem.unit == "ps"
    notes = problem.take_notes()
    assert [note.what for note in notes] == ["baseline", "map", "map"]
    assert [len(note.seconds) for note in notes] == [5, 5, 5] and not problem.take_notes()


def test_the_median_is_not_moved_by_an_outlier_nor_by_a_slow_start() -> None:
    times = iter([1.0] * 7 + [9.0, 9.0, 2.0, 2.1, 50.0, 1.9, 2.0])
    problem = MeasuredMapping(PROGRAM, MACHINE, lambda plan: next(times))
    assert problem.score(problem.compiler[None]).value[0] == 2 * 10**12


@pytest.mark.parametrize("invalid", ["penalty", "repair"])
def test_only_legal_checked_plans_reach_the_hardware(invalid: str) -> None:
    seen: list[Plan] = []

    def hardware(plan: Plan) -> float:
        seen.append(plan)
        return 1e-3

    # SRAM holds 4 of its 12 tensors.
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware, repeats=1, warmups=0, invalid=invalid)
    maps = maps_of(problem, 60)
    maps[:20] = 0
    scores = problem.score(maps)
    _, epsilon, rectified = problem.rectify(maps)
    legal = epsilon == 0
    assert 0 < legal.sum() < 60
    runs = np.ones(60, dtype=bool) if invalid == "repair" else legal
    assert (scores.value[runs] == 10**9).all() and (scores.value[~runs] == -1).all()
    assert np.array_equal(scores.reward[~runs], -epsilon[~runs])
    baselines = len(problem.baselines)
    assert len(seen) == runs.sum() + baselines
    assert all(not problem.violations(plan) for plan in seen)
    wanted = {problem.plan(row).hash for row in rectified[runs]} | {problem.plan(problem.compiler).hash}
    assert {plan.hash for plan in seen} == wanted


def test_a_map_without_offsets_is_a_failure_that_is_not_measured(monkeypatch: Any) -> None:
    hardware = Hardware()
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware, repeats=1, warmups=0)
    problem.score(problem.compiler[None])
    calls = len(hardware.calls)
    monkeypatch.setattr(problem, "_offsets", lambda legal: None)
    scores = problem.score(problem.all_slowest()[None])
    assert scores.failed is not None and scores.failed[0] and scores.reward[0] == -1
    assert len(hardware.calls) == calls


def test_a_failure_costs_one_evaluation_and_says_why() -> None:
    hardware = Hardware(fails=lambda call: call == 9)  # the second run of the first map
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware)
    scores = problem.score(np.stack([problem.all_slowest()] * 3))
    assert scores.failed is not None and scores.failed.tolist() == [True, False, False]
    assert scores.value[0] == -1 and scores.reward[0] == -1 and (scores.value[1:] > 0).all()
    assert len(hardware.calls) == 7 + 2 + 7 + 7  # a failed map is not tried again
    note = problem.take_notes()[1]
    assert note.message is not None and "on fire" in note.message and "nnp-i" in note.message
    assert problem.failures == 1


def test_twenty_failures_in_a_row_end_it_and_nineteen_do_not() -> None:
    for bad, ends in ((19, False), (20, True)):
        hardware = Hardware(fails=lambda call, bad=bad: 1 < call <= 1 + bad)
        problem = MeasuredMapping(PROGRAM, MACHINE, hardware, repeats=1, warmups=0)
        maps = np.stack([problem.all_slowest()] * 30)
        if ends:
            with pytest.raises(LoadmasterError, match=r"20 measurements in a row failed.*on fire"):
                problem.score(maps)
            assert len(hardware.calls) == 21
        else:
            scores = problem.score(maps)
            assert scores.failed is not None and scores.failed.sum() == 19


def test_a_baseline_that_fails_at_the_start_is_an_error_at_once() -> None:
    problem = MeasuredMapping(PROGRAM, MACHINE, Hardware(fails=lambda call: True))
    with pytest.raises(EvaluationError, match=r"baseline can't be measured.*on fire"):
        problem.score(problem.compiler[None])


def test_the_baseline_is_measured_every_so_often_and_its_drift_is_told() -> None:
    class Drifting(Hardware):
        def baseline(self, board: int = 0) -> float:
            self.calls.append("baseline")
            return 1.0 if self.calls.count("baseline") <= 2 else 1.5

    hardware = Drifting()
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware, repeats=1, warmups=0, baseline_every=10)
    first = problem.score(np.stack([problem.all_slowest()] * 25))
    second = problem.score(np.stack([problem.all_slowest()] * 6), 25)
    assert problem.baselines == [(1.0,), (1.0,), (1.5,), (1.5,)]
    where = [i for i, call in enumerate(hardware.calls) if call == "baseline"]
    assert where == [0, 11, 22, 33]
    slow = first.value[0] / 1e12
    assert first.reward[19] == pytest.approx(slow**-2)
    assert first.reward[20] == pytest.approx((1.5 / slow) ** 2) == second.reward[5]
    drifts = [note.message for note in problem.take_notes() if note.what == "baseline"]
    assert drifts[:2] == [None, None] and "+50.0%" in str(drifts[2]) and drifts[3] is None


def test_boards_are_held_to_their_own_baselines() -> None:
    class Boards(Hardware):
        boards = 2

        def batch(self, plans: Sequence[Plan]) -> list[float]:
            return [(1 + k % 2) * self.seconds(plan) for k, plan in enumerate(plans)]

    problem = MeasuredMapping(PROGRAM, MACHINE, Boards())
    scores = problem.score(np.stack([problem.all_slowest()] * 7))
    assert len(problem.baselines[0]) == 2
    assert np.ptp(scores.reward) < 1e-12 and len(set(scores.value.tolist())) == 2


def test_evaluate_gives_the_latest_median_else_it_measures() -> None:
    hardware = Hardware(noise=0.1)
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware)
    value = problem.evaluate(problem.all_slowest())
    calls = len(hardware.calls)
    assert value is not None and problem.evaluate(problem.all_slowest()) == value
    assert len(hardware.calls) == calls
    again = int(problem.score(problem.all_slowest()[None]).value[0])  # a search measures again
    assert again != value and problem.evaluate(problem.all_slowest()) == again
    assert problem.evaluate(np.zeros(2 * problem.nodes, dtype=np.int8)) is None
    broken = MeasuredMapping(PROGRAM, MACHINE, Hardware(fails=lambda call: call > 7))
    assert broken.evaluate(broken.all_slowest()) is None


def lines_of(solution: Solution) -> list[dict[str, Any]]:
    return RunFolder.open(solution.run).read_log().lines


def test_a_run_logs_what_was_measured_and_can_go_on(tmp_path: Path) -> None:
    hardware = Hardware(noise=0.05, fails=lambda call: call in (30, 60))
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware)
    half = run_solver(
        RandomMaps(),
        problem,
        Budget(40),
        3,
        folder=tmp_path,
        checkpoint_seconds=0.0,
        baselines={"compiler": problem.compiler},
    )
    assert half.status is Status.FEASIBLE and half.gap is None and half.evaluations == 40
    lines = lines_of(half)
    measured = [line for line in lines if line["event"] == "measure"]
    assert sum(len(line["seconds"]) for line in measured) <= problem.measurements
    assert [line["message"] for line in measured if line["message"] and "fire" in line["message"]]
    other = MeasuredMapping(PROGRAM, MACHINE, Hardware(noise=0.05))
    whole = run_solver(RandomMaps(), other, Budget(90), 3, resume=half.run, checkpoint_seconds=0.0)
    assert whole.evaluations == 90 and whole.value is not None and half.value is not None
    assert whole.value <= half.value and not whole.refused
    # What the first session found last stays a candidate of the second.
    kept = [line["value"] for line in lines if line["event"] == "improve"]
    everyone = [other.leaders.value(one) for one in other.leaders.decisions()]
    assert min(everyone) <= kept[-1]
    run = RunFolder.open(half.run)
    assert not replay(run).broken and "measured" in replay(run).warnings[0]
    best = History(run.read_log().lines).best
    assert best is not None
    assert read_side(run.path / "plans" / f"{best['plan']}.json").value == best["value"]


def test_a_crowd_of_failures_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    hardware = Hardware(fails=lambda call: call > 40)
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware, repeats=1, warmups=0)
    with pytest.raises(LoadmasterError, match="20 measurements in a row"):
        run_solver(RandomMaps(), problem, Budget(500), 0, folder=tmp_path)
    (run,) = tmp_path.iterdir()
    lines = RunFolder.open(run).read_log().lines
    assert lines[-1]["event"] == "stop" and lines[-1]["reason"] == "error"
    assert sum("fire" in (line.get("message") or "") for line in lines if line["event"] == "measure") == 20


def test_nothing_in_a_folder_is_run_when_it_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "measure.sh"
    script.write_text("#!/bin/sh\necho run >> count\necho 0.25\n")
    problem = MeasuredMapping(PROGRAM, MACHINE, CommandEvaluator("sh measure.sh", 5.0), repeats=2)
    solution = run_solver(RandomMaps(), problem, Budget(5), folder=tmp_path / "runs")
    assert solution.value == 25 * 10**10
    count = (tmp_path / "count").read_text()
    run = RunFolder.open(solution.run)
    loaded = load_problem(run.path)
    assert isinstance(loaded, MeasuredMapping) and keys(loaded) == keys(problem)
    assert not replay(run).broken and read_side(run.path).value == solution.value
    assert (tmp_path / "count").read_text() == count
    with pytest.raises(EvaluationError, match="what a run names is not run"):
        loaded.evaluate(loaded.all_slowest())
    assert (tmp_path / "count").read_text() == count
    with pytest.raises(EvaluationError, match=r"by 'sh measure\.sh' and not by 'sh other\.sh'"):
        loaded.measure_with(CommandEvaluator("sh other.sh"))
    loaded.measure_with(CommandEvaluator("sh measure.sh", 5.0))  # but it can be, when given again
    assert loaded.evaluate(loaded.all_slowest()) == 25 * 10**10
    assert (tmp_path / "count").read_text() != count and keys(loaded) == keys(problem)
    script.unlink()
    assert not replay(run).broken


@pytest.mark.parametrize("absolute", [False, True])
def test_a_callable_or_an_absolute_path_is_not_made_again(tmp_path: Path, absolute: bool) -> None:
    script = tmp_path / "measure.sh"
    script.write_text("#!/bin/sh\necho 0.25\n")
    script.chmod(0o755)
    evaluator = CommandEvaluator(shlex.quote(str(script))) if absolute else Hardware()
    problem = MeasuredMapping(PROGRAM, MACHINE, evaluator, repeats=1, warmups=0)
    solution = run_solver(RandomMaps(), problem, Budget(5), folder=tmp_path / "runs")
    run = RunFolder.open(solution.run)
    assert str(tmp_path) not in (run.path / "problem.json").read_text()
    loaded = load_problem(run.path)
    assert isinstance(loaded, MeasuredMapping) and not replay(run).broken
    with pytest.raises(EvaluationError, match=f"'{problem.gauge.name}' is only recorded"):
        loaded.evaluate(loaded.all_slowest())


@pytest.mark.parametrize(
    "measured",
    [
        {"name": 3, "command": None},
        {"name": "x" * 5000, "command": None},
        {"name": "x"},
        {"name": "x", "command": "x"},
        {"name": "x", "command": {"text": "x", "timeout_s": "1"}},
        {"name": "x", "command": {"text": ["x"], "timeout_s": 1}},
        {"name": "x", "command": {"text": "x", "timeout_s": 1e300}},
        {"name": "x", "command": {"text": "x", "timeout_s": -1}},
        None,
        [],
    ],
)
def test_an_evaluator_that_a_folder_does_not_name_properly(tmp_path: Path, measured: Any) -> None:
    problem = MeasuredMapping(PROGRAM, MACHINE, Hardware(), repeats=1, warmups=0)
    solution = run_solver(RandomMaps(), problem, Budget(2), folder=tmp_path)
    file = solution.run / "problem.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "measured": measured}))
    with pytest.raises(LoadmasterError) as caught:
        load_problem(file.parent)
    assert caught.value.exit_code == 2


def test_leaders_are_the_best_distinct_maps() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        leaders, best = Leaders(5), {}
        for _ in range(40):
            decision, value = rng.integers(3, size=2).astype(np.int8), int(rng.integers(1000))
            leaders.add(decision, value)
            best[decision.tobytes()] = min(value, best.get(decision.tobytes(), value))
        kept = [leaders.value(decision) for decision in leaders.decisions()]
        # A value of a map that was dropped is forgotten, and may only come back with a better one.
        assert kept == sorted(kept) == sorted(best.values())[:5]


def test_the_champion_is_the_best_when_measured_again() -> None:
    """Of many equal maps with noise the best first value is far too good; and one is better."""
    hardware = Hardware(noise=0.2)
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware, repeats=1, warmups=0)
    meter = Meter(problem, Budget(300))
    RandomMaps().run(meter, 0, None)
    found = remeasure(problem, seed=1)
    assert 1 <= len(found.candidates) <= 5 and found.winner is found.candidates[0]
    winner = found.winner
    assert winner.decision is not None and winner.first_ps is not None
    assert len(winner.samples_ps) == 20 and not winner.failures
    assert winner.time_ps.low <= winner.time_ps.middle <= winner.time_ps.high
    assert found.speedup.low <= found.speedup.middle <= found.speedup.high
    assert [row.time_ps.middle for row in found.candidates] == sorted(
        row.time_ps.middle for row in found.candidates
    )
    # The first value was the luckiest of hundreds; the truth lies within the interval.
    hardware.noise = 0.0
    truth = hardware.seconds(problem.plan(winner.decision)) * 1e12
    assert winner.first_ps < winner.time_ps.low <= truth <= winner.time_ps.high
    assert found.simulated_ps == Mapping(PROGRAM, MACHINE).evaluate(winner.decision)
    assert json.loads(json.dumps(found.as_json()))["times"] == 20


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(60):
        problem = Mapping(PROGRAM, MACHINE, noise=0.1, noise_seed=seed)
        found = remeasure(problem, [problem.all_slowest()], seed=seed)
        truth = problem.evaluate(problem.all_slowest())
        assert truth is not None
        covered += found.winner.time_ps.low <= truth <= found.winner.time_ps.high
    assert covered >= 50  # 57 of 60 expected


def test_the_rounds_are_interleaved_and_failures_are_survived() -> None:
    hardware = Hardware(fails=lambda call: call % 7 == 0)
    problem = MeasuredMapping(PROGRAM, MACHINE, hardware)
    found = remeasure(problem, [problem.all_slowest(), problem.compiler], times=21)
    assert sum(row.failures for row in (*found.candidates, found.baseline)) == 9
    for turn in range(21):  # every round has all three, in some order
        names = hardware.calls[3 * turn : 3 * turn + 3]
        assert sorted(names) == sorted(
            [problem.plan(problem.compiler).hash] * 2 + [problem.plan(problem.all_slowest()).hash]
        )
    hardware.fails = lambda call: True
    with pytest.raises(EvaluationError, match="on fire"):
        remeasure(problem, [problem.all_slowest()])
    with pytest.raises(LoadmasterError, match="nothing to measure"):
        remeasure(problem)


def test_noise_of_the_simulator_follows_the_same_rules(tmp_path: Path) -> None:
    problem = Mapping(PROGRAM, MACHINE, noise=0.1, noise_seed=4)
    assert not problem.repeatable and Mapping(PROGRAM, MACHINE).repeatable
    assert problem.bound().value == 0
    whole = run_solver(RandomMaps(), problem, Budget(80), 1, folder=tmp_path, checkpoint_seconds=0.0)
    part = run_solver(
        RandomMaps(),
        Mapping(PROGRAM, MACHINE, noise=0.1, noise_seed=4),
        Budget(41),
        1,
        folder=tmp_path,
        checkpoint_seconds=0.0,
    )
    other = Mapping(PROGRAM, MACHINE, noise=0.1, noise_seed=4)
    rest = run_solver(RandomMaps(), other, Budget(80), 1, resume=part.run)
    assert rest.value == whole.value and np.array_equal(rest.decision, whole.decision)  # type: ignore[arg-type]
    assert not replay(RunFolder.open(rest.run)).broken
    found = remeasure(problem)
    assert whole.value in [row.first_ps for row in found.candidates]
    assert found.winner.decision is not None
    assert found.simulated_ps == Mapping(PROGRAM, MACHINE).evaluate(found.winner.decision)
    assert remeasure(problem).as_json() == found.as_json()


def test_what_others_had_measured_is_no_candidate_of_a_search() -> None:
    for problem in (MeasuredMapping(PROGRAM, MACHINE, Hardware()), Mapping(PROGRAM, MACHINE, noise=0.1)):
        problem.evaluate(problem.compiler)  # as baselines are
        problem.score(problem.compiler[None])
        assert not problem.leaders.decisions()
        meter = Meter(problem, Budget(3))
        meter.evaluate_many(np.stack([problem.all_slowest()] * 2))
        meter.evaluate(problem.all_slowest())
        (only,) = problem.leaders.decisions()
        assert np.array_equal(only, problem.all_slowest())


def test_nobody_proves_anything_about_measured_values() -> None:
    meter = Meter(MeasuredMapping(PROGRAM, MACHINE, Hardware()), Budget(5))
    meter.raise_bound(10**9, "a solver that read the machine file")
    assert meter.bound == Bound(0, "none: measured")


EXAMPLE = Path(__file__).parents[2] / "examples" / "measure_cpu"


def test_a_real_program_measured_on_this_processor(tmp_path: Path, monkeypatch: Any) -> None:
    """Maps of a real program run on this computer's caches, memory and disk, and are timed."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path / "measure_cpu"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("build", "__pycache__"))
    monkeypatch.syspath_prepend(str(folder))
    convnet: Any = __import__("convnet")
    evaluator = CommandEvaluator(shlex.join([sys.executable, str(folder / "measure.py")]))
    machine = load_machine(str(folder / "cpu-cache.toml"))
    problem = MeasuredMapping(convnet.convnet(), machine, evaluator, repeats=3, warmups=1)
    found = remeasure(problem, [problem.all_slowest()], times=9)
    # About 0.5 on a quiet machine; what a busy one or another's disk cache gives is not asserted.
    assert 0 < found.speedup.low <= found.speedup.middle <= found.speedup.high
    overlapping = problem.plan(problem.compiler)
    rows = overlapping.residency_rows
    wrong = Plan.of(residencies=[(r.tensor, r.memory, 0, r.first, r.last) for r in rows])
    with pytest.raises(EvaluationError, match=r"exit code 3.*overlap"):
        evaluator(wrong)
