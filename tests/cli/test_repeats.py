"""Plans in which ops run again: every command that takes a model and a plan means one program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_files import write_costs
from generate_offload import OffloadPlans
from loadmaster.machine import load_machine
from loadmaster.plan import load_planned, save_plan
from loadmaster.program import Program, load, save
from loadmaster.program.build import Builder
from loadmaster.program.measured_costs import MeasuredCosts, apply_costs, costless_hash
from loadmaster.program.repeats import repeat
from offload_stack import stack

pytestmark = pytest.mark.usefixtures("elsewhere")
SIZE = 2**26
MACHINE = ("--machine", "h200")


def training_step(layers: int = 5) -> Program:
    """Matrix products with a cheap op after each, and their gradients."""
    build = Builder("step")
    shown = build.tensor("x", bytes=SIZE, kind="input")
    weights = [build.tensor(f"w{i}", bytes=2**20, kind="weight") for i in range(layers)]
    kept = []
    for i, weight in enumerate(weights):
        made, bent = (build.tensor(f"{name}{i}", bytes=SIZE) for name in ("h", "g"))
        build.op(f"matmul{i}", "matmul", reads=[shown, weight], writes=[made])
        build.op(f"gelu{i}", "gelu", reads=[made], writes=[bent])
        kept.append((shown, weight, made))
        shown = bent
    back = build.tensor("loss", bytes=SIZE)
    build.op("loss", "add", reads=[shown], writes=[back], backward=True)
    for i, (read, weight, made) in reversed(list(enumerate(kept))):
        inner, outer = (build.tensor(f"{name}{i}", bytes=SIZE) for name in ("dh", "dx"))
        own = build.tensor(f"dw{i}", bytes=2**20, kind="output")
        build.op(f"gelu{i}.back", "gelu_backward", reads=[back, made], writes=[inner], backward=True)
        build.op(f"matmul{i}.back", "matmul", reads=[inner, read, weight], writes=[own, outer], backward=True)
        back = outer
    return build.build()


def times(program: Program) -> MeasuredCosts:
    """Products take a millisecond, what is cheap a fiftieth."""
    each = [10**9 if "matmul" in name else 2 * 10**7 for name in program.op_name]
    return MeasuredCosts(costless_hash(program), "gpu", tuple(each))


@pytest.fixture
def model() -> str:
    save(training_step(), "step.npz")
    write_costs(times(training_step()), "c.json")
    return "step.npz"


def test_commands_make_the_program_of_a_plan(model: str, run: Any, run_json: Any) -> None:
    machine, base = load_machine("h200:hbm=2GiB"), load(model)
    again = repeat(base, [1, 3, 5]).program
    save_plan(OffloadPlans(again, 3).make(0.5), again, machine, "p.json")
    assert json.loads(Path("p.json").read_text())["repeats"]["ops"] == [1, 3, 5]
    program, plan = load_planned("p.json", base, machine)
    assert program.hash == again.hash and load_planned("p.json", again, machine)[1].hash == plan.hash
    sized = (*MACHINE, "--capacity", "hbm=2GiB")
    assert run("check", model, "p.json", *sized).out == "ok\n"
    found = run_json("simulate", model, "p.json", *sized)
    assert found["rows"][0]["violations"] == 0
    assert run("report", model, "p.json", *sized, "--out", "r.html").exit == 0
    assert run("export", "trace", model, "p.json", "-m", "h200:hbm=2GiB").exit == 0
    save_plan(OffloadPlans(base, 3).make(0.5), base, machine, "q.json")
    assert "repeats" not in json.loads(Path("q.json").read_text())
    assert "different programs" in run("report", model, "p.json", "q.json", *sized).error_line
    told = run("check", model, "p.json", *MACHINE).error_line
    assert "--capacity hbm=2GiB" in told and "another capacity" in told


def test_measured_times_count_where_an_op_runs_again(model: str, run: Any) -> None:
    machine = load_machine("h200:hbm=2GiB")
    timed = apply_costs(load(model), times(load(model)))
    found = repeat(timed, [1, 3])
    assert found.program.costs is not None and timed.costs is not None
    assert np.array_equal(found.program.costs, timed.costs[found.origin])
    save_plan(OffloadPlans(found.program, 1).make(0.5), found.program, machine, "p.json")
    words = ("check", model, "p.json", "-m", "h200:hbm=2GiB")
    assert run(*words, "--costs", "c.json").out == "ok\n"
    assert "such as --costs" in run(*words).error_line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ops": [1, 2]}, "another program"),
        ({"ops": [10**6]}, "can't be repeated"),
        ({"ops": [10]}, "can't be repeated"),
        ({"ops": "all"}, "op numbers"),
        ({"base": "0" * 64}, "another program"),
    ],
)
def test_what_a_plan_says_of_repeats_is_checked(model: str, run: Any, change: Any, said: str) -> None:
    machine, again = load_machine("h200"), repeat(load(model), [1, 3]).program
    save_plan(OffloadPlans(again, 0).make(0.5), again, machine, "p.json")
    document = json.loads(Path("p.json").read_text())
    document["repeats"] |= change
    Path("p.json").write_text(json.dumps(document))
    found = run("check", model, "p.json", *MACHINE)
    assert found.exit == 2 and said in found.error_line


def test_a_program_with_repeats_is_saved_as_one(model: str) -> None:
    again = repeat(load(model), [1, 3]).program
    save(again, "again.npz")
    assert load("again.npz").repeats == again.repeats and load("again.npz").hash == again.hash
    assert replace(again, repeats=None).hash == again.hash


def result(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in answer["rows"] if row["what"] == "result")
    return found


def test_a_training_step_is_planned_with_repeats(model: str, run: Any, run_json: Any) -> None:
    half = (*MACHINE, "--costs", "c.json", "--capacity", "hbm=50%")
    words = ("plan", model, *half, "--budget", "60", "--out", "p.json", "--overwrite")
    copied = run_json(*words, "--no-recompute", "--no-run")
    assert copied["repeats"] == 0 and "repeats" not in json.loads(Path("p.json").read_text())
    planned = run_json(*words)
    assert planned["repeats"] > 0 and result(planned)["picoseconds"] < result(copied)["picoseconds"]
    once = planned["ops_picoseconds"] - planned["repeat_picoseconds"]
    assert once == copied["ops_picoseconds"] and planned["repeat_picoseconds"] > 0
    assert planned["fast_capacity_bytes"] == copied["fast_capacity_bytes"]
    assert run("check", model, "p.json", *half).out == "ok\n"
    assert run("replay", planned["run"]).exit == 0
    again = run("plan", model, "--resume", planned["run"], "--budget", "80")
    assert again.exit == 0 and f"{planned['repeats']} ops run again" in again.out
    assert f"simulate {planned['run']}" in again.out and run("simulate", planned["run"]).exit == 0
    about = Path(planned["run"]) / "run.json"
    content = json.loads(about.read_text())
    assert content["model"].pop("file")["path"] == model
    assert content["model"] == {"source": model, "level": "functional", "costs": "c.json"}
    del content["model"]  # as in the runs of earlier versions, which have their command alone
    about.write_text(json.dumps(content))
    assert run("resume", planned["run"], "--budget", "90").exit == 0


def test_where_nothing_can_run_again(run: Any) -> None:
    save(stack(layers=2), "stack.npz")
    told = run("plan", "stack.npz", *MACHINE, "--recompute", "--no-run")
    assert told.exit == 2 and "no backward pass" in told.error_line
    told = run("plan", "stack.npz", "-m", "nnp-i", "--recompute", "--no-run")
    assert told.exit == 2 and "--problem offload" in told.error_line


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x)) + x
        return x.square().mean()

def build():
    torch.manual_seed(0)
    return Net(), (torch.randn(4096, 16),)
"""


@pytest.mark.filterwarnings("ignore")
def test_what_was_planned_is_run(elsewhere: Path, run: Any, run_json: Any) -> None:
    pytest.importorskip("torch")
    (elsewhere / "again_net.py").write_text(NET, encoding="utf-8")
    step = ("again_net:build", "--train", "--device", "cpu")
    half = (*MACHINE, "--capacity", "hbm=50%")
    planned = run_json("plan", *step, *half, "--budget", "40", "--no-run", "--out", "p.json")
    assert planned["repeats"] > 0
    ran = json.loads(run("run", *step[:1], "p.json", *step[1:], *half, "--repeats", "1", "--json").out)
    assert ran["exit"] == 0 and ran["rows"][0]["identical"]
    measured = run_json(
        "plan",
        *step,
        *half,
        "--evaluator",
        "executor:cpu",
        "--budget",
        "3",
        "--repeats",
        "1",
        "--no-run",
        "--set",
        "simulated=20",
        "--set",
        "kept=2",
    )
    assert measured["repeats"] > 0 and result(measured)["picoseconds"] > 0
