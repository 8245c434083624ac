"""Evaluators: commands that behave, fail, hang and lie; and the report on any of them."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocks import wait_until
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.mapping.measured import evaluator_report
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import Plan, plan_from_json
from loadmaster.program import Builder, load
from loadmaster.search.evaluator import (
    CommandEvaluator,
    EvaluationError,
    Evaluator,
    Gauge,
    evaluator_name,
    seconds_of,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="commands measure on POSIX systems")


def small_problem() -> Mapping:
    build = Builder("chain")
    x = build.tensor("x", bytes=64, kind="input")
    for i in range(4):
        w = build.tensor(f"w{i}", bytes=2**20, kind="weight")
        y = build.tensor(f"y{i}", bytes=2**20, kind="output" if i == 3 else "activation")
        build.op(f"op{i}", "matmul", reads=[x, w], writes=[y], matrix=1000)
        x = y
    return Mapping(build.build(), load_machine("nnp-i"))


PROBLEM = small_problem()
PLAN = PROBLEM.plan(PROBLEM.compiler)


def script(folder: Path, text: str, name: str = "measure.sh") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def command(folder: Path, text: str, timeout_s: float = 120.0, more: str = "") -> CommandEvaluator:
    made = CommandEvaluator(f"{shlex.quote(str(script(folder, text)))} {more}", timeout_s)
    made.bind(PROBLEM.program, PROBLEM.machine)
    return made


@pytest.mark.parametrize(
    "said, seconds",
    [
        ("echo 0.25", 0.25),
        ("echo noise; echo; echo 1e-3; echo", 1e-3),
        ("""echo '{"latency_s": 0.5, "board": 3}'""", 0.5),
        ("echo 2 >&2; echo '  7  '", 7.0),
    ],
)
def test_the_last_line_is_the_latency(tmp_path: Path, said: str, seconds: float) -> None:
    assert command(tmp_path, said)(PLAN) == seconds


@pytest.mark.parametrize(
    "said, words",
    [
        ("echo 0.25; echo overheated >&2; exit 3", ["exit code 3", "overheated"]),
        ("kill -9 $$", ["signal 9"]),
        ("echo fast", ["'fast'"]),
        ("echo nan", ["'nan'", "above 0"]),
        ("echo inf", ["'inf'"]),
        ("echo -1", ["'-1'"]),
        ("echo 0", ["'0'"]),
        ("true", ["printed nothing"]),
        ("""echo '{"latency": 1}'""", ["None"]),
        ("""echo '{"latency_s": "x"}'""", ["'x'"]),
        ("""echo '{"latency_s": true}'""", ["True"]),
        ("""echo '[0.1]'""", ["[0.1]"]),
    ],
)
def test_failures_say_what_happened(tmp_path: Path, said: str, words: list[str]) -> None:
    with pytest.raises(EvaluationError) as failed:
        command(tmp_path, said)(PLAN)
    for word in [*words, "measure.sh"]:
        assert word in failed.value.message
    assert failed.value.remedy


def test_only_the_last_lines_of_a_flood_are_shown(tmp_path: Path) -> None:
    flood = "i=0; while [ $i -lt 3000 ]; do echo line$i >&2; echo 1; i=$((i+1)); done"
    assert command(tmp_path, flood)(PLAN) == 1.0
    with pytest.raises(EvaluationError) as failed:
        command(tmp_path, f"{flood}; exit 1")(PLAN)
    assert "line2999" in failed.value.message and "line2990" not in failed.value.message


def gone(pid: int) -> bool:
    """Whether a process has ended; its corpse may lie about."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_a_hanging_command_is_stopped_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"

    class OnceItHangs(threading.Timer):
        """The time is up when the command waits, however long it took to come there."""

        def run(self) -> None:
            wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), "a child")
            self.function()

    monkeypatch.setattr("loadmaster.search.evaluator.threading.Timer", OnceItHangs)
    text = f"echo waiting >&2; sleep 300 & echo $! > {shlex.quote(str(pids))}; sleep 300; echo 1"
    with pytest.raises(EvaluationError, match=r"stopped after 0.5 s .*waiting"):
        command(tmp_path, text, timeout_s=0.5)(PLAN)
    wait_until(lambda: gone(int(pids.read_text())), "the end of its child")


