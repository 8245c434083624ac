"""Files and names that make no sense: exit 2, one line, no traceback, nothing written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadmaster.program import save
from loadmaster.program.zoo import load_workload

MACHINE = 'name = "m"\n[[memory]]\nname = "sram"\nbandwidth = "1GB/s"\n%s\n[[device]]\nname = "d"\nmatrix = 1\nvector = 1\n'


def refused(run: Any, run_json: Any, *args: object) -> str:
    """The error's line; the JSON form says the same."""
    result = run(*args)
    assert result.exit == 2, (result.out, result.err)
    assert result.out == ""
    line = str(result.error_line)
    error = run_json(*args)["error"]
    assert error["message"] and f"error: {error['message']}" == line
    return line


@pytest.mark.parametrize("file", ["light_squeezenet.onnx", "program.npz"])
def test_truncated_models(run: Any, run_json: Any, light: Path, tmp_path: Path, file: str) -> None:
    whole = tmp_path / "whole.npz"
    save(load_workload("resnet50"), whole)
    data = whole.read_bytes() if file.endswith("npz") else (light / file).read_bytes()
    whole.unlink()
    cut, out = tmp_path / f"cut{Path(file).suffix}", tmp_path / "out.npz"
    generator = random.Random(0)
    for size in [0, 1, *(generator.randrange(2, len(data) - 1) for _ in range(4))]:
        cut.write_bytes(data[:size])
        assert "cut" in refused(run, run_json, "import", cut, "--out", out)
        assert not out.exists()
        assert run("simulate", cut, "-m", "nnp-i").exit == 2


def test_a_model_with_a_cycle(run: Any, run_json: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    ends = [make.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in ("i", "x")]
    nodes = [make.make_node("Add", ["i", "y"], ["x"], "a"), make.make_node("Relu", ["x"], ["y"], "b")]
    path = tmp_path / "circle.onnx"
    onnx.save(make.make_model(make.make_graph(nodes, "g", ends[:1], ends[1:])), path)
    refused(run, run_json, "inspect", path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MACHINE % "", "memory 'sram' has no capacity: add capacity = \"512KiB\""),
        (MACHINE % "capacity = 9223372036854775808", "above the limit 2^62"),
        (MACHINE % 'capacity = "99999999999GiB"', "above the limit 2^62"),
        (MACHINE % "capacity = -1", "not negative"),
        (MACHINE % "capacity = nan", "finite"),
        (MACHINE % "capacity = true", "must be a number"),
        (MACHINE % 'capacity = "12 parsec"', "unknown unit 'parsec'"),
        (MACHINE % "capacity = 1\ncolour = 2", "unknown key 'colour'"),
        ("name = [", "is not TOML"),
        ('base = "bad.toml"\n', "bases without end"),
        ("", "has no name"),
    ],
)
def test_machines_that_make_no_sense(run: Any, run_json: Any, tmp_path: Path, text: str, words: str) -> None:
    path, out = tmp_path / "bad.toml", tmp_path / "out.toml"
    path.write_text(text)
    assert words in refused(run, run_json, "simulate", "resnet50", "--machine", path)
    assert words in refused(run, run_json, "machines", path, "--out", out)
    assert not out.exists()


def test_machine_files_that_are_no_text(run: Any, run_json: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not text" in refused(run, run_json, "machines", path)
    assert "can't be read" in refused(run, run_json, "machines", tmp_path)


def _spoil(**changes: Any) -> Any:
    def spoil(document: dict[str, Any]) -> None:
        for key, value in changes.items():
            document["residencies"][0][key] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_spoil(tensor=None, name="stem.convolution"), "the unknown tensor 'stem.convolution'"),
        (_spoil(tensor=9999), "the unknown tensor 9999"),
        (_spoil(tensor=1, name="other"), "calls tensor 1 'other'"),
        (_spoil(memory="hbm"), "the unknown memory 'hbm'"),
        (_spoil(offset=2**63), "offset 9223372036854775808"),
        (_spoil(first="x"), "first 'x'"),
        (lambda document: document.update(order=[0]), "'order' must have 57 entries"),
        (lambda document: document.update(program={"name": "p", "hash": "0"}), "another program"),
        (lambda document: document.update(loadmaster_plan=99), "no plan of format"),
        (lambda document: document.update(residencies=[1]), "list of objects"),
    ],
)
def test_plans_that_make_no_sense(run: Any, run_json: Any, plan_file: Path, spoil: Any, words: str) -> None:
    document = json.loads(plan_file.read_text())
    spoil(document)
    plan_file.write_text(json.dumps(document))
    assert words in refused(run, run_json, "check", "resnet50", plan_file)
    assert words in refused(run, run_json, "simulate", "resnet50", plan_file)


