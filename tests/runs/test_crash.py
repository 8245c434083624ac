"""Killed with SIGKILL at any moment, a run loses nothing but the work since its last checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import toy
from loadmaster.runs import History, RunFolder, run_solver
from loadmaster.search.solver import Budget
from unbroken import difference

KILLS = 50
EVALUATIONS = 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fifty_deaths(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(Path(__file__).with_name("crash.py")),
        str(tmp_path / "broken"),
        str(KILLS),
        "4",
        str(EVALUATIONS),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    deaths = json.loads(done.stdout)
    assert len(deaths) == KILLS
    # They died at different places: after lines of all kinds, plans and half a checkpoint.
    assert len({evaluations for _, evaluations in deaths}) >= KILLS / 3
    written = {what for what, _ in deaths}
    assert {"checkpoint", "checkpoint without its line", "improve", "plans", "resume"} <= written

    whole = run_solver(toy.Climb(), toy.Toy(), Budget(EVALUATIONS), 7, folder=tmp_path / "whole")
    runs = [path for path in (tmp_path / "broken").iterdir() if (path / "run.json").exists()]
    assert len(runs) == 1
    assert difference(runs[0], whole.run) is None
    history = History(RunFolder.open(runs[0]).read_log().lines)
    assert history.state == "budget" and history.evaluations == EVALUATIONS
    assert len(history.curve) >= 5 and len(history.of("resume")) >= KILLS / 5
    assert not list(runs[0].rglob("*.tmp"))
    assert len(list((runs[0] / "checkpoints").iterdir())) <= 4
