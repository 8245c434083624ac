"""`replay`: one altered digit in a stored value or plan is found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import toy
from loadmaster.problems import problem as problems
from loadmaster.runs import RunFolder, run_solver
from loadmaster.runs.replay import replay
from loadmaster.solvers.solver import Budget


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = toy.Toy()
    solution = run_solver(
        toy.Climb(), problem, Budget(120), 3, folder=tmp_path_factory.mktemp("runs"),
        baselines={"by number": problem.place(np.arange(len(problem.roots)))},
    )  # fmt: skip
    return Path(solution.extra["run"])


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def test_an_honest_run_holds(run: Path) -> None:
    found = replay(RunFolder.open(run))
    assert not found.broken and not found.warnings and found.unit == "bytes"
    events = [claim.event for claim in found.claims]
    assert events.count("baseline") == 1 and events.count("improve") >= 3 and "best" in events
    assert all(claim.claimed == claim.now for claim in found.claims if claim.event == "improve")


def _changed(digit: str) -> str:
    return str((int(digit) + 1) % 10)


FIELDS = ("value", "gap", "best", "bound")


def test_a_digit_of_any_figure_in_the_log(run: Path) -> None:
    log = run / "log.jsonl"
    text = log.read_text()
    pattern = rf'"(?:{"|".join(FIELDS)})": -?[0-9.]+(?:e-?[0-9]+)?'
    digits = [
        i for match in re.finditer(pattern, text) for i in range(*match.span()) if text[i].isdigit()
    ]
    assert len(digits) > 40
    for i in digits[:: len(digits) // 40]:
        log.write_text(text[:i] + _changed(text[i]) + text[i + 1 :])
        if json.loads(log.read_text().splitlines()[0]) and _same_numbers(text, log.read_text()):
            continue  # a digit beyond what a float holds
        found = replay(RunFolder.open(run))
        assert found.broken, text[i - 40 : i + 20]
    log.write_text(text)
    assert not replay(RunFolder.open(run)).broken


def _same_numbers(a: str, b: str) -> bool:
    return [json.loads(line) for line in a.splitlines()] == [json.loads(line) for line in b.splitlines()]  # fmt: skip


@pytest.mark.parametrize("name", ["plans", "best.json"])
def test_a_digit_of_a_stored_plan(run: Path, name: str) -> None:
    last = [line for line in RunFolder.open(run).read_log().lines if line["event"] == "improve"][-1]
    path = run / "best.json" if name == "best.json" else run / "plans" / f"{last['plan']}.json"
    text = path.read_text()
    start = text.index('"residencies"')
    digits = [i for i in range(start, len(text)) if text[i].isdigit()]
    for i in digits[:: max(1, len(digits) // 25)]:
        path.write_text(text[:i] + _changed(text[i]) + text[i + 1 :])
        assert replay(RunFolder.open(run)).broken, text[i - 40 : i + 20]


def test_a_value_says_what_was_claimed_and_what_is(run: Path) -> None:
    log = run / "log.jsonl"
    line = next(x for x in log.read_text().splitlines() if '"improve"' in x)
    value = json.loads(line)["value"]
    log.write_text(log.read_text().replace(f'"value": {value}', f'"value": {value - 3}', 1))
    first = replay(RunFolder.open(run)).broken[0]
    assert str(first).endswith(f"claimed {value - 3}, now {value}")
    broken = replay(RunFolder.open(run), tolerance=0.1).broken  # the gap is no longer the value's
    assert [claim.event for claim in broken] == ["log"]


def test_a_plan_that_is_gone_or_swapped(run: Path) -> None:
    plans = sorted((run / "plans").iterdir())
    shutil.copyfile(plans[1], plans[0])
    assert "was changed" in str(replay(RunFolder.open(run)).broken[0].fault)
    plans[0].unlink()
    assert "there is no file" in str(replay(RunFolder.open(run)).broken[0].fault)


def test_one_plan_alone(run: Path) -> None:
    name = sorted((run / "plans").iterdir())[0].stem
    found = replay(RunFolder.open(run), only=name)
    assert [claim.plan for claim in found.claims] == [name] and not found.broken
    assert replay(RunFolder.open(run), only="f" * 64).broken


def test_another_cost_model_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = json.loads((run / "run.json").read_text())
    about["keys"]["cost_model"] = "loadmaster-0"
    (run / "run.json").write_text(json.dumps(about))
    assert problems.COST_MODEL in replay(RunFolder.open(run)).warnings[0]


def _with_passed(run: Path, passed: list[list[int]]) -> list[str]:
    """What replay has against the log if its last improvement tells of these too."""
    log = run / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    last = next(line for line in reversed(lines) if line["event"] == "improve")
    last["passed"] = passed
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [str(claim) for claim in replay(RunFolder.open(run)).broken]


def test_improvements_passed_over_must_lie_between_those_of_the_log(run: Path) -> None:
    lines = RunFolder.open(run).read_log().lines
    earlier, last = [line for line in lines if line["event"] == "improve"][-2:]
    low, high = (earlier["evals"], earlier["value"]), (last["evals"], last["value"])
    assert high[0] - low[0] >= 3 and low[1] - high[1] >= 3
    assert not _with_passed(run, [])
    assert not _with_passed(run, [[low[0] + 1, low[1] - 1], [low[0] + 2, high[1]]])
    for passed, words in (
        ([[low[0], low[1] - 1]], "are not between"),
        ([[high[0], high[1] + 1]], "are not between"),
        ([[low[0] + 2, low[1] - 1], [low[0] + 1, low[1] - 2]], "are not between"),
        ([[low[0] + 1, low[1]]], "is no improvement"),
        ([[low[0] + 1, high[1] - 1]], "is no improvement"),
        ([[low[0] + 1, low[1] - 2], [low[0] + 2, low[1] - 1]], "is no improvement"),
        ([[low[0] + 1, 1]], "below the bound"),
    ):
        assert any(words in fault for fault in _with_passed(run, passed)), passed
