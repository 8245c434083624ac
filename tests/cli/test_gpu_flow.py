"""A PyTorch function from the first command to the last: calibrate, plan, check, run, report mean one Program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cost_files import write_costs
from loadmaster.offload.model import LIBRARIES, SPARE
from loadmaster.offload.problem import Offload
from loadmaster.planner import kernel_room
from loadmaster.program.measured_costs import MeasuredCosts, costless_hash
from loadmaster.program.storage import save
from loadmaster.search.registry import load_problem
from offload_stack import stack

pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore")]
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x.square().mean()

def build():
    torch.manual_seed(0)
    return Net(), (torch.randn(16, 64),)

def other():
    return nn.Linear(64, 64), (torch.zeros(16, 64),)
"""
HALF = ("--machine", "h200", "--capacity", "hbm=50%")
QUICK = ("--budget", "60", "--device", "cpu")


@pytest.fixture
def net(elsewhere: Path) -> str:
    pytest.importorskip("torch")
    (elsewhere / "flow_net.py").write_text(NET, encoding="utf-8")
    return "flow_net:build"


def of(answer: dict[str, Any], what: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in answer["rows"] if row["what"] == what)
    return found


def test_one_model_through_all_commands(net: str, run: Any, run_json: Any) -> None:
    run_json("calibrate", net, "--device", "cpu", "--passes", "2", "--costs", "c.json", "--program", "n.npz")
    costs = ("--costs", "c.json")
    planned = run_json("plan", net, *HALF, *costs, *QUICK, "--out", "p.json", "--report")
    assert Path(planned["report"]).is_file()
    machine = ("--machine", f"h200:hbm={planned['fast_capacity_bytes']}")
    of_file = run_json("plan", "n.npz", *HALF, *costs, "--budget", "60", "--no-run")
    assert of_file["ops_picoseconds"] == planned["ops_picoseconds"] and of_file["gaps"] == planned["gaps"]
    assert run("check", net, "p.json", *machine, *costs, "--device", "cpu").out == "ok\n"
    assert run("check", "n.npz", "p.json", *machine, *costs).out == "ok\n"
    ran = run("run", net, "p.json", *HALF, *costs, "--device", "cpu", "--repeats", "1", "--json")
    assert ran.exit == 0
    memory = of(json.loads(ran.out), "memory")
    assert memory["plan_bytes"] <= memory["capacity_bytes"] == planned["fast_capacity_bytes"]
    Path("m.json").write_text(ran.out)
    words = (
        "report",
        net,
        "p.json",
        *machine,
        *costs,
        "--device",
        "cpu",
        "--measured",
        "m.json",
        "--out",
        "r.html",
    )
    assert run(*words).exit == 0
    assert run_json("report", planned["run"], "--measured", "m.json")["exit"] == 0
    again = run_json("plan", net, "--resume", planned["run"], *QUICK[:1], "90", *QUICK[2:])
    assert of(again, "result")["picoseconds"] <= of(planned, "result")["picoseconds"]


def test_one_command_in_place_of_three(
    net: str, elsewhere: Path, run: Any, run_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_CACHE", str(elsewhere / "cache"))
    quick = ("--device", "cpu", "--repeats", "1")
    ran = run_json("run", net, *HALF, *quick, "--evaluations", "60", "--plan-out", "one.json")
    total, memory = of(ran, "total"), of(ran, "memory")
    assert total["identical"] and total["files"] == ["one.json", "one.costs.json"]
    costs = ("--costs", "one.costs.json", "--device", "cpu")
    machine = ("--machine", f"h200:hbm={memory['capacity_bytes']}")
    assert run("check", net, "one.json", *machine, *costs).out == "ok\n"
    again = run_json("run", net, "one.json", *HALF, *costs, "--repeats", "1")
    assert of(again, "total")["plan"] == total["plan"] and of(again, "total")["gap"] is None
    Path("m.json").write_text(json.dumps(ran))
    words = ("report", net, "one.json", *machine, *costs, "--measured", "m.json", "--out", "one.html")
    assert run(*words).exit == 0


def test_a_training_step_with_sliced_weights(net: str, run: Any, run_json: Any) -> None:
    import numpy as np

    step = ("--train", "--split", "8KiB", "--device", "cpu")
    run_json("plan", net, *HALF, *step, "--budget", "60", "--no-run", "--out", "p.json")
    ran = run("run", net, "p.json", *HALF, *step, "--repeats", "1", "--out", "r.npz")
    assert ran.exit == 0 and "largest difference inf" not in ran.out
    with np.load("r.npz") as found:  # the slices of a gradient are one again
        assert found["gradient_layers.0.weight"].shape == (64, 64)
    assert "with the options" in run("run", net, "p.json", *HALF[:2], "--device", "cpu").error_line


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("plan", "flow_net:build", "-m", "h200", "--device", "tpu"), "there is no device 'tpu'", 2),
        (("plan", "flow_net:build", *HALF, "--device", "cpu", "--level", "core"), "without --level", 2),
        (("plan", "flow_net:build", *HALF, "--device", "cpu", "--split", "some"), "--split", 2),
        (("plan", "flow_net:other", *HALF, "--device", "cpu", "--train"), "scalar", 2),
        (("plan", "flow_net:build", "-m", "h200", "--capacity", "hbm=1%", "--device", "cpu"), "at once", 2),
        (("plan", "resnet50", "-m", "h200", "--train"), "about PyTorch functions", 2),
        (("run", "flow_net:build", "none.json", "--device", "cpu"), "can't be read", 2),
        (("run", "flow_net:build", "p.json", "--device", "cpu", "--budget", "some"), "--budget", 2),
    ],
)
def test_what_does_not_fit_together_is_told(
    net: str, run: Any, words: tuple[str, ...], said: str, code: int
) -> None:
    found = run(*words)
    assert found.exit == code and said in found.error_line


