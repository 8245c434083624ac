"""The examples run in seconds, and say what their readers are told."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"


def run(name: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "LOADMASTER_CACHE": str(folder / "cache")},
        timeout=120,
    )


def output(name: str, folder: Path, *words: str) -> list[str]:
    done = run(name, folder, *words)
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


def test_a_loop_of_one_s_own_beats_random_maps(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    head, *lines = output("own_loop", tmp_path, "--rounds", "40")
    assert head == "resnet50 on nnp-i-half, 111 tensors, simulated microseconds"
    randomly, first, half, learned, compiler, density, egrl, bound = (
        float(line.split()[-1]) for line in lines
    )
    assert bound <= egrl <= density and bound < learned < half < first
    assert learned < compiler < randomly


def test_stable_baselines3_learns_a_game(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    if importlib.util.find_spec("sb3_contrib") is None:
        done = run("train_stable_baselines3", tmp_path)
        assert done.returncode == 1
        assert done.stderr == "Stable-Baselines3 is not installed: pip install sb3-contrib\n"
        return
    words = ("--model", "alexnet-inf", "--steps", "512", "--games", "2")
    head, *lines = output("train_stable_baselines3", tmp_path, *words)
    assert head == "alexnet-inf on tpu-v4i, 43 moves a game, simulated milliseconds"
    slow, *others, bound = (float(line.split()[-1]) for line in lines)
    assert len(others) == 8 and all(bound <= value <= slow for value in others)


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
