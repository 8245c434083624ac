"""The example of docs/microcontroller.md runs from start to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from generate_tflite import branchy

EXAMPLE = Path(__file__).parent.parent / "examples" / "microcontroller.py"


def test_the_example_runs(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(branchy(3, 20))
    command = [sys.executable, str(EXAMPLE), "net.tflite", "imxrt1170:tcm=1KiB,ocram=2KiB"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "one-arena",
        "greedy-by-size",
        "compiler",
        "ours",
        "TFLite",
    ]
    assert "gap to the bound 0.00%" in lines[3]
    assert "loadmaster_tensors" in (tmp_path / "net.plan.h").read_text()
    broken = subprocess.run([*command[:2], "no.tflite"], cwd=tmp_path, capture_output=True, text=True)
    assert broken.returncode == 1 and "error: there is no file" in broken.stderr


def test_the_demo_shows_a_model_that_fits_after_all(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro")
    command = [sys.executable, str(EXAMPLE.with_name("micro_demo.py")), "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines() if line[0] != " "] == [
        "NO",
        "YES",
        "RUN",
        "SEE",
    ]
    assert "proven least of all orders" in done.stdout and "operator 3 (CONV_2D)" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "arena_after.svg",
        "arena_before.svg",
        "four_branches.planned.tflite",
    }


def test_the_demo_s_model_is_what_its_tool_makes() -> None:
    tool = EXAMPLE.parents[1] / "tools" / "demo_model.py"
    code = f"import runpy, sys; sys.stdout.buffer.write(runpy.run_path({str(tool)!r})['main']())"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert made == EXAMPLE.with_name("four_branches.tflite").read_bytes()
