"""`--bank` and `loadmaster bank` as people use them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadmaster.runs.bank import Bank

Run = Callable[..., Any]
RunJson = Callable[..., dict[str, Any]]


RESNET = (
    "plan",
    "resnet50",
    "--machine",
    "nnp-i:sram=3MiB",
    "--solver",
    "search",
    "--budget",
    "30",
    "--exact-seconds",
    "0",
)
BUFFERS = "id,lower,upper,size\na,0,3,4\nb,1,4,3\nc,2,5,2\nd,4,6,7\n"


def test_the_second_time_it_comes_from_the_bank(elsewhere: Path, run_json: RunJson, run: Run) -> None:
    first = run_json(*RESNET, "--bank", "plans")
    assert "bank" not in first
    again = run_json(*RESNET, "--bank", "plans")
    assert again["bank"]["same"] and again["bank"]["settled"]
    assert again["bank"]["found"]["solver"] == "density", "a known method's plan was better than the search's"
    (ours,) = [row for row in again["rows"] if row["what"] == "result"]
    (theirs,) = [row for row in first["rows"] if row["what"] == "result"]
    assert ours["name"] == "bank" and ours["evaluations"] == 0
    assert ours["picoseconds"] < theirs["picoseconds"]
    assert Path(first["plan"]).read_text() == Path(again["plan"]).read_text()
    said = run(*RESNET, "--bank", "plans").out
    assert "from the bank: found by density in" in said and "checked and evaluated again" in said
    assert "this search was made before: another --seed" in said
    # Another capacity begins with that plan.
    other = run_json(*RESNET, "--bank", "plans", "--capacity", "llc=20MiB", "--no-run")
    assert not other["bank"]["same"] and "bank" in [row["name"] for row in other["rows"]]
    said = run(*RESNET, "--capacity", "sram=3.5MiB", "--no-run", env={"LOADMASTER_BANK": "plans"}).out
    assert "began with a plan from the bank: that of resnet50 on nnp-i:sram=3MiB" in said
    rows = run_json("bank", "plans")["rows"]
    assert len(rows) == 3 and rows[0]["machine"] == "nnp-i:sram=3MiB:sram=3.5MiB"
    assert "resnet50" in run("bank", "plans").out


def test_an_answer_is_taken_at_its_word_or_not(elsewhere: Path, run_json: RunJson, run: Run) -> None:
    command = ("plan", "resnet50", "--machine", "nnp-i", "--objective", "peak-memory", "--bank", "plans")
    proven = run_json(*command)
    assert proven["stop"] == "optimal"
    again = run(*command).out
    assert "from the bank: found by auto" in again
    anew = run_json(*command, "--bank-starts")
    assert anew["stop"] == "optimal" and not anew["bank"]["made"] and anew["bank"]["recorded_bound"] is None


def test_buffers(elsewhere: Path, run: Run) -> None:
    Path("b.csv").write_text(BUFFERS)
    command = ("allocate", "b.csv", "--minimize", "--bank", "plans")
    assert "bank" not in run(*command).out
    assert "from the bank: found by auto" in run(*command).out
    rows = json.loads(run(*command, "--json").out)["rows"]
    (ours,) = [row for row in rows if row["what"] == "ours"]
    assert ours["bank"]["settled"] and ours["evaluations"] == 0
    for _ in range(2):
        assert run("allocate", "b.csv", "--capacity", "11", "--bank", "plans").exit == 0
        assert run("allocate", "b.csv", "--capacity", "8", "--bank", "plans").exit == 1, (
            "a no is worked out again"
        )


def test_whether_it_fits(elsewhere: Path, run: Run) -> None:
    Path("b.csv").write_text(BUFFERS)
    for _ in range(2):
        assert run("plan", "b.csv", "--machine", "arena:12", "--fits", "--bank", "plans").exit == 0
        assert run("plan", "b.csv", "--machine", "arena:8", "--fits", "--bank", "plans").exit == 1
    assert len(Bank("plans").entries()) >= 1


def test_folders_that_are_no_banks(elsewhere: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/thing").write_text("")
    for folder, message in (
        ("file", "'file' is no folder: give the folder of a bank, or a new name"),
        ("full", "folder 'full' is no bank of plans and not empty: give a bank, or a new name"),
        (
            "no/bank",
            "bank 'no/bank' can't be used: No such file or directory: give a folder that can be read",
        ),
    ):
        for command in (RESNET, ("allocate", "file.csv")):
            Path("file.csv").write_text(BUFFERS)
            found = run(*command, "--bank", folder)
            assert found.exit == 2 and message in found.error_line
        listed = run("bank", folder)
        assert listed.exit == 2 and f"'{folder}' is no bank of plans" in listed.error_line
    assert run(*RESNET, "--bank-starts").exit == 2
    Bank("plans")
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    closed = run(*RESNET, "--bank", "plans")
    assert closed.exit == 2 and "bank 'plans' can't be written" in closed.error_line
    assert not Path("runs").exists(), "nothing was begun"
    assert "is empty" in run("bank", "plans").out
