"""Each command: what it prints for people and for programs, and figures known beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.machine import load_machine, preset_names
from loadmaster.machine.presets import read_machine
from loadmaster.plan import Plan, Residency, load_plan, save_plan
from loadmaster.program import Builder, load, save
from loadmaster.program.zoo import MODELS, load_workload

RESNET50_ALL_SLOW = 815_267_107


def _rows(document: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [row for row in document["rows"] if row["what"] == what]


def test_models(run: Any, run_json: Any) -> None:
    document = run_json("models")
    assert [row["name"] for row in document["rows"]] == list(MODELS)
    shown = run("models").out
    assert all(name in shown for name in MODELS)
    (row,) = run_json("models", "resnet50")["rows"]
    assert (row["ops"], row["tensors"], row["machine"]) == (57, 112, "nnp-i")
    assert row["hash"] == load_workload("resnet50").hash and row["hash"] in run("models", "resnet50").out


def test_machines(run: Any, run_json: Any) -> None:
    assert [row["name"] for row in run_json("machines")["rows"]] == preset_names()
    document = run_json("machines", "nnp-i-half")
    assert [row["name"] for row in _rows(document, "memory")] == ["sram", "llc", "dram"]
    assert _rows(document, "memory")[0]["capacity_bytes"] == 2 * 2**20
    # The comments of the file and of its base are the sources of the numbers.
    assert [row["name"] for row in _rows(document, "source")] == ["nnp-i-half", "nnp-i"]
    shown = run("machines", "nnp-i-half").out
    assert "WikiChip: about 6.8 TB/s" in shown and "# ours" in shown
    assert len(_rows(run_json("machines", "p100x4"), "link")) == 12
    assert _rows(run_json("machines", "arena:1MiB"), "memory")[1]["capacity_bytes"] is None


@pytest.mark.parametrize("name", ["nnp-i-half", "p100x4", "p100x4-bus", "arena:256KiB", "tpu-v4i"])
def test_a_machine_that_is_written_reads_the_same(run: Any, tmp_path: Path, name: str) -> None:
    out = tmp_path / "mine.toml"
    result = run("machines", name, "--out", out)
    assert result.exit == 0 and result.out.endswith(f"wrote {out}\n")
    assert read_machine(out).hash == load_machine(name).hash
    assert run("machines", name, "--out", out).exit == 2
    assert run("machines", name, "--out", out, "--overwrite").exit == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_a_machine_with_a_base_beside_it_is_written_whole(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "base.toml").write_text(
        'name = "b"\n[[memory]]\nname = "m"\ncapacity = "unlimited"\nread = "2GB/s"\n'
        'write = "1GB/s"\n[[device]]\nname = "d"\nmatrix = { f32 = "1Gflop/s", "*" = 5 }\nvector = 1\n'
    )
    (folder / "top.toml").write_text('base = "base.toml"\nname = "top"\ndescription = "a \\"b\\" \\u007f"\n')
    out = tmp_path / "whole.toml"
    assert run("machines", folder / "top.toml", "--out", out).exit == 0
    assert read_machine(out).hash == read_machine(folder / "top.toml").hash
    assert "base.toml" not in out.read_text()


def test_import_onnx(run: Any, run_json: Any, light: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.npz"
    result = run("import", light / "light_resnet50.onnx", "--out", out)
    assert result.exit == 0 and result.out.endswith(f"wrote {out}\n")
    assert result.err == "warning: 239 of 415 nodes are constant and were folded away\n"
    document = run_json("import", light / "light_resnet50.onnx", "--out", out, "--overwrite")
    (row,) = document["rows"]
    assert (row["ops"], row["weights_bytes"], row["unknown_kinds"]) == (176, 102_440_608, {})
    assert load(out).hash == row["hash"] and row["out"] == str(out)
    assert document["warnings"] == ["239 of 415 nodes are constant and were folded away"]
    # The saved program is a model like any other, and so is what its importer is told.
    (again,) = run_json("import", out)["rows"]
    assert again["hash"] == row["hash"] and again["out"] is None
    tied = run_json("import", light / "light_resnet50.onnx", "--inplace", "relu")["rows"][0]
    assert tied["hash"] != row["hash"]


def test_import_a_function(run: Any, run_json: Any, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("jax")
    (tmp_path / "tiny_net.py").write_text(
        "import jax.numpy as jnp\nprint('hello')\ndef net(w, x):\n    return jnp.tanh(x @ w)\n"
    )
    monkeypatch.chdir(tmp_path)
    given = ("import", "tiny_net:net", "--arg", "f32[64,10]", "--arg", "f32[8,64]")
    (row,) = run_json(*given, "--weights", "0")["rows"]
    assert row["weights_bytes"] == 64 * 10 * 4
    assert row["flops"] == 2 * 8 * 64 * 10 + 80
    result = run("import", "tiny_net:net", "--arg", "f32[64,10]")
    assert result.exit == 2 and "give one --arg for each argument" in result.error_line


def test_inspect(run: Any, run_json: Any, light: Path) -> None:
    document = run_json("inspect", light / "light_resnet50.onnx", "--machine", "nnp-i", "--top", "3")
    (peak,) = _rows(document, "peak")
    assert (peak["bytes"], peak["op"]) == (9_633_792, 13)
    assert [tensor["bytes"] for tensor in peak["tensors"]] == [3_211_264] * 3
    assert len(_rows(document, "tensor")) == 3
    (totals,) = _rows(document, "totals")
    assert totals["flops"]["matrix"] == 2 * 4_089_184_256
    assert totals["bytes"]["weight"] == 102_440_608
    bounds = {row["name"]: row["seconds"] for row in _rows(document, "bound")}
    assert max(bounds["compute"], bounds["traffic"]) <= bounds["together"]
    assert [row["limited_by"] for row in _rows(document, "balance")] == ["compute", "bandwidth", "bandwidth"]
    shown = run("inspect", "resnet50", "--top", "2").out
    assert "peak of live bytes in program order: 1,806,336 at op 5 'stage1.block1.conv3'" in shown
    assert "on nnp-i" in shown
    # Without a machine: only what needs none.
    whats = {r["what"] for r in run_json("inspect", light / "light_squeezenet.onnx")["rows"]}
    assert whats == {"totals", "peak", "tensor"}


def test_simulate_without_a_plan(run: Any, run_json: Any) -> None:
    document = run_json("simulate", "resnet50")
    (total,) = _rows(document, "total")
    assert total["picoseconds"] == RESNET50_ALL_SLOW
    assert total["seconds"] == RESNET50_ALL_SLOW / 10**12
    assert total["fits"] and total["violations"] == 0 and total["machine"] == "nnp-i"
    assert [row["peak_bytes"] for row in _rows(document, "memory")] == [0, 0, 27_419_520]
    result = run("simulate", "resnet50", "--machine", "nnp-i")
    assert result.exit == 0 and result.out.endswith("checked: ok\n") and result.err == ""
    assert "time 815.27 µs" in result.out


def test_simulate_and_check_a_plan(run: Any, run_json: Any, plan_file: Path) -> None:
    (total,) = _rows(run_json("simulate", "resnet50", plan_file), "total")
    assert total["picoseconds"] == 112_041_521 and total["plan"] == str(plan_file)
    assert run("check", "resnet50", plan_file).out == "ok\n"
    document = run_json("check", "resnet50", plan_file)
    assert document["rows"] == [] and document["error"] is None


def test_a_model_that_does_not_fit(run: Any, run_json: Any, tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    small.write_text('base = "nnp-i"\nname = "small"\n[[memory]]\nname = "dram"\ncapacity = "20MiB"\n')
    over = 27_419_520 - 20 * 2**20
    words = f"does not fit: 'dram' needs 27,419,520, has 20,971,520, too many by {over:,}"
    result = run("simulate", "resnet50", "--machine", small)
    assert result.exit == 1 and result.out.endswith(f"{words}\n") and result.err == ""
    document = run_json("simulate", "resnet50", "--machine", small)
    assert document["error"]["number"] == over and document["error"]["object"] == "dram"
    assert _rows(document, "memory")[2]["over_bytes"] == over
    assert not _rows(document, "total")[0]["fits"]


def test_a_plan_that_is_not_sound(run: Any, run_json: Any, plan_file: Path) -> None:
    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    plan = load_plan(plan_file, program, machine)
    rows = [r if r.memory else r._replace(offset=0) for r in plan.residency_rows]
    save_plan(Plan.of(residencies=rows), program, machine, plan_file)
    result = run("check", "resnet50", plan_file, "--max", "2")
    assert result.exit == 1 and result.err == ""
    assert "overlap" in result.out and "the plan is not sound:" in result.out.splitlines()[-1]
    document = run_json("check", "resnet50", plan_file, "--max", "2")
    assert len(document["rows"]) == 2 and document["rows"][0]["rule"] == "overlap"
    assert document["rows"][0]["tensor_name"] in program.tensor_name
    assert document["error"]["number"] > 2
    simulated = run("simulate", "resnet50", plan_file)
    assert simulated.exit == 1 and "violation of overlap" in simulated.out


def test_a_plan_that_can_not_run_is_still_checked(run: Any, tmp_path: Path) -> None:
    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    path = tmp_path / "backwards.json"
    order = list(range(program.n_ops))[::-1]
    save_plan(Plan.of(order=order), program, machine, path)
    result = run("check", "resnet50", path)
    assert result.exit == 1 and "order" in result.out
    assert run("simulate", "resnet50", path).exit == 2


def test_names_that_try_to_do_harm(run: Any, run_json: Any, tmp_path: Path) -> None:
    build = Builder("[bold]evil[/]")
    x = build.tensor("[red]x\x1b[2J", shape=(4,), dtype="f32", kind="input")
    y = build.tensor("y\u202e\n", shape=(4,), dtype="f32", kind="output")
    build.op("[link=file:///]op[/link]", "relu", reads=[x], writes=[y], vector=4)
    program, machine = build.build(), load_machine("toy2")
    model, plan = tmp_path / "evil.npz", tmp_path / "p.json"
    save(program, model)
    for command in ("inspect", "simulate", "import"):
        result = run(command, model, *(() if command == "import" else ("-m", "toy2")))
        assert result.exit == 0 and "[bold]evil[/]" in result.out and "\x1b" not in result.out
    assert "[red]x\\x1b[2J" in run("inspect", model, "-m", "toy2").out
    save_plan(Plan.of(residencies=[Residency(1, 0, 3, 0, 0)]), program, machine, plan)
    document = json.loads(plan.read_text())
    document["residencies"][0]["name"] = "\x1b[31m[red]"
    plan.write_text(json.dumps(document))
    assert "\\x1b[31m[red]" in run("check", model, plan, "-m", "toy2").error_line
