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
from loadmaster.errors import NoAnswer
from loadmaster.machine import load_machine
from loadmaster.plan import save_plan
from loadmaster.runs import Interrupted
from loadmaster.search.request import BadRequest, parse_capacity

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from loadmaster.execute import run_plan as running  # noqa: E402
from loadmaster.execute import speeds  # noqa: E402
from loadmaster.execute.ready import difference, make_ready  # noqa: E402
from loadmaster.execute.run_plan import PlanFiles, PlanSearch, run_plan  # noqa: E402
from loadmaster.execute.speeds import LinkSpeed, Speeds, is_measured_on_cpu  # noqa: E402
from loadmaster.program.importers.torch import captured  # noqa: E402

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

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 8)
    def forward(self, words, shift):
        return self.table(words) - shift

def words():
    torch.manual_seed(0)
    return Words(), (torch.ones(5, dtype=torch.long),), {"shift": torch.ones(5, 8)}

class Odd(nn.Linear):
    def __init__(self):
        super().__init__(8, 4)
        self.register_buffer("grid", torch.eye(4).to_sparse())
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.register_buffer("same", self.scale)
    def forward(self, x):
        return super().forward(x) * self.same

class Branches(Odd):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (super().forward(x),))

def odd():
    return Odd(), (torch.ones(5, 8),)

def branches():
    return Branches(), (torch.ones(5, 8),)

def wrong():
    return Loss(), (torch.ones(5, 9),)