def test_what_a_command_leaves_running_neither_holds_us_up_nor_stays(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert command(tmp_path, f"sleep 300 & echo $! > {shlex.quote(str(pids))}; echo 0.5")(PLAN) == 0.5
    wait_until(lambda: gone(int(pids.read_text())), "the end of its child")


def test_a_command_that_does_not_read_its_input_is_fine(tmp_path: Path) -> None:
    build = Builder("wide")
    x = build.tensor("x", bytes=64, kind="input")
    for i in range(2000):  # a plan that no pipe's buffer holds
        y = build.tensor(f"y{i}", bytes=64, kind="output")
        build.op(f"op{i}", "add", reads=[x], writes=[y])
    problem = Mapping(build.build(), PROBLEM.machine)
    evaluator = command(tmp_path, "exec 0<&-; echo 0.1")
    evaluator.bind(problem.program, problem.machine)
    assert evaluator(problem.plan(problem.compiler)) == 0.1


def test_the_command_is_given_plan_program_and_machine(tmp_path: Path) -> None:
    kept = shlex.quote(str(tmp_path / "kept"))
    text = (
        f'cat > {kept}.stdin; cp "$1" {kept}.file; cp "$LOADMASTER_PROGRAM" {kept}.npz; '
        f'cp "$LOADMASTER_MACHINE" {kept}.toml; echo "$#" > {kept}.count; echo 1'
    )
    command(tmp_path, text, more="'{plan}' 'two words; $HOME'")(PLAN)
    text = (tmp_path / "kept.stdin").read_text()
    assert plan_from_json(text, PROBLEM.program, PROBLEM.machine).hash == PLAN.hash
    assert (tmp_path / "kept.file").read_text() == text
    assert load(tmp_path / "kept.npz").hash == PROBLEM.program.hash
    assert load_machine(str(tmp_path / "kept.toml")).hash == PROBLEM.machine.hash
    assert (tmp_path / "kept.count").read_text().strip() == "2"  # no shell took it apart


@pytest.mark.parametrize("text", ["", "no-such-command --fast", "./nowhere.sh", "sh 'open"])
def test_a_command_that_is_not_there_is_told_before_anything_runs(text: str) -> None:
    with pytest.raises(EvaluationError) as failed:
        CommandEvaluator(text)
    assert isinstance(failed.value, LoadmasterError) and failed.value.remedy


def test_a_file_that_may_not_be_run_is_no_command(tmp_path: Path) -> None:
    path = script(tmp_path, "echo 1")
    path.chmod(0o644)
    with pytest.raises(EvaluationError, match="chmod"):
        CommandEvaluator(str(path))


def test_its_files_go_when_it_closes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "files"))
    (tmp_path / "files").mkdir()
    evaluator = command(tmp_path, "echo 1")
    evaluator(PLAN)
    assert len(list((tmp_path / "files").iterdir())) == 1
    evaluator.close()
    assert not list((tmp_path / "files").iterdir())
    assert evaluator(PLAN) == 1.0  # and come again
    del evaluator
    assert not list((tmp_path / "files").iterdir())


def test_its_name_has_no_folders(tmp_path: Path) -> None:
    evaluator = command(tmp_path, "echo 1", more="--fast")
    assert evaluator.name == "measure.sh --fast" and not evaluator.portable
    assert CommandEvaluator("sh  measure.sh '{plan}'").portable
    assert evaluator_name(lambda plan: 1.0).endswith("<lambda>")


@given(st.one_of(st.floats(), st.text(max_size=8), st.booleans(), st.none(), st.integers()))
def test_a_latency_is_a_finite_number_above_0(value: object) -> None:
    try:
        seconds = seconds_of(value, "it")
    except EvaluationError:
        return
    assert math.isfinite(seconds) and seconds > 0 and not isinstance(value, bool)
    assert seconds == float(value)  # type: ignore[arg-type]


class Boards(Evaluator):
    """Two boards, the second twice as slow; one plan in three fails."""

    boards = 2

    def __init__(self) -> None:
        self.rounds = 0

    def __call__(self, plan: Plan, /) -> float:
        return 1.0

    def batch(self, plans: Sequence[Plan]) -> list[float]:
        self.rounds += 1
        return [math.nan if k % 3 == 2 else 1.0 + k % 2 for k in range(len(plans))]


def test_a_batch_is_repeated_as_a_whole_and_fails_plan_by_plan() -> None:
    evaluator = Boards()
    found = list(Gauge(evaluator, repeats=4, warmups=1).measure([PLAN] * 5))
    assert evaluator.rounds == 5
    assert [one.board for one in found] == [0, 1, 0, 1, 0]
    assert [one.seconds for one in found] == [(1.0,) * 4, (2.0,) * 4, (), (2.0,) * 4, (1.0,) * 4]
    assert [one.fault is None for one in found] == [True, True, False, True, True]


def test_a_batch_of_the_wrong_length_or_that_raises_fails_every_plan() -> None:
    for batch in (lambda plans: [1.0], lambda plans: {}["missing"]):
        evaluator: Any = Boards()
        evaluator.batch = batch
        found = list(Gauge(evaluator).measure([PLAN] * 3))
        assert len(found) == 3 and all(one.fault for one in found)


def test_a_callable_that_raises_anything_is_a_failure_told_by_name() -> None:
    def broken(plan: Plan) -> float:
        raise OSError("no such board")

    (found,) = Gauge(broken).measure([PLAN])
    assert found.fault is not None and "OSError: no such board" in found.fault
    with pytest.raises(KeyboardInterrupt):
        Gauge(_interrupted).once(PLAN)


def _interrupted(plan: Plan) -> float:
    raise KeyboardInterrupt


def test_the_report_on_a_sound_evaluator(tmp_path: Path) -> None:
    source = tmp_path / "measure.py"
    source.write_text(
        "import json, sys\n"
        "plan = json.load(sys.stdin)\n"
        "print(1e-3 * (1 + sum(row['memory'] == 'dram' for row in plan['residencies'])))\n"
    )
    report = evaluator_report(CommandEvaluator(shlex.join([sys.executable, str(source)])), PROBLEM, repeats=3)
    assert report.ok and not report.findings and report.variation == 0
    assert report.all_slowest_s is not None and report.valid_s is not None
    assert report.all_slowest_s > report.valid_s
    assert report.broken is not None and "broken on purpose" in report.broken


def test_the_report_tells_what_is_odd() -> None:
    times = iter([1.0, 2.0, 1.0, 2.0, 0.5])
    report = evaluator_report(lambda plan: next(times), PROBLEM, repeats=3)
    assert report.ok and len(report.findings) == 2
    assert "differs by" in report.findings[0] and "disagree" in report.findings[1]
    report = evaluator_report(lambda plan: json.loads("{"), PROBLEM)
    assert not report.ok and "JSONDecodeError" in report.findings[0]
