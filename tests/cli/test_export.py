"""`export`: every target from the command line, and how it says no."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from generate_tflite import branchy
from loadmaster.cli.export import TARGETS


@pytest.fixture
def model(elsewhere: Path) -> Path:
    path = elsewhere / "model.tflite"
    path.write_bytes(branchy(3, 20))
    return path


MADE: list[bytes] = []
"""The plan, once it was made: it is the same for all tests."""


@pytest.fixture
def plan(run_json: Any, model: Path) -> str:
    if not MADE:
        run_json("plan", model, "-m", "imxrt1170:tcm=1KiB,ocram=2KiB", "--out", "plan.json", "--no-run")
        MADE.append(Path("plan.json").read_bytes())
    Path("plan.json").write_bytes(MADE[0])
    return "plan.json"


MACHINE = ("-m", "imxrt1170:tcm=1KiB,ocram=2KiB")


def test_a_plan_of_a_tflite_model_goes_everywhere(run_json: Any, run: Any, model: Path, plan: str) -> None:
    before = hashlib.sha256(model.read_bytes()).hexdigest()
    wanted = {
        "header": "model.loadmaster.h",
        "trace": "model.loadmaster.trace.json.gz",
        "csv": "tables",
        "model-explorer": "nodes",
        "tflm": "model.loadmaster.tflite",
    }
    for target, name in wanted.items():
        more = ("--no-verify",) if target == "tflm" else ()
        more += ("--out", name) if target in ("csv", "model-explorer") else ()
        answer = run_json("export", target, model, plan, *MACHINE, *more)
        row = answer["rows"][0]
        assert row["target"] == target and row["files"] and all(Path(f).exists() for f in row["files"])
        note = json.loads(Path(row["files"][-1]).read_text())
        assert note["target"] == target and note["verdict"] == row["verdict"]
        assert str(model.parent) not in json.dumps(note)
        again = run("export", target, model, plan, *MACHINE, *more)
        assert again.exit == 2 and "there already" in again.error_line
        assert run("export", target, model, plan, *MACHINE, *more, "--overwrite").exit == 0
    assert hashlib.sha256(model.read_bytes()).hexdigest() == before
    tflm = run_json("export", "tflm", model, plan, *MACHINE, "--no-verify", "--out", "again.tflite")
    assert any("residencies" in part for part in tflm["rows"][0]["left_out"])


def test_what_makes_no_sense_is_refused(run: Any, model: Path, plan: str) -> None:
    assert "no target 'tflmm' (did you mean 'tflm'?)" in run("export", "tflmm", model, plan).error_line
    assert "one argument too many" in run("export", "tflm", model, plan, "x").error_line
    assert "another machine" in run("export", "trace", model, plan).error_line
    assert "--mem-id" in run("export", "csv", model, plan, *MACHINE, "--mem-id", "sram").error_line


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_read_is_never_written_over(
    target: str, run: Any, model: Path, plan: str, elsewhere: Path
) -> None:
    before = model.read_bytes(), Path(plan).read_bytes()
    (elsewhere / "link").symlink_to(model)
    # The note of 'plan' would be 'plan.json'.
    for out, says in ((model, "model"), ("link", "model"), (plan, "plan"), ("plan", "plan")):
        answer = run("export", target, model, plan, *MACHINE, "--no-verify", "--overwrite", "--out", out)
        if TARGETS[target].ending:
            assert answer.exit == 2 and f"the {says} itself" in answer.error_line
        assert (model.read_bytes(), Path(plan).read_bytes()) == before


def test_other_commands_never_write_over_their_model_either(run: Any, model: Path) -> None:
    before = model.read_bytes()
    for words in (
        ("plan", model, *MACHINE, "--no-run"),
        ("allocate", model, "--minimize"),
        ("report", model, *MACHINE),
    ):
        answer = run(*words, "--overwrite", "--out", model)
        assert answer.exit == 2 and "is what is read" in answer.error_line
    assert model.read_bytes() == before


def test_a_plan_for_one_arena_goes_into_a_header(run_json: Any, model: Path) -> None:
    arena = ("-m", "arena:1MiB")
    run_json("plan", model, *arena, "--out", "arena.json", "--no-run")
    row = run_json("export", "header", model, "arena.json", *arena)["rows"][0]
    assert row["tensors"] > 0 and row["arena_bytes"] > 0 and row["flash_bytes"] == 0


def test_every_target_is_in_the_help(run: Any) -> None:
    text = " ".join(run("export", "--help").out.split())
    assert all(f"{name}:" in text for name in TARGETS)


def test_other_commands_take_a_tflite_model(run_json: Any, run: Any, model: Path) -> None:
    imported = run_json("import", model, "--out", "model.npz")["rows"][0]
    assert imported["order_source"] == "schedule" and imported["weights_bytes"] > 0
    assert run_json("inspect", model, "-m", "imxrt1170")["rows"]
    planned = run_json("plan", model, "-m", "imxrt1170", "--no-run")
    names = [row["name"] for row in planned["rows"] if row["what"] == "baseline"]
    assert {"one-arena", "greedy-by-size", "compiler"} <= set(names)
    model.write_bytes(model.read_bytes()[:700])
    assert "damaged" in run("import", model).error_line