class Looks(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

def looks():
    return Looks(8, 8), (torch.ones(5, 8),)
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


def test_what_is_no_model_or_run_is_named_with_what_there_is(spec: str) -> None:
    Path("runs").mkdir()
    for words in (["runs"], [f"{spec}:build", "runs"]):
        code, document = call(*words)
        assert code == 2 and "'runs' is a folder, and no run" in document["error"]["message"]
    code, document = call(f"{spec}.py")
    assert code == 2 and f"write {spec}:build or {spec}:step" in document["error"]["message"]
    code, document = call(f"{spec}:build", "--capacity", "hbm=1MiB", "--capacity", "hbm=2MiB")
    assert code == 2 and "'hbm' twice, the second time 2MiB" in document["error"]["message"]


def test_inputs_of_a_file_go_by_their_names_and_are_what_the_model_takes(spec: str) -> None:
    plan, model = plan_for(f"{spec}:words"), f"{spec}:words"
    shift, words = np.full((5, 8), 2, np.float32), np.array([3, 1, 2, 0, 3])
    about = (model, plan, "-m", "h200:hbm=1MiB", "--inputs")
    np.savez("named.npz", shift=shift, words=words)
    np.savez("ordered.npz", words, shift)
    for file in ("named", "ordered"):
        code, document = call(*about, f"{file}.npz", "--out", f"{file}.out.npz")
        assert code == 0, document["error"]
        module, *_ = sys.modules[spec].words()
        with np.load(f"{file}.out.npz") as found:
            assert np.array_equal(found["output_0"], module.table.weight.detach().numpy()[words] - shift)
    np.savez("wrong.npz", words[:3], shift)
    code, document = call(*about, "wrong.npz", "--out", "o.npz")
    assert code == 2 and document["error"]["object"] == "words"
    assert "(3,) for input 'words', which is torch.int64 (5,)" in document["error"]["message"]
    np.savez("wrong.npz", words + 0.5, shift)
    assert "torch.float64" in call(*about, "wrong.npz")[1]["error"]["message"]
    np.savez("wrong.npz", words)
    assert "by name: words, shift" in call(*about, "wrong.npz")[1]["error"]["message"]
    np.savez("wrong.npz", words + 4, shift)
    code, document = call(*about, "wrong.npz", "--out", "o.npz")
    assert code == 2 and "itself fails on these inputs: index out of range" in document["error"]["message"]
    assert "is a device" in call(*about, "/dev/null")[1]["error"]["message"]
    assert not Path("o.npz").exists()


@pytest.mark.parametrize("options", [[], ["--weights", "random"], ["--train"]])
def test_inputs_that_do_not_fit_are_told_apart_from_what_can_not_be_traced(
    spec: str, options: list[str]
) -> None:
    code, document = call(f"{spec}:wrong", *options)
    message = document["error"]["message"]
    assert code == 2 and f"'{spec}:wrong' itself fails on these inputs: " in message
    assert "9" in message and "loadmaster.fit" not in message
    code, document = call(f"{spec}:looks", *options)
    message = document["error"]["message"]
    assert code == 2 and "branches on a tensor's values" in message and "loadmaster.fit" in message


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
    code, document = call(model, plan, *machine, "--placement", "mine")
    assert code == 2 and document["error"]["object"] == "--placement"
    if not torch.cuda.is_available():
        result = CliRunner().invoke(app, ["run", model, plan, *machine, "--device", "cuda"])
        assert result.exit_code == 2 and "no CUDA device" in result.stderr


def test_a_cuda_graph_is_refused_before_a_plan_is_sought(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, model = plan_for(f"{spec}:build"), f"{spec}:build"
    monkeypatch.setattr(running, "_search_plan", None)
    for words in (plan, "-m", "h200:hbm=1MiB"), ():
        code, document = call(model, *words, "--cuda-graph")
        assert code == 2 and "a CUDA graph runs on a CUDA device" in document["error"]["message"]
    monkeypatch.setattr(running.own_allocator, "fewer_holes", lambda: None)
    with pytest.raises(BadRequest, match="in one piece"):
        run_plan(model, PlanSearch(), None, capacity={}, device="cuda", cuda_graph=True, timings=True)


def test_what_is_held_is_called_by_its_name_and_a_slow_host_too() -> None:
    total = {
        "identical": None,
        "seconds": 1.0,
        "predicted_seconds": 1.0,
        "difference": 0.0,
        "ordinary_seconds": None,
        "planning_seconds": None,
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


def test_a_sparse_buffer_and_one_with_two_names_stand_in_the_ordinary_run(spec: str) -> None:
    plan = plan_for(f"{spec}:odd")
    code, document = call(f"{spec}:odd", plan, "-m", "h200:hbm=1MiB")
    total, memory, *_ = document["rows"]
    assert code == 0 and total["largest_difference"] == 0
    # Weights, the shared buffer once, the input and two results; a sparse buffer has no bytes of its own.
    assert memory["ordinary_bytes"] == 4 * (8 * 4 + 4 + 4 + 5 * 8 + 2 * 5 * 4)
    ready = make_ready(f"{spec}:odd", "cpu")
    assert {"scale", "same"} <= ready.weights.keys()


def test_an_ordinary_run_whose_peak_cannot_be_counted_has_a_time(spec: str) -> None:
    plan = plan_for(f"{spec}:branches")
    args = ["run", f"{spec}:branches", plan, "-m", "h200:hbm=1MiB", "--device", "cpu"]
    code, document = call(*args[1:4], "h200:hbm=1MiB")
    total, memory, *_ = document["rows"]
    assert code == 0 and total["largest_difference"] == 0 and total["ordinary_seconds"] > 0
    assert memory["ordinary_bytes"] is None
    shown = CliRunner().invoke(app, args).stdout
    assert "ordinary run" in shown and "peak 0" not in shown and "of the memory" not in shown


def test_differences_are_shares_of_the_largest_value() -> None:
    one = torch.tensor([1.0, -4.0, float("nan")])
    assert difference(one, one.clone()) == 0.0
    assert difference(one + torch.tensor([1.0, 0, 0]), one) == 0.25
    assert difference(torch.tensor([1.0, 2, 3]), one) == float("inf")
    assert difference(torch.tensor([1]), torch.tensor([2])) == float("inf")


# Without a plan.

DEEP = """
import torch
from torch import nn

CALLS = []

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x.square().mean()

def build():
    CALLS.append("build")
    torch.manual_seed(0)
    return Deep(), (torch.randn(16, 64),)
"""
LINK = LinkSpeed(54.3e9, 8e-6, 49e9, (2**20, 2**26), (2e-5, 2e-3))
RATES = {"f32": 5e13, "f16": 7e14, "bf16": 7.8e14}
SPEEDS = Speeds("cpu", "cpu", 2**34, 2**33, 2**34, LINK, LINK, 4e12, RATES, 2e-6, {})
FEW = ("--evaluations", "60", "--repeats", "1")
HALF = ("--capacity", "hbm=50%", *FEW)


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model, on a computer whose speeds do not depend on what else it does, with nothing known of its ops."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(speeds, "quick_speeds", lambda clock: SPEEDS)
    (tmp_path / "deep_net.py").write_text(DEEP, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "deep_net", raising=False)
    return "deep_net:build"


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of all models that are captured from now on."""
    found: list[str] = []
    capture = captured.capture

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.append(kwargs["name"])
        return capture(*args, **kwargs)

    monkeypatch.setattr(captured, "capture", counted)
    return found


@pytest.mark.parametrize("train", [False, True])
def test_measured_planned_and_run_with_one_build_and_one_capture(
    deep: str, captures: list[str], train: bool
) -> None:
    step = ["--train"] if train else []
    code, document = call(deep, *HALF, *step, "--plan-out", "plan.json")
    assert code == 0, document["error"]
    assert captures == [deep] and sys.modules["deep_net"].CALLS == ["build"]
    total, memory, *_ = document["rows"]
    assert total["compared"] == (13 if train else 1) and total["largest_difference"] < 1e-5
    assert 0 < total["bound_seconds"] <= total["predicted_seconds"] and total["difference"] is not None
    assert total["gap"] == pytest.approx(total["predicted_seconds"] / total["bound_seconds"] - 1)
    assert total["planning_seconds"] == total["measuring_seconds"] == 0.0  # the clock stands still
    assert memory["plan_bytes"] <= memory["capacity_bytes"] < memory["ordinary_bytes"]
    assert total["files"] == ["plan.json", "plan.machine.toml", "plan.costs.json"]
    # What was written is what later commands need.
    about = ("-m", "plan.machine.toml", "--costs", "plan.costs.json", *step)
    code, document = call(deep, "plan.json", *about, "--repeats", "1")
    assert code == 0, document["error"]
    again = document["rows"][0]
    assert again["plan"] == total["plan"] and again["predicted_seconds"] == total["predicted_seconds"]
    assert again["planning_seconds"] is again["bound_seconds"] is again["gap"] is None and not again["files"]
    # The capacity that the machine's file has may be given too, as it was or in bytes.
    size = memory["capacity_bytes"]
    for given in ("hbm=50%", f"hbm={size}", f"hbm={size}B"):
        code, document = call(deep, "plan.json", *about, "--repeats", "1", "--capacity", given)
        assert code == 0, document["error"]
        assert document["rows"][0]["plan"] == total["plan"]
    code, document = call(deep, "plan.json", *about, "--capacity", "hbm=60%")
    assert code == 2 and f"give --capacity hbm={size}" in document["error"]["message"]


def test_the_line_that_runs_it_again_can_be_typed(deep: str) -> None:
    words = ["run", deep, "--device", "cpu", *HALF, "--split", "8KiB", "--weights", "random"]
    shown = CliRunner().invoke(app, [*words, "--plan-out", "plan.json"])
    assert shown.exit_code == 0 and "planned in" in shown.stdout and "(gap " in shown.stdout
    assert "measuring cpu" in shown.stderr and "distinct ops" in shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("again:")]
    again = CliRunner().invoke(app, line.split()[2:])
    assert again.exit_code == 0 and "planned in" not in again.stdout
    # What was measured is known now.
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0 and "measuring" not in shown.stderr and "wrote" not in shown.stdout


def test_what_is_given_is_not_measured(deep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _ = call(deep, *HALF, "--plan-out", "one.json")
    assert code == 0
    monkeypatch.setattr(running, "_sample", None)
    monkeypatch.setattr(speeds, "quick_machine", None)
    given = ("-m", "h200", "--costs", "one.costs.json")
    code, document = call(deep, *HALF, *given, "--plan-out", "two.json")
    assert code == 0, document["error"]
    assert document["rows"][0]["files"] == ["two.json"] and document["rows"][0]["difference"] is None
    code, document = call(deep, "two.json", *given, *HALF[:2], "--repeats", "1")
    assert code == 0, document["error"]


def test_without_a_capacity_all_of_the_memory_is_used(deep: str) -> None:
    shown = CliRunner().invoke(app, ["run", deep, "--device", "cpu", *FEW])
    assert shown.exit_code == 0
    assert "no --capacity hbm=SIZE: deep_net:build may have all of it, 15.00 GiB" in shown.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--capacity", "hbm=1KiB"), "give --capacity hbm="),
        (("--capacity", "hbm=1%"), "give --capacity hbm="),
        (("--capacity", "sram=1MiB"), "no memory 'sram'"),
        (("--capacity", "50%"), "names no memory: write hbm=50%"),
        (("--inputs", "none.npz"), "there is no file 'none.npz'"),
        (("--budget", "1MiB"), "--budget is for a plan that is there"),
        (("--time-limit", "0s"), "leaves no time"),
        (("--time-limit", "soon"), "--time-limit"),
        (("plan.json", "--time-limit", "20s"), "--time-limit is for a plan that is sought"),
        (("plan.json", "--evaluations", "9"), "--evaluations is for a plan that is sought"),
        (("plan.json", "--plan-out", "p.json"), "--plan-out is for a plan that is sought"),
        (("--plan-out", "r.npz", "--out", "r.npz"), "'r.npz' is a file of the plan"),
        (("--plan-out", "there.json"), "'there.costs.json' is there already"),
        (("--plan-out", "p.json", "--costs", "p.json"), "is what is read"),
    ],
)
def test_what_makes_no_sense_without_a_plan_or_with_one(deep: str, words: tuple[str, ...], said: str) -> None:
    Path("there.costs.json").write_text("{}")
    Path("p.json").write_text("{}")
    code, document = call(deep, *words)
    assert code == 2 and said in document["error"]["message"]
    assert Path("there.costs.json").read_text() == Path("p.json").read_text() == "{}"


def test_what_is_no_function_is_told(deep: str) -> None:
    for model, said in (
        ("deep_net:biuld", "has no function 'biuld' (did you mean 'build'?)"),
        ("none_net:build", "can't be imported"),
        ("resnet50", "no PyTorch function"),
        ("runs/none", "give module:function, a plan or a run"),
    ):
        code, document = call(model, *HALF)
        assert code == 2 and said in document["error"]["message"], document["error"]


def test_a_search_that_ends_with_nothing(deep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = running.solve_problem
    search = PlanSearch(evaluations=10, files=PlanFiles.beside(Path("p.json"), machine=True, costs=True))

    def run() -> None:
        run_plan(deep, search, None, capacity=parse_capacity(["hbm=50%"]), device="cpu")

    def none(*args: Any) -> Any:
        return replace(solve(*args), plan=None)

    def interrupted(*args: Any) -> Any:
        found = solve(*args)
        found.solution.interrupted = True
        return found

    monkeypatch.setattr(running, "solve_problem", none)
    with pytest.raises(NoAnswer, match="give more --time-limit, or more --capacity"):
        run()
    monkeypatch.setattr(running, "solve_problem", interrupted)
    with pytest.raises(Interrupted, match="nothing was run"):
        run()
    assert not Path("p.json").exists() and not Path("p.costs.json").exists()
