"""Every command that the program prints works as it is printed, and a run needs nothing said again."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loadmaster.cli
from generate_mapping import layers
from loadmaster.program import save
from loadmaster.runs.folder import RunFolder, hash_file
from loadmaster.runs.observer import RunObserver
from loadmaster.search.solver import Meter

pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore")]
BRANCHES = Path(loadmaster.cli.__file__).with_name("four_branches.tflite")
HLO = """HloModule tiny, is_scheduled=true
ENTRY %main (x: f32[4,8], w: f32[8,2]) -> f32[4,2] {
  %x = f32[4,8]{1,0} parameter(0)
  %w = f32[8,2]{1,0} parameter(1)
  %y = f32[4,2]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %z = f32[4,2]{1,0} exponential(%y)
}
"""
NETS = """
def jaxed(x, w):
    return (x @ w).sum(-1)

def build():
    import torch
    from torch import nn
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    return net, (torch.zeros(8, 32),)
"""


def _program(folder: Path) -> list[str]:
    save(layers(4), folder / "its own 'program'.npz")
    return ["its own 'program'.npz", "-m", "nnp-i"]


def _onnx(folder: Path) -> list[str]:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    given = helper.make_tensor_value_info("an input", kind, ["batch", 8])
    made = helper.make_tensor_value_info("y", kind, ["batch", 8])
    graph = helper.make_graph([helper.make_node("Relu", ["an input"], ["y"])], "g", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "open shape.onnx")
    return ["open shape.onnx", "--shape", "an input=4,8", "-m", "nnp-i"]


def _tflite(folder: Path) -> list[str]:
    shutil.copy(BRANCHES, folder / "four branches.tflite")
    return ["four branches.tflite", "-m", "arena:1MiB"]


def _hlo(folder: Path) -> list[str]:
    (folder / "it's.hlo").write_text(HLO)
    return ["it's.hlo", "--weights", "1", "-m", "nnp-i"]


def _jax(folder: Path) -> list[str]:
    pytest.importorskip("jax")
    (folder / "nets_of_test.py").write_text(NETS)
    return ["nets_of_test:jaxed", "--arg", "f32[8,16]", "--arg", "f32[16,4]", "--weights", "1", "-m", "nnp-i"]


def _torch(folder: Path) -> list[str]:
    pytest.importorskip("torch")
    (folder / "nets_of_test.py").write_text(NETS)
    return ["nets_of_test:build", "--device", "cpu", "-m", "h200", "--capacity", "hbm=60%"]


def _placed(folder: Path) -> list[str]:
    node = {"supportedOnFpga": 1, "cpuLatency": 2.0, "fpgaLatency": 1.0, "isBackwardNode": False, "size": 9.0}
    nodes = [{"id": n, "colorClass": n, **node} for n in (1, 2)]
    edges = [{"sourceId": 1, "destId": 2, "cost": 0.5}]
    sizes = {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1}
    (folder / "a graph.json").write_text(json.dumps({**sizes, "nodes": nodes, "edges": edges}))
    return ["a graph.json", "--edge-unit", "ms"]


def _buffers(folder: Path) -> list[str]:
    (folder / "some buffers.csv").write_text("id,lower,upper,size\na,0,2,4\nb,1,3,4\n")
    return ["some buffers.csv", "-m", "arena:1KiB"]


MODELS: dict[str, Callable[[Path], list[str]]] = {
    "program": _program,
    "onnx": _onnx,
    "tflite": _tflite,
    "hlo": _hlo,
    "jax": _jax,
    "torch": _torch,
    "dnn-partitioning": _placed,
    "buffers": _buffers,
    "workload": lambda folder: ["bert:layers=1", "-m", "nnp-i", "--capacity", "sram=1MiB"],
    "peak": lambda folder: [*_program(folder)[:1], "--objective", "peak-memory"],
    "bytes": lambda folder: [*_program(folder), "--objective", "bytes-moved", "--out", "moved 1.json"],
}


def commands(text: str) -> list[list[str]]:
    """What a user would copy of an answer."""
    lines = [
        line.partition("loadmaster ")[2]
        for line in text.splitlines()
        if ":" in line and "loadmaster " in line
    ]
    return [shlex.split(line) for line in lines if not line.startswith("simulated")]


@pytest.mark.parametrize("kept", [["--run", "my runs"], ["--no-run", "--out", "the plan's.json"]])
@pytest.mark.parametrize("name", MODELS)
def test_what_plan_prints_can_be_typed(run: Any, elsewhere: Path, name: str, kept: list[str]) -> None:
    words = MODELS[name](elsewhere)
    if "--out" in words:
        kept = [word for word in kept if word not in ("--out", "the plan's.json")]
    planned = run("plan", *words, "--budget", "8", "--exact-seconds", "0", *kept)
    assert planned.exit == 0, planned.err
    printed = commands(planned.out)
    found = {command[0] for command in printed}
    unseen = name == "buffers" or (name == "peak" and "--run" not in kept)  # no ops, or no machine
    assert ("simulate" in found) != unseen, planned.out
    assert ("replay" in found) == ("--run" in kept and name != "bytes"), planned.out
    if "--run" in kept:
        assert (name != "torch" or "run" in found) and (name != "tflite" or "export" in found)
    for command in printed:
        result = run(*command)
        assert result.exit == 0, (command, result.err)


@pytest.mark.parametrize("name", MODELS)
def test_a_run_needs_nothing_said_again(run: Any, elsewhere: Path, name: str) -> None:
    words = MODELS[name](elsewhere)
    planned = run("plan", *words, "--budget", "8", "--exact-seconds", "0", "--run", "my runs", "--json")
    folder = json.loads(planned.out)["run"]
    for command in (["resume", folder, "--budget", "12"], ["report", folder], ["replay", folder]):
        result = run(*command)
        assert result.exit == 0, (command, result.err)
    for command in (
        ["simulate", folder],
        ["check", folder],
        ["export", "trace", folder, "--out", "t.json.gz"],
    ):
        result = run(*command)
        assert result.exit == 0, (command, result.err)
    assert "has its own machine" in run("simulate", folder, "-m", "nnp-i").error_line
    assert (
        "'my runs' is a folder, and no run: give one of the runs in it"
        in run("simulate", "my runs").error_line
    )


def test_a_run_is_a_model_for_another_machine(run: Any, elsewhere: Path) -> None:
    for name, machine in (("onnx", "nnp-i-half"), ("torch", "h100")):
        words = MODELS[name](elsewhere)
        first = json.loads(run("plan", *words, "--budget", "8", "--exact-seconds", "0", "--json").out)["run"]
        assert run("inspect", first).exit == 0
        again = run("plan", first, "-m", machine, "--budget", "8", "--exact-seconds", "0")
        printed = commands(again.out)
        assert again.exit == 0 and ("run" in {words[0] for words in printed}) == (name == "torch")
        for command in printed:
            assert run(*command).exit == 0, command


def test_what_needs_the_model_itself_finds_it(run: Any, elsewhere: Path) -> None:
    pytest.importorskip("tflite_micro")
    planned = run("plan", *_tflite(elsewhere), "--budget", "8", "--json")
    folder = json.loads(planned.out)["run"]
    assert run("export", "tflm", folder, "--force", "--out", "one.tflite").exit == 0
    about = RunFolder.open(Path(folder)).about["model"]
    model = elsewhere / "four branches.tflite"
    digest = hash_file(model)
    assert about["file"] == {"path": model.name, "sha256": digest}
    # Changed, then gone: the file is named with its hash, and with what to type.
    good = model.read_bytes()
    model.write_bytes(good + b"\0")
    changed = run("export", "tflm", folder).error_line
    assert (
        f"'{model.name}' (SHA-256 {digest[:16]}…), has changed since: it is {hash_file(model)[:16]}"
        in changed
    )
    assert "has changed since" in run("resume", folder, "--budget", "20").err
    model.unlink()
    missing = run("export", "tflm", folder).error_line
    assert digest[:16] in missing and "is not in this folder" in missing
    assert f"loadmaster export tflm MODEL {folder}" in missing
    assert run("resume", folder, "--budget", "30").exit == 0
    (elsewhere / "models").mkdir()
    (elsewhere / "models" / "same.tflite").write_bytes(good)
    assert run("export", "tflm", "models/same.tflite", folder, "--force", "--out", "two.tflite").exit == 0


def test_a_module_is_only_taken_if_it_is_the_very_file(run: Any, elsewhere: Path) -> None:
    pytest.importorskip("torch")
    planned = run("plan", *_torch(elsewhere), "--budget", "8", "--json")
    folder = Path(json.loads(planned.out)["run"])
    assert run("run", folder, "--repeats", "1").exit == 0
    about = json.loads((folder / "run.json").read_text())
    for source, file in (
        ("shutil:which", about["model"]["file"]),  # another module than the file's
        ("shutil:which", None),
        (7, None),
    ):
        changed = {"source": source, "file": file}
        (folder / "run.json").write_text(json.dumps(about | {"model": changed}))
        refused = run("run", folder).error_line
        assert "does not say which file its model is" in refused
        assert f"loadmaster run MODEL {folder}" in refused


def test_an_interrupted_run_says_the_line_that_goes_on(
    run: Any, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = RunObserver.improved

    def stopped(self: Any, meter: Meter) -> None:
        own(self, meter)
        self.stop = True

    monkeypatch.setattr(RunObserver, "improved", stopped)
    words = ("--solver", "search", "--budget", "400", "--exact-seconds", "0", "--run", "my runs")
    planned = run("plan", "bert:layers=1", *words)
    assert planned.exit == 130
    line = re.search(r"go on with loadmaster (.*)$", planned.out + planned.err, re.MULTILINE)
    assert line is not None and "resume" in line[1]
    monkeypatch.undo()
    monkeypatch.chdir(elsewhere)
    assert run(*shlex.split(line[1])).exit == 0


def test_a_run_of_another_kind_of_model_is_refused_at_once(run: Any, elsewhere: Path) -> None:
    """By its name: no framework is imported for it, and no file of another kind is read."""
    planned = run("plan", *_buffers(elsewhere), "--json")
    folder = json.loads(planned.out)["run"]
    assert "'some buffers.csv' is no PyTorch function" in run("run", folder).error_line
    for target, ending in (("tflm", ".tflite"), ("ort", ".onnx"), ("onnx-metadata", ".onnx")):
        line = run("export", target, folder).error_line
        assert f"'{target}' takes a {ending} model, and 'some buffers.csv' is none: use header, trace" in line


def test_a_run_is_run_where_it_was_planned(run: Any, elsewhere: Path) -> None:
    """The line that `plan` prints works without a GPU too, and with nothing said of devices."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this computer has a GPU")
    words = [word for word in _torch(elsewhere) if word not in ("--device", "cpu")]
    planned = run("plan", *words, "--budget", "8", "--exact-seconds", "0")
    (line,) = (command for command in commands(planned.out) if command[0] == "run")
    ran = run(*line, "--repeats", "1")
    assert ran.exit == 0 and "nets_of_test:build on cpu" in ran.out


