"""The benchmark over packages' models: one model measured, and the page as its script makes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.micro_arena import END, PAGE, files, lives_of, made, measure
from generate_tflite import convolutional

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "micro_arena.py"


def test_a_model_is_measured_and_made_smaller(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro")
    for package in ("one-1.0", "two-2.0"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "net.tflite").write_bytes(convolutional(18, operators=9, side=40))
    (tmp_path / "two-2.0" / "broken.tflite").write_bytes(b"no model")
    found = files([tmp_path])
    assert list(found) == ["one-1.0/net", "two-2.0/broken"]
    row = measure("net", found["one-1.0/net"])
    assert row["status"] == "run" and row["smaller_bytes"] < 0.75 * row["least_bytes"]
    assert row["least_bytes"] <= row["predicted_bytes"] <= 1.02 * row["least_bytes"]
    assert measure("broken", found["two-2.0/broken"])["status"] == "not read"
    assert max(size for size, _, _ in lives_of(found["one-1.0/net"])) <= row["planned_bytes"]


def test_the_page_is_what_the_script_makes() -> None:
    assert f"\n{made()}\n{END}" in PAGE.read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0 and "up to date" in done.stdout
