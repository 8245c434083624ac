"""`run_solver`: what is stored, what is refused, and that a continuation is no other run."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
from clocks import Ticking
from loadmaster import clock
from loadmaster.files import NotWritten
from loadmaster.machine import load_machine
from loadmaster.plan import load_plan
from loadmaster.runs import BadRun, History, RunFolder, run_solver
from loadmaster.runs.history import find_contradictions
from loadmaster.runs.observer import Standing
from loadmaster.runs.replay import replay
from loadmaster.search.solver import Budget, Meter, Observer, Solution, State, Status, solve
from unbroken import difference


def history(solution: Solution) -> History:
    return History(RunFolder.open(solution.run).read_log().lines)


def climbed(folder: Path, evaluations: int = 400, **more: Any) -> Solution:
    given = {"folder": folder, "checkpoint_seconds": 0.0, **more}
    return run_solver(toy.Climb(), toy.Toy(), Budget(evaluations), 3, **given)


def test_a_run_is_what_the_solver_alone_finds(tmp_path: Path) -> None:
    alone = solve(toy.Climb(), toy.Toy(), Budget(400), 3)
    kept = climbed(tmp_path)
    assert kept.value == alone.value and np.array_equal(kept.decision, alone.decision)  # type: ignore[arg-type]
    assert kept.evaluations == 400 and kept.stop == "budget"
    assert run_solver(toy.Climb(), toy.Toy(), Budget(400), 3).value == alone.value
    assert [path.name for path in tmp_path.iterdir()] == [kept.run.name]


def test_the_folder(tmp_path: Path) -> None:
    solution = climbed(tmp_path, baselines={"by number": toy.Toy().place(np.arange(40))})
    run, problem = RunFolder.open(solution.run), toy.Toy()
    assert run.name.endswith("-toy_chain-arena-climb-3")
    best = load_plan(run.path / "best.json", problem.program, problem.machine)
    assert problem.evaluate(problem.decision(best)) == solution.value
    lines = history(solution)
    assert [line["event"] for line in lines.lines[:3]] == ["start", "bound", "baseline"]
    assert lines.state == "budget" and not find_contradictions(lines)
    assert len(list((run.path / "plans").iterdir())) == len(lines.improvements) + 1
    assert len(list((run.path / "checkpoints").iterdir())) <= 4
    assert load_machine(str(run.path / "machine.toml")).hash == problem.machine.hash


def test_a_check_of_a_baseline_says_how_long_checks_take(tmp_path: Path, monkeypatch: Any) -> None:
    # By the guess alone, the first improvement would be logged late, however long checks take.
    monkeypatch.setattr("loadmaster.runs.observer._CHECK_SECONDS_PER_TENSOR", 100.0)
    logged = {
        bool(baselines): [
            line["evals"] for line in history(climbed(tmp_path, baselines=baselines)).improvements
        ]
        for baselines in ({}, {"by number": toy.Toy().place(np.arange(40))})
    }
    assert logged[True][0] < logged[False][0]


def test_nothing_tells_whose_computer_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "/opt/bin/loadmaster",
            "allocate",
            "/home/somebody/a.csv",
            "--out=/home/somebody/b.csv",
            "~/c.csv",
            r"C:\Users\somebody\d.csv",
            "--capacity",
            "1MiB",
        ],
    )
    run = climbed(tmp_path).run
    about = json.loads((run / "run.json").read_text())
    assert about["command"] == ["allocate", "a.csv", "--out=b.csv", "c.csv", "d.csv", "--capacity", "1MiB"]
    assert about["host"]["cores"] >= 1 and len(about["versions"]["core"]) == 16
    for path in run.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            words = {"somebody", str(Path.home()), os.uname().nodename, str(tmp_path)}
            assert not [w for w in words if len(w) > 3 and w.encode() in content], path


def test_two_runs_at_one_second_have_two_folders(tmp_path: Path) -> None:
    names = {climbed(tmp_path, 5).run for _ in range(4)}
    assert len(names) == 4


def test_machines_of_all_kinds_can_be_kept(tmp_path: Path) -> None:
    for name in ("nnp-i", "p100x4", "p100x4-bus", "arena:unlimited"):
        problem = toy.Toy()
        problem.machine = load_machine(name)
        problem.violations = lambda plan: []  # type: ignore[method-assign]
        problem.plan = lambda decision: toy.Plan()  # type: ignore[method-assign]
        solution = run_solver(toy.Plain(), problem, Budget(1), folder=tmp_path)
        kept = load_machine(str(solution.run / "machine.toml"))
        assert kept.hash == problem.machine.hash, name


@pytest.mark.parametrize("first", [1, 37, 250, 399])
def test_a_larger_budget_goes_on_as_if_it_had_been_there(tmp_path: Path, first: int) -> None:
    whole = climbed(tmp_path / "whole")
    part = climbed(tmp_path / "part", first)
    rest = climbed(tmp_path, 400, resume=part.run)
    assert rest.run == part.run and rest.evaluations == 400
    assert np.array_equal(rest.decision, whole.decision)  # type: ignore[arg-type]
    assert history(whole).curve == history(rest).curve and not find_contradictions(history(rest))


def test_a_solver_without_checkpoints_starts_over_and_keeps_the_best(tmp_path: Path) -> None:
    part = run_solver(toy.Plain(), toy.Toy(), Budget(100), 3, folder=tmp_path)
    rest = run_solver(toy.Plain(), toy.Toy(), Budget(300), 3, resume=part.run)
    whole = run_solver(toy.Plain(), toy.Toy(), Budget(300), 3)
    assert rest.evaluations == 300 and rest.value == whole.value
    assert not find_contradictions(history(rest))


def test_seconds_are_totals(tmp_path: Path, monkeypatch: Any) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(clock, "_source", lambda: next(ticks) / 1000)  # a look takes a millisecond
    first = run_solver(toy.Climb(), toy.Toy(), Budget(seconds=2.0), folder=tmp_path)
    assert first.stop == "time" and first.seconds >= 2.0
    before = next(ticks)
    rest = run_solver(toy.Climb(), toy.Toy(), Budget(seconds=2.1), resume=first.run)
    assert next(ticks) - before < 1900 and rest.seconds >= 2.1
    assert rest.value is not None and first.value is not None and rest.value <= first.value


class Other(toy.Climb):
    name = "other"


class Switched(toy.Climb):
    def __init__(self) -> None:
        self.options = {"heat": 2}


def test_a_budget_below_what_was_done_is_refused(tmp_path: Path) -> None:
    run = climbed(tmp_path, 40).run
    log = run / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]))  # as if it had been killed before it could say that it stopped
    best = (run / "best.json").read_bytes()
    with pytest.raises(BadRun, match=r"has done \d+ evaluations, more than 5: give --budget \d+ or more"):
        run_solver(toy.Climb(), toy.Toy(), Budget(5), 3, resume=run)
    assert (run / "best.json").read_bytes() == best


def test_resuming_something_else_is_refused(tmp_path: Path) -> None:
    run = climbed(tmp_path, 20).run
    before = (run / "log.jsonl").read_bytes()

    def resumed(solver: Any = None, problem: Any = None, seed: int = 3, **more: Any) -> None:
        run_solver(solver or toy.Climb(), problem or toy.Toy(), Budget(40), seed, resume=run, **more)

    another = toy.Toy()
    another.machine = load_machine("arena:128KiB")
    for words, arguments in {
        "its seed is 3 and here it is 4": {"seed": 4},
        "its solver is climb and here it is other": {"solver": Other()},
        "its 'heat' in solver's options is null and here it is 2": {"solver": Switched()},
        "its key 'program'": {"problem": toy.Toy(toy.toy_program(seed=9))},
        "its key 'machine'": {"problem": another},
        "its 'slack' in key 'problem' is 0 and here it is 5": {"problem": toy.Toy(slack=5)},
        "its command is": {"command": ["plan"]},
    }.items():
        with pytest.raises(BadRun) as caught:
            resumed(**arguments)  # type: ignore[arg-type]
        assert words in caught.value.message and caught.value.exit_code == 2
    assert (run / "log.jsonl").read_bytes() == before
    resumed()


def test_a_plan_that_the_checker_refuses_is_not_reported(tmp_path: Path) -> None:
    solution = run_solver(toy.Overlapper(), toy.Toy(), Budget(50), folder=tmp_path)
    lines = history(solution)
    assert [line["what"] for line in lines.of("error")] == ["violations"]
    assert "overlap" in solution.refused[0]
    assert solution.value is not None and solution.value > 200
    assert lines.value == solution.value and not find_contradictions(lines)
    honest = run_solver(toy.Plain(), toy.Toy(), Budget(49))
    assert solution.value <= max(honest.value or 0, lines.improvements[0]["value"])


def test_a_claim_that_nobody_checked_is_told(tmp_path: Path) -> None:
    solution = run_solver(toy.Liar(), toy.Toy(), Budget(50), folder=tmp_path)
    assert solution.status == Status.FEASIBLE and solution.value == toy.Toy().evaluate(solution.decision)  # type: ignore[arg-type]
    assert "the solver claims" in solution.refused[0]
    assert history(solution).of("error")[0]["what"] == "claim"


class Broken(toy.Climb):
    name = "broken"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        super().run(meter, seed, state)
        raise RuntimeError("out\nof ideas")


def test_a_solver_that_raises_leaves_a_whole_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        run_solver(Broken(), toy.Toy(), Budget(30), folder=tmp_path)
    run = RunFolder.open(next(tmp_path.iterdir()))
    lines = History(run.read_log().lines)
    assert lines.state == "error" and lines.of("error")[0]["message"] == "RuntimeError: out of ideas"
    assert lines.value is not None and (run.path / "best.json").exists()


@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk_says_how_to_go_on(tmp_path: Path, monkeypatch: Any, named: bool) -> None:
    store, stored = RunFolder.store_plan, itertools.count()

    def full(run: RunFolder, *what: Any) -> Any:
        if next(stored) == 3:
            number = errno.ENOSPC
            name = (str(run.path / "plans" / "1.json"),) if named else ()
            raise OSError(number, os.strerror(number), *name)
        return store(run, *what)

    monkeypatch.setattr(RunFolder, "store_plan", full)
    with pytest.raises(NotWritten, match=r"No space .* go on with loadmaster resume") as caught:
        climbed(tmp_path)
    monkeypatch.undo()
    assert caught.value.number == errno.ENOSPC and str(caught.value.object) == str(next(tmp_path.iterdir()))
    again = run_solver(toy.Climb(), toy.Toy(), Budget(400), 3, resume=next(tmp_path.iterdir()))
    assert again.value == solve(toy.Climb(), toy.Toy(), Budget(400), 3).value and again.evaluations == 400


def test_a_folder_that_no_run_can_be_made_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritten, match=r"file' can't be written: .*: check the folder and the space"):
        climbed(tmp_path / "file")


class Prover(toy.Plain):
    """Finds the least height it can, and says that it is the least."""

    name = "prover"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem: Any = meter.problem
        while not meter.exhausted:
            meter.evaluate(problem.place(np.random.default_rng(seed + meter.evaluations).permutation(40)))
            if meter.evaluations == 30 and meter.best_value is not None:
                meter.raise_bound(meter.best_value, "I said so")
        return meter.solution()


def test_an_optimum_is_not_sought_twice(tmp_path: Path) -> None:
    first = run_solver(Prover(), toy.Toy(), Budget(500), folder=tmp_path)
    assert first.status == Status.OPTIMAL and first.stop == "optimal"
    assert history(first).of("bound")[-1]["proven_optimal"] is True
    again = run_solver(Prover(), toy.Toy(), Budget(900), resume=first.run)
    assert (again.status, again.value, again.evaluations) == (Status.OPTIMAL, first.value, 30)
    assert again.bound == first.bound and not find_contradictions(history(again))


class Slow(toy.Toy):
    """Its checker takes a while."""

    checks = 0

    def violations(self, plan: Any) -> Any:
        self.checks += 1
        time.sleep(0.08)
        return super().violations(plan)


def test_slow_checks_do_not_eat_the_time(tmp_path: Path) -> None:
    problem, quick = Slow(), toy.Toy()
    solution = run_solver(toy.Climb(), problem, Budget(300), 3, folder=tmp_path)
    whole = run_solver(toy.Climb(), quick, Budget(300), 3, folder=tmp_path)
    assert solution.value == whole.value  # the last one is always checked
    assert problem.checks < len(history(whole).improvements)
    assert history(solution).value == whole.value and not find_contradictions(history(solution))


class Keeper(Observer):
    """Every improvement as the meter tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[tuple[int, int]] = []

    def improved(self, meter: Meter) -> None:
        assert meter.best_value is not None
        self.curve.append((meter.evaluations, meter.best_value))


