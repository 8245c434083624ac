"""`make demo` and the examples run, and their figures are those of the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def demo_words() -> list[str]:
    """The command that the Makefile runs."""
    line = re.search(r"^DEMO := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert line is not None
    return line.group(1).split()


def test_the_demo_plans_resnet50_with_the_agent(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    words = demo_words()
    assert words[:2] == ["plan", "resnet50"] and "egrl" in words
    words[words.index("--budget") + 1] = "22"
    done = subprocess.run(
        [sys.executable, "-m", "loadmaster.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    named = {line.split("  ")[0].strip(): line for line in lines if line}
    assert "112.04 µs" in named["compiler"] and "109.33 µs" in named["density"]
    assert "grey box" in named["egrl"] and "109.33 µs" in named["egrl"]
    assert "109.33 µs" in named["optimum"] and "white box" in named["optimum"]
    plan = re.search(r"checked: ok, plan (\S+)", done.stdout)
    assert plan is not None and (tmp_path / plan.group(1)).is_file()


def test_the_onnx_example_tells_its_story() -> None:
    pytest.importorskip("onnx")
    example = ROOT / "examples" / "place_onnx.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == "checked: ok"
    slowest, first_fit, bound = (
        next(line for line in lines if line.startswith(name))
        for name in ("all in the slowest memory", "first fit", "lower bound")
    )
    assert "1.00 ×" in slowest and slowest.split()[5] == "6.37"
    assert bound.rstrip().endswith("0.0%")
    assert float(first_fit.split()[4]) > 4
