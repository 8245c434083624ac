"""`replay`: one altered digit in a stored value or plan is found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import toy
from loadmaster.runs import RunFolder, run_solver
from loadmaster.runs.log import Line, compute_digest
from loadmaster.runs.replay import replay
from loadmaster.search import problem as problems
from loadmaster.search.solver import Budget


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = toy.Toy()
    solution = run_solver(
        toy.Climb(),
        problem,
        Budget(120),
        3,
        folder=tmp_path_factory.mktemp("runs"),
        checkpoint_seconds=0.0,
        baselines={"by number": problem.place(np.arange(len(problem.roots)))},
    )
    return solution.run


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


FIELDS = ("value", "gap", "best", "bound", "evals", "from_evals", "evaluations")


def test_a_digit_of_any_figure_in_the_log(run: Path) -> None:
    log = run / "log.jsonl"
    text = log.read_text()
    pattern = rf'"(?:{"|".join(FIELDS)})": -?[0-9.]+(?:e-?[0-9]+)?'
    digits = [i for match in re.finditer(pattern, text) for i in range(*match.span()) if text[i].isdigit()]
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
    return [json.loads(line) for line in a.splitlines()] == [json.loads(line) for line in b.splitlines()]


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
    broken = replay(RunFolder.open(run), tolerance=0.1).broken
    faults = [claim.fault for claim in broken]
    assert len(faults) == 2 and all(claim.event == "log" for claim in broken)
    assert "it was changed" in str(faults[0]) and "gap is" in str(faults[1])


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


def _write(log: Path, lines: list[Line]) -> None:
    """A log of these lines, as if nobody had changed it: only what it says can give it away."""
    before = ""
    for line in lines:
        before = line["digest"] = compute_digest(line, before)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _counted(run: Path, change: Callable[[list[Line]], None]) -> list[str]:
    """What replay has against the log once it was changed, digests included."""
    log = run / "log.jsonl"
    before = log.read_bytes()
    lines = [json.loads(line) for line in before.splitlines()]
    change(lines)
    _write(log, lines)
    found = [str(claim) for claim in replay(RunFolder.open(run)).broken]
    log.write_bytes(before)
    return found


def test_counts_must_agree_with_each_other_the_budget_and_the_checkpoints(run: Path) -> None:
    def set_evals(place: int, count: int) -> Callable[[list[Line]], None]:
        return lambda lines: lines[place].update(evals=count)

    def fewer(lines: list[Line]) -> None:
        lines[0]["budget"]["evaluations"] = 100

    def again(lines: list[Line]) -> None:
        """Resuming rewrote the count: 120, then 13."""
        line = {**lines[0], "event": "resume", "seq": len(lines), "t": lines[-1]["t"]}
        lines.append(line | {"evals": 13, "from_evals": 13})
        stop = {**lines[-2], "seq": len(lines), "evals": 13, "reason": "optimal"}
        lines.append(stop)

    lines = RunFolder.open(run).read_log().lines
    checkpoint = [line["seq"] for line in lines if line["event"] == "checkpoint"][-1]
    assert not _counted(run, lambda lines: None)
    for change, words in (
        (set_evals(-1, 119), "it stopped after 119 evaluations for its budget of 120"),
        (set_evals(-1, 121), "121 evaluations, and the budget is 120"),
        (set_evals(-1, 3), "evals go back from"),
        (set_evals(0, 1), "it goes on from 0 evaluations"),
        (set_evals(checkpoint, lines[checkpoint]["evals"] + 1), "and the log says"),
        (fewer, "and the budget is 100"),
        (again, "it goes on from 13 evaluations, which is no checkpoint's count"),
    ):
        assert any(words in fault for fault in _counted(run, change)), words


def test_a_checkpoint_of_another_count(run: Path) -> None:
    manifest = next(iter(sorted((run / "checkpoints").iterdir()))) / "manifest.json"
    manifest.write_text(re.sub(r'"evals": \d', '"evals": 9', manifest.read_text()))
    assert any("its manifest was changed" in str(claim) for claim in replay(RunFolder.open(run)).broken)


def _with_passed(run: Path, passed: list[list[int]]) -> list[str]:
    """What replay has against the log if its last improvement tells of these too."""
    log = run / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    last = next(line for line in reversed(lines) if line["event"] == "improve")
    last["passed"] = passed
    _write(log, lines)
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