def test_plan_files_that_are_no_json(run: Any, run_json: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for content in (b"", b"{", b"\xff", b"[" * 100_000, b"null"):
        path.write_bytes(content)
        refused(run, run_json, "check", "resnet50", path)
    refused(run, run_json, "check", "resnet50", tmp_path)
    assert "can't be read" in refused(run, run_json, "check", "resnet50", tmp_path / "none.json")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("inspect", "resnet5"), "did you mean 'resnet50'?"),
        (("models", "gnmt8"), "did you mean 'gnmt-8'?"),
        (("models", "resnet50:steps=5"), "has no parameter 'steps'"),
        (("models", "gnmt-8:steps=x"), "can't take 'steps=x'"),
        (("models", "none.onnx"), "there is no model"),
        (("simulate", "resnet50", "-m", "nnpi"), "did you mean 'nnp-i'?"),
        (("simulate", "resnet50", "-m", "arena:"), "arena"),
        (("simulate", "resnet50", "-m", "none.toml"), "can't be read"),
        (("inspect", "none.onnx"), "there is no file 'none.onnx'"),
        (("inspect", "/dev"), "'/dev' is a folder and no model file"),
        (("inspect", "/dev/null"), "'/dev/null' is a device and no model file"),
        (("inspect", "none.npz"), "there is no file 'none.npz'"),
        (("inspect", "no_such_module:f"), "no_such_module"),
        (("inspect", "x" * 5000), "x"),
        (("import", "resnet50", "--format", "pdf"), "unknown format 'pdf'"),
        (("import", "a.onnx", "--shape", "data"), "--shape 'data' has no '='"),
        (("import", "a.onnx", "--shape", "data=1,-3"), "--shape can't take '1,-3'"),
        (("import", "a.onnx", "--shape", "d=99999999999999999999"), "--shape can't take"),
        (("import", "a.onnx", "--trip", "loop=²"), "--trip can't take '²'"),
        (("import", "a.onnx", "--weights", "a"), "--weights can't take 'a'"),
        (("bench", "simulat"), "did you mean 'simulate'?"),
        (("bench", "simulate", "--case", "hlp"), "did you mean 'help'?"),
    ],
)
def test_names_and_options_that_make_no_sense(run: Any, run_json: Any, args: Any, words: str) -> None:
    assert words in refused(run, run_json, *args)


def test_a_model_file_needs_a_machine(run: Any, run_json: Any, light: Path) -> None:
    line = refused(run, run_json, "simulate", light / "light_squeezenet.onnx")
    assert "give --machine" in line


def test_output_is_never_overwritten(run: Any, run_json: Any, light: Path, tmp_path: Path) -> None:
    out = tmp_path / "there.npz"
    out.write_text("mine")
    model = light / "light_squeezenet.onnx"
    assert "there already" in refused(run, run_json, "import", model, "--out", out)
    assert out.read_text() == "mine"
    other = tmp_path / "x.bin"
    assert "must end in .npz" in refused(run, run_json, "import", model, "--out", other)
    nowhere = tmp_path / "no" / "x.npz"
    assert "there is no folder" in refused(run, run_json, "import", model, "--out", nowhere)
    (tmp_path / "folder.npz").mkdir()
    folder = tmp_path / "folder.npz"
    assert "is a folder" in refused(run, run_json, "import", model, "--out", folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.npz", "there.npz"]


def test_a_disk_that_refuses(run: Any, monkeypatch: Any, light: Path, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("loadmaster.program.save", full)
    result = run("import", light / "light_squeezenet.onnx", "--out", tmp_path / "x.npz", "--quiet")
    assert result.exit == 2 and "No space left on device" in result.error_line


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("net.pt", "net.py:build"),
        ("net.mlir", "compile().as_text()"),
        ("net.ort", ".onnx"),
        ("net.h5", "convert"),
    ],
)
def test_files_that_are_not_read_say_what_is(
    run: Any, run_json: Any, tmp_path: Path, name: str, remedy: str
) -> None:
    (tmp_path / name).write_bytes(b"something")
    assert remedy in refused(run, run_json, "import", tmp_path / name)
    assert remedy in refused(run, run_json, "plan", tmp_path / name, "--machine", "nnp-i")
