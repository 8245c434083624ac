"""The how-to pages: each begins with its user's first command, and what they show can be typed."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster.cli.main import COMMANDS

DOCS = Path(__file__).parent.parent.parent / "docs"
FIRST = {
    "firmware": "loadmaster fits model.tflite --machine arena:256KiB",
    "compilers": "loadmaster allocate buffers.csv --capacity 1MiB",
    "researchers": "loadmaster plan resnet50 --machine nnp-i --solver egrl --budget 4000",
    "performance": "loadmaster plan model.onnx --objective peak-memory",
}
CHIP = """
name = "chip"
[[memory]]
name = "sram"
capacity = "96KiB"
bandwidth = "16GB/s"
[[memory]]
name = "dram"
capacity = "64MiB"
bandwidth = "1GB/s"
[[device]]
name = "npu"
memories = ["sram", "dram"]
matrix = "100Gflop/s"
vector = "10Gflop/s"
"""


def text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", FIRST)
def test_each_page_begins_with_its_first_command(page: str) -> None:
    lines = [line for line in text(page).splitlines() if line.strip()]
    assert lines[0].startswith("# For ") and lines[1] == f"    {FIRST[page]}"


def _options(command: str) -> set[str]:
    """The options that a command has, as its file declares them."""
    name, _, function = COMMANDS[command][0].partition(":")
    module = importlib.import_module(f"loadmaster.cli.{name}")
    names = {"--json", "--quiet", "--help", "-m", "-o"}
    for parameter in inspect.signature(getattr(module, function or "command")).parameters.values():
        names.add(f"--{parameter.name.replace('_', '-')}")
        for part in getattr(parameter.annotation, "__metadata__", ()):
            names |= set(getattr(part, "param_decls", None) or ())
    return names


@pytest.mark.parametrize("page", FIRST)
def test_commands_and_options_exist(page: str) -> None:
    found = re.findall(r"^(?:    |\$ )loadmaster (.*)$|`loadmaster ([^`]*)`", text(page), re.M)
    commands = [first or second for first, second in found]
    assert len(commands) >= 3
    for line in commands:
        words = shlex.split(line.partition("  #")[0])
        assert words[0] in COMMANDS, line
        wrong = {word for word in words if word.startswith("--")} - _options(words[0])
        assert not wrong, (line, wrong)


@pytest.mark.parametrize("page", FIRST)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", text(page))
    assert targets and not [target for target in targets if not (DOCS / target).exists()]


def test_the_code_for_compiler_engineers_runs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chip.toml").write_text(CHIP)
    (tmp_path / "buffers.csv").write_text("id,lower,upper,size\na,0,3,40\nb,1,4,30\n")
    blocks = re.findall(r"```python\n(.*?)```", text("compilers"), re.S)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "compilers.md", "exec"), names)
    assert names["solution"].decision is not None and names["plan"].residencies is not None


def test_the_code_for_researchers_runs(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    blocks = re.findall(r"```python\n(.*?)```", text("researchers"), re.S)
    assert len(blocks) == 4
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "LOADMASTER_CACHE": str(tmp_path / "cache")},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "% of what could be saved" in done.stdout and len(list((tmp_path / "runs").iterdir())) == 1


def test_the_environments_on_the_page_are_those_of_the_code() -> None:
    pytest.importorskip("gymnasium")
    pytest.importorskip("jax")  # one of the programs is traced
    from tools import envs_page

    assert f"{envs_page.BEGIN}\n{envs_page.made()}\n{envs_page.END}" in text("researchers")


def test_the_code_for_pytorch_users_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", text("fit"), re.S)
    assert len(blocks) >= 6
    known = importlib.util.find_spec("transformers") is not None
    code = "\n".join(block for block in blocks if known or "transformers" not in block)
    short = "import loadmaster\nloadmaster.fit.__kwdefaults__['search'] = 0.5\n"  # in place of 20 s
    done = subprocess.run(
        [sys.executable, "-c", short + code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "LOADMASTER_CACHE": str(tmp_path / "cache")},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "'Linear' can't run in 1.00 MiB" in done.stdout and (tmp_path / "fit.html").is_file()


def test_the_options_of_fit_are_on_its_page() -> None:
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \|", text("fit").split("| option |")[1].split("\n\n")[0], re.M
    )
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    code = (DOCS.parent / "src/loadmaster/torch_fit.py").read_text(encoding="utf-8")
    (made,) = (each for each in ast.parse(code).body if getattr(each, "name", "") == "fit")
    assert isinstance(made, ast.FunctionDef)
    assert named == {each.arg for each in [*made.args.args, *made.args.kwonlyargs]} - {"model"}


@pytest.mark.parametrize("page", ["hardware", "importers", "malloc_game", "mapping", "tpu"])
def test_the_code_of_pages_about_problems_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with what the page says is there. Code of executorch.md and gpu.md needs their packages and a GPU."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", text(page), re.S)
    if page == "malloc_game":
        pytest.importorskip("gymnasium")
    if page == "hardware":
        convnet = DOCS.parent / "examples" / "measure_cpu" / "convnet.py"
        subprocess.run([sys.executable, convnet, "convnet.npz"], check=True, timeout=100)
        (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
        blocks = [block.replace("evaluations=200", "evaluations=8") for block in blocks]
    if page == "importers":
        onnx = pytest.importorskip("onnx")
        value = functools.partial(onnx.helper.make_tensor_value_info, elem_type=1)
        ends = [value("data", shape=(1, 3, "h", "w"))], [value("y", shape=None)]
        graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["data"], ["y"])], "g", *ends)
        onnx.save(onnx.helper.make_model(graph, ir_version=10), "model.onnx")
        blocks = ["import loadmaster as lm", *re.findall(r"^In Python: `(.*)`\.$", text(page), re.M)]
    assert blocks
    exec(compile("\n".join(blocks), f"{page}.md", "exec"), {})


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_what_code_on_a_page_imports_is_there(page: Path) -> None:
    package = DOCS.parent / "src"
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        for module, names in re.findall(r"^from (loadmaster[\w.]*) import ([\w, ]+)$", block, re.M):
            path = package / module.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            text = file.read_text(encoding="utf-8")
            for name in re.split(r",\s*", names):
                there = re.search(rf"\b{name}\b", text) or (path / f"{name}.py").exists()
                assert there, (module, name)