@pytest.mark.parametrize("seed", range(3))
def test_improvements_that_were_not_checked_are_told_with_the_next(tmp_path: Path, seed: int) -> None:
    keeper = Keeper()
    solve(toy.Climb(), toy.Toy(), Budget(300), seed, keeper)
    lines = history(run_solver(toy.Climb(), Slow(), Budget(300), seed, folder=tmp_path))
    assert len(lines.improvements) < len(keeper.curve) and lines.curve == keeper.curve
    for evaluations, value in keeper.curve:
        assert lines.find_when_reached(value) is not None and lines.find_when_reached(value)[0] == evaluations  # type: ignore[index]
    assert lines.find_when_reached(keeper.curve[-1][1] - 1) is None


@pytest.mark.parametrize("first", [5, 60, 150])
def test_a_continuation_tells_each_improvement_once(tmp_path: Path, first: int) -> None:
    keeper = Keeper()
    solve(toy.Climb(), toy.Toy(), Budget(300), 3, keeper)
    part = run_solver(toy.Climb(), Slow(), Budget(first), 3, folder=tmp_path)
    run = part.run
    rest = run_solver(toy.Climb(), Slow(), Budget(300), 3, resume=run)
    assert history(rest).curve == keeper.curve and not find_contradictions(history(rest))


