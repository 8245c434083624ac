"""`loadmaster run` on a CPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import loadmaster.cli
from generate_offload import OffloadPlans
from loadmaster.cli.answer import Table
from loadmaster.cli.main import app
from loadmaster.cli.run import blocks_of
from loadmaster.machine import load_machine
from loadmaster.plan import save_plan

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from loadmaster.execute.ready import difference, make_ready  # noqa: E402
from loadmaster.execute.speeds import is_measured_on_cpu  # noqa: E402

SCHEMA = json.loads((Path(loadmaster.cli.__file__).parent / "schema.json").read_text())
MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    return net, (torch.ones(5, 8),)

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = build()[0]
    def forward(self, x):
        return self.net(x).square().mean()

def step():
    return Loss(), (torch.ones(5, 8),)

def drops():
    loss, inputs = step()
    loss.net.insert(2, nn.Dropout(0.5))
    return loss, inputs

class Untraced(nn.Linear):
    def forward(self, x):
        if not torch.compiler.is_compiling():
            raise ValueError("only traced")
        return super().forward(x)

def untraced():
    return Untraced(8, 4), (torch.ones(5, 8),)
"""
CPU = "cpu as measured: device memory over pinned host memory"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net_to_run.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "net_to_run", raising=False)
    return "net_to_run"


def plan_for(model: str, keep: float = 0.3, machine: str = "h200:hbm=1MiB", **options: Any) -> str:
    ready = make_ready(model, "cpu", **options)
    program = ready.captured.program
    plan = OffloadPlans(program, 1).make(keep)
    save_plan(plan, program, load_machine(machine), "plan.json")
    return "plan.json"


def call(*args: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["run", *map(str, args), "--device", "cpu", "--json"])
    document = json.loads(result.stdout)
    for row in document["rows"]:
        assert set(SCHEMA["$defs"][f"run.{row['what']}"]["required"]) <= set(row)
    return result.exit_code, document


def test_a_plan_is_run_and_measured(spec: str) -> None:
    plan = plan_for(f"{spec}:build")
    code, document = call(f"{spec}:build", plan, "--capacity", "hbm=1MiB", "--timings", "--out", "o.npz")
    assert code == 0, document["error"]
    total, memory, *ops = document["rows"]
    assert total["identical"] and total["compared"] == 1 and total["seconds"] > 0
    assert len(total["runs"]) == 5 and total["predicted_seconds"] > 0
    assert 0 < memory["peak_bytes"] <= memory["capacity_bytes"] == 2**20
    assert memory["placement"] == "arena"
    assert [op["name"] for op in ops] == ["linear", "relu", "linear_1"]
    module, (x,) = sys.modules[spec].build()
    with np.load("o.npz") as file:
        assert np.array_equal(file["output_0"], module(x).detach().numpy())


def test_inputs_come_from_a_file(spec: str) -> None:
    plan = plan_for(f"{spec}:build")
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    np.savez("in.npz", x)
    code, document = call(
        f"{spec}:build", plan, "-m", "h200:hbm=1MiB", "--inputs", "in.npz", "--out", "o.npz"
    )
    assert code == 0 and document["rows"][0]["identical"] is None
    module, _ = sys.modules[spec].build()
    with np.load("o.npz") as file:
        assert np.array_equal(file["output_0"], module(torch.from_numpy(x)).detach().numpy())


def test_a_training_step_and_random_weights(spec: str) -> None:
    plan = plan_for(f"{spec}:step", training=True)
    code, document = call(f"{spec}:step", plan, "-m", "h200:hbm=1MiB", "--train")
    assert code == 0 and document["rows"][0]["compared"] == 5
    assert document["rows"][0]["largest_difference"] < 1e-5
    for function, train in (("build", []), ("step", ["--train"])):
        plan = plan_for(f"{spec}:{function}", weights="random", training=bool(train))
        code, document = call(
            f"{spec}:{function}", plan, "-m", "h200:hbm=1MiB", "--weights", "random", *train
        )
        assert code == 0 and document["rows"][0]["identical"]


def test_what_is_refused(spec: str) -> None:
    plan, model = plan_for(f"{spec}:build"), f"{spec}:build"
    machine = ("-m", "h200:hbm=1MiB")
    code, document = call(model, plan, *machine, "--budget", "1KiB")
    assert code == 2 and "may have 1" in document["error"]["message"]
    code, document = call(model, plan)
    assert code == 2 and "another machine" in document["error"]["message"]
    assert "give --capacity hbm=1MiB" in document["error"]["message"]
    code, document = call(model, plan, *machine, "--weights", "mine")
    assert code == 2 and document["error"]["object"] == "--weights"
    code, document = call(model, plan, *machine, "--cuda-graph")
    assert code == 2 and "CUDA graph" in document["error"]["message"]
    if not torch.cuda.is_available():
        result = CliRunner().invoke(app, ["run", model, plan, *machine, "--device", "cuda"])
        assert result.exit_code == 2 and "no CUDA device" in result.stderr