def test_a_module_that_fails_is_no_bug_of_ours(run: Any, elsewhere: Path) -> None:
    (elsewhere / "broken_nets.py").write_text("raise RuntimeError('operator nms does not exist')\n")
    refused = run("plan", "broken_nets:build", "-m", "nnp-i")
    assert refused.exit == 2
    said = "module 'broken_nets' can't be imported: RuntimeError: operator nms does not exist"
    assert refused.error_line.startswith(f"error: {said}")
    (elsewhere / "torn_nets.py").write_text("def build(:\n")
    assert "can't be imported: SyntaxError" in run("plan", "torn_nets:build", "-m", "nnp-i").error_line


def test_arguments_that_are_missing_are_asked_for(run: Any, elsewhere: Path) -> None:
    pytest.importorskip("jax")
    (elsewhere / "nets_of_test.py").write_text(NETS)
    line = run("plan", "nets_of_test:jaxed", "-m", "nnp-i").error_line
    assert line.endswith("give one --arg for each argument that the function takes, as --arg 'f32[8,128]'")


def test_a_function_of_ones_own_wins_over_a_workload_of_that_name(run: Any, elsewhere: Path) -> None:
    pytest.importorskip("torch")
    assert "model 'bert' can't take 'build'" in run("inspect", "bert:build").error_line
    (elsewhere / "bert.py").write_text(NETS)
    own = run("inspect", "bert:build", "--json")
    assert own.exit == 0 and json.loads(own.out)["rows"][0]["name"] != "bert"
    assert json.loads(run("inspect", "bert:layers=1", "--json").out)["rows"][0]["name"] == "bert"
    assert run("inspect", "bert.py").error_line.endswith("write bert:jaxed or bert:build")
