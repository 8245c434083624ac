"""The examples run in seconds, and say what their readers are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"


def output(name: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "LOADMASTER_CACHE": str(folder / "cache")},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_ten_lines_import_plan_and_export(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (line,) = output("ten_lines", tmp_path)
    assert line.startswith("before 935.0 µs, after ")
    assert float(line.split("after ")[1].split()[0]) <= 49.9
    assert {path.name for path in tmp_path.iterdir()} >= {"plan.json", "plan.trace.json.gz"}
    text = (FOLDER / "ten_lines.py").read_text(encoding="utf-8")
    body = text.split("def main() -> None:\n")[1].split("\n\n")[0].splitlines()
    assert len(body) == 10, "what is called ten lines has ten"


def test_fits(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    lines = output("fits", tmp_path)
    assert lines[0] == "4MiB: yes, with 3,110,912 bytes, ops in its own order"
    assert lines[1] == "2900000: yes, with 2,885,120 bytes, ops in another order"
    assert lines[2].startswith("2MiB: no, 787,968 bytes too many, whatever the order: ")
    assert lines[3] == "with r5 and r6 pinned: 3,110,912 bytes, optimal"


def test_a_solver_of_one_s_own(tmp_path: Path) -> None:
    rows = {line.split()[0]: float(line.split()[1]) for line in output("own_solver", tmp_path)}
    assert list(rows) == ["compiler", "density", "coin-flips", "search", "auto"]
    assert rows["auto"] == min(rows.values())


def test_the_least_peak_as_a_model(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    lines = output("least_peak", tmp_path)
    assert lines[0] == ("peak before 3,110,912 bytes, after 2,885,120; at least 2,885,120 whatever the order")
    assert (tmp_path / "ordered.onnx").is_file() and (tmp_path / "ordered.py").is_file()


def test_a_fitted_model_says_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    inference, training, sizes = output("fit_model", tmp_path)
    assert inference == "inference is the same: True"
    assert training == "five steps of Adam are the same: True"
    needed, has = (int(word.replace(",", "")) for word in sizes.split() if word[0].isdigit())
    assert needed // 2 <= has < needed // 2 + 2**16  # whole grains


def test_executorch_plan(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    greedy, banked, ours, last = output("executorch_plan", tmp_path)
    times = [float(line.split()[1]) for line in (greedy, banked, ours)]
    assert times[2] < 0.9 * times[1] < times[0]
    assert int(ours.split()[3].replace(",", "")) <= int(greedy.split()[3].replace(",", ""))
    assert last == "wrote keyword.pte; outputs differ from greedy by 0.0"
