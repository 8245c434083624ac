"""`loadmaster plan --evaluator`: a command, or the executor on this computer, measures offload plans."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from loadmaster.machine import load_machine
from loadmaster.machine.presets import with_capacities
from loadmaster.offload.measured import MeasuredOffload
from loadmaster.plan import load_plan
from loadmaster.plan.check import check
from loadmaster.program.storage import save
from offload_stack import LAYER_BYTES, stack

pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore")]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
HALF = f"hbm={4 * LAYER_BYTES}"
NET = """
import torch
from torch import nn

def build():
    layers = [each for _ in range(4) for each in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*layers), (torch.randn(8, 64),)

def number():
    return 3

def lazy():
    return nn.Sequential(nn.LazyLinear(64), nn.Tanh()), (torch.randn(8, 64),)
"""
MEASURE = """
import json, sys
plan = json.load(sys.stdin)
print(1.0 + len(plan["copies"]) / 1000)
"""


def result(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in answer["rows"] if row["what"] == "result")
    return found


def test_a_command_measures_offload_plans(run_json: Any, elsewhere: Path, monkeypatch: Any) -> None:
    closed: list[str] = []
    monkeypatch.setattr(MeasuredOffload, "close", lambda self: closed.append(self.gauge.name))
    save(stack(layers=6), elsewhere / "stack.npz")
    (elsewhere / "measure.py").write_text(MEASURE)
    answer = run_json(
        "plan",
        "stack.npz",
        "-m",
        "h200",
        "--capacity",
        HALF,
        "--budget",
        "12",
        "--repeats",
        "1",
        "--evaluator",
        f"{sys.executable} measure.py",
        "--set",
        "simulated=40",
        "--set",
        "kept=3",
    )
    ours = result(answer)
    assert ours["name"] == "refined" and ours["evaluations"] == 12 and ours["gap"] is None
    assert ours["picoseconds"] == round(ours["champion"]["median_ps"]) and len(closed) == 1
    program, machine = stack(layers=6), with_capacities(load_machine("h200"), [HALF])
    plan = load_plan(Path(answer["plan"]), program, machine)
    assert answer["plan"].endswith("champion.json") and not check(program, machine, plan)
    assert ours["seconds"] == pytest.approx(1.0 + len(plan.copy_rows) / 1000)


@needs_torch
def test_the_executor_measures_here(run_json: Any, elsewhere: Path, monkeypatch: Any) -> None:
    (elsewhere / "netmod.py").write_text(NET)
    words = (
        "plan",
        "netmod:build",
        "-m",
        "h200",
        "--capacity",
        "hbm=60%",
        "--evaluator",
        "executor:cpu",
        "--budget",
        "8",
        "--repeats",
        "1",
    )
    answer = run_json(*words, "--set", "simulated=30", "--set", "kept=3")
    ours = result(answer)
    assert ours["name"] == "refined" and ours["picoseconds"] > 0 and ours["champion"]["times"] == 20
    maps = run_json(*words, "--problem", "mapping", "--solver", "search", "--no-run")
    assert result(maps)["champion"]["median_ps"] > 0


@needs_torch
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resnet50",), "is no module:function"),
        (("netmod:number",), "does not return (nn.Module, args)"),
        (("netmod:lazy",), "'0.weight' of what 'netmod:lazy' returns has no shape yet"),
        (("netmod:build", "--problem", "malloc-game"), "not of malloc-game"),
        (("netmod:build", "--noise", "0.1"), "without pins"),
        (("netmod:build", "--evaluator", "executor:tpu"), "there is no device 'tpu'"),
    ],
)
def test_what_the_executor_refuses(run: Any, elsewhere: Path, words: tuple[str, ...], said: str) -> None:
    (elsewhere / "netmod.py").write_text(NET)
    device = () if "--evaluator" in words else ("--evaluator", "executor:cpu")
    found = run("plan", *words, "-m", "h200", *device)
    assert found.exit == 2 and said in found.error_line


@needs_torch
def test_a_module_without_shapes_is_refused_wherever_it_is_built(run: Any, elsewhere: Path) -> None:
    (elsewhere / "netmod.py").write_text(NET)
    for words in (("run", "netmod:lazy", "--device", "cpu"), ("plan", "netmod:lazy", "-m", "h200")):
        found = run(*words)
        assert found.exit == 2 and "has no shape yet" in found.error_line