def test_what_is_held_is_called_by_its_name_and_a_slow_host_too() -> None:
    total = {
        "identical": None,
        "seconds": 1.0,
        "predicted_seconds": 1.0,
        "difference": 0.0,
        "ordinary_seconds": None,
        "model": "m",
        "machine": "h200",
        "device": "cuda",
    }
    for placement, said in (
        ("planned", "the arena and what libraries keep"),
        ("allocator", "held by the allocator"),
    ):
        memory = {
            "name": "hbm",
            "peak_bytes": 1,
            "capacity_bytes": 2,
            "reserved_bytes": 2,
            "ordinary_bytes": None,
            "placement": placement,
        }
        (table,) = blocks_of([total, memory], None)
        assert isinstance(table, Table) and said in [cell for cell, _ in table.rows]
    late = [{**total, "difference": -0.2}, memory]
    assert "--cuda-graph" in str(blocks_of(late, None, one_by_one=True)[1])
    assert len(blocks_of(late, None)) == 1


def test_a_prediction_for_a_gpu_is_not_compared_with_a_cpu(spec: str) -> None:
    plan = plan_for(f"{spec}:build")
    code, document = call(f"{spec}:build", plan, "-m", "h200:hbm=1MiB")
    assert code == 0 and document["rows"][0]["difference"] is None
    shown = (
        CliRunner()
        .invoke(app, ["run", f"{spec}:build", plan, "-m", "h200:hbm=1MiB", "--device", "cpu"])
        .stdout
    )
    assert "the prediction is for 'h200:hbm=1MiB' and the run was on a CPU" in shown
    # A CPU's own machine, as calibrated, may be compared.
    measured = replace(load_machine("h200:hbm=1MiB"), description=CPU)
    assert is_measured_on_cpu(measured) and not is_measured_on_cpu(load_machine("h200"))


def test_the_ordinary_run_stands_beside_the_planned_one(spec: str) -> None:
    plan = plan_for(f"{spec}:build")
    code, document = call(f"{spec}:build", plan, "-m", "h200:hbm=1MiB")
    total, memory, *_ = document["rows"]
    assert code == 0 and total["ordinary_seconds"] > 0
    # Weights, the input, and at most the two results of 5 × 32 numbers around the ReLU.
    weights = 4 * (8 * 32 + 32 + 32 * 4 + 4 + 5 * 8)
    assert memory["ordinary_bytes"] == weights + 2 * 4 * 5 * 32
    shown = (
        CliRunner()
        .invoke(app, ["run", f"{spec}:build", plan, "-m", "h200:hbm=1MiB", "--device", "cpu"])
        .stdout
    )
    assert "ordinary run" in shown and "times as long in" in shown
    code, document = call(f"{spec}:build", plan, "-m", "h200:hbm=1MiB", "--no-verify")
    assert code == 0 and document["rows"][0]["ordinary_seconds"] is None


def test_what_draws_random_numbers_is_compared_with_the_same_ones(spec: str) -> None:
    plan = plan_for(f"{spec}:drops", training=True)
    code, document = call(f"{spec}:drops", plan, "-m", "h200:hbm=1MiB", "--train")
    assert code == 0 and document["rows"][0]["compared"] == 5
    assert document["rows"][0]["largest_difference"] < 1e-5


def test_an_ordinary_run_that_fails_is_told_and_the_plan_is_run(spec: str) -> None:
    plan = plan_for(f"{spec}:untraced")
    result = CliRunner().invoke(
        app, ["run", f"{spec}:untraced", plan, "-m", "h200:hbm=1MiB", "--device", "cpu"]
    )
    assert result.exit_code == 0 and "results" in result.stdout and "not compared" in result.stdout
    assert "the ordinary run fails, so results are not compared: only traced" in result.stderr


def test_differences_are_shares_of_the_largest_value() -> None:
    one = torch.tensor([1.0, -4.0, float("nan")])
    assert difference(one, one.clone()) == 0.0
    assert difference(one + torch.tensor([1.0, 0, 0]), one) == 0.25
    assert difference(torch.tensor([1.0, 2, 3]), one) == float("inf")
    assert difference(torch.tensor([1]), torch.tensor([2])) == float("inf")
