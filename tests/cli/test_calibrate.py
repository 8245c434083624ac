"""`loadmaster calibrate`: files that planning reads, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadmaster.cli.main import app
from loadmaster.machine import load_machine
from loadmaster.program.measured_costs import apply_costs, read_costs
from loadmaster.program.storage import load

NET = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), (torch.zeros(5, 8),)
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.execute import speeds

    monkeypatch.setitem(speeds.EFFORT, "cpu", speeds.Effort(64, 64, 2**20, 2**18, 1))
    # On a busy computer the measured ones contradict each other, and are refused.
    monkeypatch.setattr(speeds, "_copy_seconds", lambda *given: 1e-6 + given[3] / 1e10)


@pytest.mark.usefixtures("quick")
def test_a_machine_and_a_model_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "calibrated_net.py").write_text(NET, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        app,
        [
            "calibrate",
            "calibrated_net:build",
            "--device",
            "cpu",
            "--base",
            "h200",
            "--out",
            "mine.toml",
            "--costs",
            "net.json",
            "--program",
            "net.npz",
            "--passes",
            "2",
            "--json",
        ],
    )
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and [row["what"] for row in document["rows"]] == ["machine", "model"]
    machine = load_machine(str(tmp_path / "mine.toml"))
    assert machine.name == "mine" and machine.devices[0].name == "gpu" and len(machine.links) == 2
    costs = read_costs("net.json")
    program = apply_costs(load("net.npz"), costs, machine.devices[0].name)
    assert program.costs is not None and program.costs.sum() > 0
    assert document["rows"][1]["hash"] == costs.program
    again = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--out", "mine.toml"])
    assert again.exit_code == 2 and "there already" in again.stderr


def test_costs_need_a_model() -> None:
    result = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--costs", "nowhere.json"])
    assert result.exit_code == 2 and "none is given" in result.stderr


def test_a_gpu_that_is_not_there_is_told() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this computer has a GPU")
    result = CliRunner().invoke(app, ["calibrate"])
    assert result.exit_code == 2 and "no CUDA device" in result.stderr


def test_a_model_is_named_as_run_and_plan_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "timed_net.py").write_text(NET, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["calibrate", "timed_net.py:build", "--device", "cpu", "--passes", "1", "--json"]
    result = CliRunner().invoke(app, [*words, "--costs", "net.json"])
    document = json.loads(result.stdout)
    assert result.exit_code == 0, document["error"]
    assert document["rows"][0]["model"] == "timed_net:build" and read_costs("net.json").program
    for model, said in (
        ("timed_net.py", "is a Python file, and the model is one of its functions: write timed_net:build"),
        ("resnet50", "'resnet50' is no PyTorch function"),
    ):
        result = CliRunner().invoke(app, ["calibrate", model, "--device", "cpu"])
        assert result.exit_code == 2 and said in result.stderr