def test_a_gpu_to_capture_for_must_be_there(net: str, run: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this computer has a GPU")
    found = run("plan", net, "-m", "h200", "--device", "cuda")
    assert found.exit == 2 and "no CUDA device" in found.error_line


def test_a_module_that_needs_a_missing_package(elsewhere: Path, run: Any) -> None:
    (elsewhere / "lacking.py").write_text("raise ModuleNotFoundError('none', name='torch')\n")
    found = run("plan", "lacking:build", "-m", "h200")
    installed = "can't be imported" in found.error_line
    assert found.exit == (2 if installed else 3) and ("loadmaster[torch]" in found.err) != installed


def test_plans_for_a_gpu_leave_room_for_libraries(net: str, run: Any, monkeypatch: Any) -> None:
    """Also where nothing was measured; all commands mean one capacity."""
    from loadmaster.program.importers.torch import captured

    capture = captured.capture
    monkeypatch.setattr(captured, "capture", lambda *a, **more: capture(*a, **more | {"device": "cpu"}))
    monkeypatch.setattr(captured, "capture_device", lambda name: name or "cuda")  # as if there were one
    words, kept = (net, "--machine", "h200", "--capacity", "hbm=100%"), LIBRARIES + SPARE
    found = run("plan", *words, "--budget", "20", "--out", "p.json")
    said = [line for line in found.out.splitlines() if "not known without --costs" in line]
    assert found.exit == 0 and len(said) == 1 and f"loadmaster calibrate {net} --costs" in said[0]
    assert "all-resident" in found.out and "52.00 MiB of it left to kernels" in found.err
    assert run("check", net, "p.json", *words[1:]).out == "ok\n"
    tiny = run("plan", *words[:-1], "hbm=50%", "--no-run")
    assert tiny.exit == 2 and "of which kernels have 52.00 MiB" in tiny.error_line
    on_cpu = json.loads(run("plan", *words, "--device", "cpu", "--no-run", "--budget", "20", "--json").out)
    problem = load_problem(next(Path("runs").iterdir()))
    assert isinstance(problem, Offload) and problem.for_kernels == kept and problem.kernels is not None
    assert not problem.kernels.workspace.any()
    assert problem.machine.memories[0].capacity == on_cpu["fast_capacity_bytes"] + kept


def test_room_is_the_same_for_planning_and_running() -> None:
    costs = MeasuredCosts("p", "gpu", (1, 1), 2**26 + 2**25, 2**25, (2**26, 0))
    room = kernel_room(2, costs, "cuda")
    assert (room.reserve, room.needed, room.kept) == (0, 2**26 + 2**25, 2**25)  # ops have theirs in the plan
    assert room.kernels is not None and room.kernels.workspace.tolist() == [2**26, 0]
    one = kernel_room(2, replace(costs, kept_bytes=0, op_workspace=()), "cuda")
    assert one.kernels is None and one.reserve == one.needed == one.kept == 2**26 + 2**25
    for device in (None, "cpu"):
        assert kernel_room(2, None, device).kernels is None
    assert kernel_room(2, None, "cuda:1").kept == LIBRARIES


def test_plans_leave_room_for_kernels(elsewhere: Path, run_json: Any) -> None:
    program, kept = stack(layers=4), 2**28
    save(program, elsewhere / "s.npz")
    own, times = (2**26,) + (0,) * (program.n_ops - 1), (10**9,) * program.n_ops
    measured = MeasuredCosts(costless_hash(program), "gpu", times, 2**26 + kept, kept, own)
    write_costs(measured, "c.json")
    words = ("plan", "s.npz", *HALF, "--costs", "c.json", "--budget", "40")
    planned = run_json(*words)
    problem = load_problem(Path(planned["run"]))
    assert isinstance(problem, Offload) and problem.kernels is not None and problem.reserve == 0
    assert problem.kernels.kept == kept and problem.kernels.workspace.tolist() == list(own)
    room = planned["fast_capacity_bytes"] - planned["fast_peak_bytes"]
    assert room >= kept + problem.kernels.spare
    write_costs(replace(measured, workspace_bytes=0, kept_bytes=0, op_workspace=()), "c.json")
    arena = run_json(*words)  # as on a CPU: offsets, and nothing left
    plain = load_problem(Path(arena["run"]))
    assert isinstance(plain, Offload) and plain.kernels is None and plain.reserve == 0
    assert arena["fast_capacity_bytes"] - arena["fast_peak_bytes"] < kept
