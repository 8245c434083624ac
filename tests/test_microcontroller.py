"""The example of docs/microcontroller.md runs from start to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import loadmaster.cli
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


def test_the_demo_s_model_is_what_its_tool_makes() -> None:
    tool = EXAMPLE.parents[1] / "tools" / "demo_model.py"
    code = f"import runpy, sys; sys.stdout.buffer.write(runpy.run_path({str(tool)!r})['main']())"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert made == Path(loadmaster.cli.__file__).with_name("four_branches.tflite").read_bytes()
