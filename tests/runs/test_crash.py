"""Killed with SIGKILL at any moment, a run loses nothing but the work since its last checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import toy
from loadmaster.runs import History, RunFolder, run_solver
from loadmaster.runs.history import contradictions
from loadmaster.runs.replay import replay
from loadmaster.solvers.solver import Budget

KILLS = 50
EVALUATIONS = 4000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fifty_deaths(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("crash.py")), str(tmp_path / "broken"),
               str(KILLS), "3", str(EVALUATIONS)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert int(done.stdout) >= KILLS / 2  # on a fast computer the last ones find it done

    solution = run_solver(toy.Climb(), toy.Toy(), Budget(EVALUATIONS), 7, folder=tmp_path / "whole")
    runs = [path for path in (tmp_path / "broken").iterdir() if (path / "run.json").exists()]
    assert len(runs) == 1
    broken, whole = RunFolder.open(runs[0]), RunFolder.open(Path(solution.extra["run"]))
    history, unbroken = History(broken.read_log().lines), History(whole.read_log().lines)

    assert [line["seq"] for line in history.lines] == list(range(len(history.lines)))
    assert len(history.of("resume")) >= KILLS / 5
    assert history.state == "budget" and history.evaluations == EVALUATIONS
    # What was found, and after how many evaluations, is what an unbroken run finds.
    assert history.curve == unbroken.curve and len(history.curve) >= 5
    assert (broken.path / "best.json").read_bytes() == (whole.path / "best.json").read_bytes()
    _nothing_but_the_last_checkpoint_was_lost(history)
    assert not contradictions(history)
    found = replay(broken)  # every plan that is named exists, and the checker passes it
    assert not found.broken and len(found.claims) > len(history.improvements)
    assert not list(broken.path.rglob("*.tmp"))
    assert len(list((broken.path / "checkpoints").iterdir())) <= 4


def _nothing_but_the_last_checkpoint_was_lost(history: History) -> None:
    reached = 0
    for line in history.lines:
        if line["event"] == "checkpoint":
            reached = line["evals"]
        elif line["event"] == "resume":
            # The checkpoint may be newer than the last line that names one, never older.
            assert line["from_evals"] >= reached
