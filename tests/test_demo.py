"""The demo runs, and its figures are those of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_the_demo_tells_its_story() -> None:
    pytest.importorskip("onnx")
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, check=False)
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