class Unsound(Slow):
    """The checker refuses the second plan that it sees, and the first one of a burst is checked."""

    def violations(self, plan: Any) -> Any:
        found = super().violations(plan)
        return ["made up"] if self.checks == 2 else found


def test_what_was_passed_over_before_a_refusal_is_dropped(tmp_path: Path) -> None:
    solution = run_solver(toy.Climb(), Unsound(), Budget(300), 3, folder=tmp_path)
    lines = history(solution)
    assert len(lines.of("error")) == 1 and len(lines.improvements) >= 2
    assert not find_contradictions(lines) and lines.curve[-1][1] == solution.value


class Screen:
    def __init__(self) -> None:
        self.seen: list[Standing] = []
        self.closed = False

    def show(self, standing: Standing) -> None:
        self.seen.append(standing)

    def close(self) -> None:
        self.closed = True


@pytest.mark.usefixtures("running_clock")
def test_the_display_hears_of_every_improvement_and_while_a_solver_is_silent(tmp_path: Path) -> None:
    screen = Screen()
    solution = run_solver(toy.Plain(), toy.Toy(pause=0.01), Budget(80), folder=tmp_path, display=screen)
    assert screen.closed and {s.best for s in screen.seen} == {
        line["value"] for line in history(solution).improvements
    }
    assert len(screen.seen) > len(history(solution).improvements)
    assert screen.seen[-1].seconds_left is not None


class Staged(toy.Plain):
    """Gives a first stage a part of the budget, as `auto` does."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        whole, meter.budget = meter.budget, Budget(10, 1.0)
        super().run(meter, seed, state)
        meter.budget = whole
        return super().run(meter, seed, state)


def test_the_end_of_a_stage_is_not_the_end_of_the_run(tmp_path: Path) -> None:
    screen = Screen()
    run_solver(Staged(), toy.Toy(), Budget(40, 60.0), folder=tmp_path, display=screen)
    assert {standing.seconds_left for standing in screen.seen} == {60.0}


class Asked(toy.Toy):
    """Somebody asks the run to stop while so many are evaluated."""

    after = 0

    def evaluate(self, decision: Any) -> int | None:
        self.after -= 1
        if not self.after:
            os.kill(os.getpid(), signal.SIGINT)
        return super().evaluate(decision)


def asked(
    after: int, folder: Path | None = None, resume: Path | None = None, budget: Budget | None = None
) -> Solution:
    """A session without checkpoints that is interrupted."""
    problem = Asked()
    problem.after = after
    solution = run_solver(
        toy.Climb(), problem, budget or Budget(400), 3, folder=folder, resume=resume, checkpoint_seconds=1e9
    )
    return solution


def test_what_was_found_is_not_lost_while_it_is_to_be_found_again(tmp_path: Path) -> None:
    whole = climbed(tmp_path / "whole")
    first = asked(150, tmp_path / "broken")
    run = first.run
    best = (run / "best.json").read_bytes()
    assert first.interrupted and first.value is not None
    again = asked(8, resume=run)  # from the start, and not as far
    assert again.interrupted and again.evaluations < 100
    found = history(again).value
    assert found is not None and found > first.value == again.value
    assert (run / "best.json").read_bytes() == best and not replay(RunFolder.open(run)).broken
    rest = run_solver(toy.Climb(), toy.Toy(), Budget(400), 3, resume=run)
    assert difference(run, whole.run) is None and rest.value == whole.value


def test_nor_is_it_lost_when_time_is_too_short_to_find_it_again(tmp_path: Path, monkeypatch: Any) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(clock, "_source", lambda: next(ticks) / 1000)
    first = asked(150, tmp_path, budget=Budget(400, 60.0))
    run = first.run
    again = asked(0, resume=run, budget=Budget(400, first.seconds + 0.02))
    assert again.stop == "time" and again.evaluations < 150
    assert again.value == first.value == history(again).value
    assert not replay(RunFolder.open(run)).broken


@pytest.mark.parametrize("evaluations", [40, 100])
def test_a_run_that_has_ended_is_left_alone(tmp_path: Path, evaluations: int) -> None:
    first = climbed(tmp_path, 100)
    run = first.run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    again = climbed(tmp_path, evaluations, resume=run)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert (again.value, again.evaluations, again.stop) == (first.value, 100, "budget")
    assert np.array_equal(again.decision, first.decision)  # type: ignore[arg-type]
    assert "nothing was left to do" in again.warnings[0]


def test_baselines_that_a_kill_kept_from_the_log_are_noted_later(tmp_path: Path) -> None:
    problem = toy.Toy()
    baselines = {"by number": problem.place(np.arange(40)), "back": problem.place(np.arange(40)[::-1])}
    whole = climbed(tmp_path / "whole", baselines=baselines)
    run = climbed(tmp_path / "broken", baselines=baselines).run
    for kept in (1, 2, 3, 4, 5):
        lines = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
        (run / "log.jsonl").write_bytes(b"".join(lines[:kept]))
        (run / "best.json").unlink()
        climbed(tmp_path, baselines=baselines, resume=run)
        assert difference(run, whole.run) is None, kept


def test_a_better_baseline_is_handed_over_also_by_an_interrupted_run(tmp_path: Path) -> None:
    problem = toy.Toy()
    good = run_solver(toy.Climb(), problem, Budget(400), 3).decision
    assert good is not None
    poor = problem.place(np.arange(40))
    known = {"poor": poor, "good": good}

    def stored(run: Path) -> str:
        return load_plan(run / "best.json", problem.program, problem.machine).hash

    stopping = Asked()
    stopping.after = 8
    first = run_solver(toy.Climb(), stopping, Budget(400), 3, folder=tmp_path, baselines=known)
    run = first.run
    assert run is not None and first.interrupted and first.baseline == "good"
    assert stored(run) == problem.plan(good).hash and not replay(RunFolder.open(run)).broken
    handed = history(first).handed_over
    assert handed is not None and handed["plan"] == problem.plan(good).hash
    # Resumed, the solver comes as far as the baseline: then the plan is its own again.
    rest = run_solver(toy.Climb(), problem, Budget(400), 3, resume=run, baselines=known)
    assert rest.baseline is None and rest.value == problem.evaluate(good)
    assert stored(run) == problem.plan(rest.decision).hash  # type: ignore[arg-type]
    assert not replay(RunFolder.open(run)).broken
    ended = climbed(tmp_path / "short", 5, baselines=known)
    assert ended.baseline == "good" and climbed(tmp_path, 5, resume=ended.run).baseline == "good"


def test_what_was_kept_back_of_the_time_does_not_change_why_a_run_ended() -> None:
    ticking = Ticking()
    meter = Meter(toy.Toy(), Budget(seconds=10.0), clock=ticking)
    ticking.advance(9.0)
    assert not meter.spent and not meter.out_of_time
    meter.reserve = 2.0
    assert meter.spent
    meter.reserve = 0.0  # the last check was quick
    assert not meter.spent and meter.out_of_time
