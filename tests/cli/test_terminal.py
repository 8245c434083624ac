"""Nothing that a name, a path or a message holds reaches the terminal as a command to it."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loadmaster
from hostile_names import TERMINAL
from loadmaster.cli.answer import printable, put
from loadmaster.machine.toml import _Reader
from loadmaster.program import Builder, Program, save

MACHINE = """
name = "m%s"
description = "d%s"
[[memory]]
name = "fast%s"
capacity = "4KiB"
bandwidth = "100GB/s"
[[memory]]
name = "slow%s"
capacity = "1MiB"
bandwidth = "1GB/s"
[[device]]
name = "core%s"
matrix = "1Gflop/s"
vector = "1Gflop/s"
[[link]]
source = "slow%s"
target = "fast%s"
bandwidth = "1GB/s"
[[link]]
source = "fast%s"
target = "slow%s"
bandwidth = "1GB/s"
"""


def program() -> Program:
    """Three ops in a row."""
    build = Builder("p")
    x = build.tensor("x", bytes=1024, kind="input")
    for i in range(3):
        w = build.tensor(f"w{i}", bytes=512, kind="weight")
        y = build.tensor(f"y{i}", bytes=1024, kind="output" if i == 2 else "activation")
        build.op(f"op{i}", "matmul", reads=[x, w], writes=[y], matrix=1000)
        x = y
    return build.build()


def renamed(program: Program) -> Program:
    def all_of(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name + TERMINAL for name in names)

    return replace(
        program,
        name=f"p{TERMINAL}",
        op_name=all_of(program.op_name),
        tensor_name=all_of(program.tensor_name),
        warnings=(f"careful{TERMINAL}",),
    )


@pytest.fixture(params=["cleaned", "raw"])
def raw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Loaders clean or refuse such names. In the second round they don't, and printing alone holds."""
    if request.param == "cleaned":
        return False
    monkeypatch.setattr("loadmaster.program.storage.clean_name", str)
    monkeypatch.setattr(_Reader, "name", lambda self, value, what: value)
    return True


@pytest.fixture
def files(elsewhere: Path, raw: bool) -> dict[str, str]:
    """A model, a machine and buffers, in files whose names are as bad as those inside."""
    bad = TERMINAL.replace("\0", "").replace("\n", "")
    model, machine, buffers = f"model{bad}.npz", f"machine{bad}.toml", f"b{bad}.csv"
    save(renamed(program()), elsewhere / model)
    inside = json.dumps(TERMINAL)[1:-1] if raw else ""
    (elsewhere / machine).write_text(MACHINE.replace("%s", inside), encoding="utf-8")
    row = '"b{}{}",0,2,8\n'
    cells = "".join(row.format(i, TERMINAL.replace("\0", "").replace("\r", "")) for i in range(3))
    (elsewhere / buffers).write_text(f"id,lower,upper,size\n{cells}", newline="")
    return {"MODEL": model, "MACHINE": machine, "BUFFERS": buffers}


COMMANDS = [
    "import MODEL",
    "inspect MODEL --machine MACHINE",
    "inspect MODEL",
    "simulate MODEL --machine MACHINE",
    "machines MACHINE",
    "machines MACHINE --out out.toml",
    "models MODEL",
    "solvers MODEL",
    "plan MODEL --machine MACHINE --budget 20",
    "plan MODEL --machine MACHINE --problem mapping --budget 20",
    "plan MODEL --machine MACHINE --problem malloc-game --budget 20",
    "plan MODEL --machine MACHINE --problem graph --budget 20",
    "plan MODEL --machine MACHINE --problem order --budget 20",
    "plan MODEL --machine MACHINE --problem offload --budget 20",
    "plan MODEL --machine MACHINE --fits",
    "plan BUFFERS --fits",
    "allocate BUFFERS --minimize --out placed.csv",
    "allocate MODEL --minimize",
    "allocate BUFFERS --capacity 1",
    "check MODEL MACHINE --machine MACHINE",
    "check MODEL nothing.json --machine MACHINE",
    "compare MODEL MACHINE",
    "replay MODEL",
    "runs MODEL",
    "report MODEL --machine MACHINE --out report.html",
    "figures MODEL",
    "export csv MODEL nothing.json --machine MACHINE",
    "bench MODEL",
    "MODEL",
]


def _words(command: str, files: dict[str, str]) -> list[str]:
    return [files.get(word, word) for word in command.split()]


def harmless(result: Any) -> None:
    """No traceback, no bug, and nothing but text and line ends."""
    assert result.exit in (0, 1, 2, 3, 4), (result.exit, result.err)
    for text in (result.out, result.err):
        assert {c for c in text if not c.isprintable()} <= {"\n"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command(run: Any, files: dict[str, str], raw: bool, command: str) -> None:
    words = _words(command, files)
    result = run(*words)
    harmless(result)
    harmless(run(*words, "--json"))
    if not raw:
        lines = (result.out + result.err).splitlines()
        assert not [line for line in lines if line.startswith("FORGED")]


FOLLOWING = [
    "check MODEL plan.json --machine MACHINE",
    "simulate MODEL plan.json --machine MACHINE",
    "compare plan.json plan.json",
    "report plan.json --model MODEL --machine MACHINE --out report.html",
    "report MODEL plan.json --machine MACHINE --out report.html",
    "export csv MODEL plan.json --machine MACHINE --out tables",
    "export trace MODEL plan.json --machine MACHINE --out trace.json.gz",
    "export header MODEL plan.json --machine MACHINE --out plan.h",
    "export model-explorer MODEL plan.json --machine MACHINE --out overlays",
    "runs runs",
]


@pytest.fixture
def planned(run: Any, files: dict[str, str]) -> Iterator[dict[str, str]]:
    command = "plan MODEL --machine MACHINE --problem mapping --budget 20 --out plan.json"
    result = run(*_words(command, files))
    harmless(result)
    assert result.exit == 0, result.err
    yield files
    shutil.rmtree("runs", ignore_errors=True)


def test_every_command_that_takes_a_plan(run: Any, planned: dict[str, str], raw: bool) -> None:
    for command in FOLLOWING:
        harmless(run(*_words(command, planned)))
    (kept,) = Path("runs").iterdir()
    for command in ("replay RUN", "compare RUN RUN", "figures RUN", "report RUN --out r.html"):
        if command == "figures RUN" and raw:
            continue  # the library that draws has no glyphs for them, and warns
        harmless(run(*_words(command, planned | {"RUN": str(kept)})))


def test_put_prints_lines_of_printable_text(capsys: pytest.CaptureFixture[str]) -> None:
    put(f"one {TERMINAL}\ntwo", sys.stdout)
    out = capsys.readouterr().out
    assert {c for c in out if not c.isprintable()} == {"\n"}
    assert out.endswith("\ntwo\n") and "\\x1b]0;title\\x07" in out
    assert printable("\x9b\x85\u2028\ud800\u202e\x7f") == "\\x9b\\x85\\u2028\\ud800\\u202e\\x7f"


PRINTS = {
    "torch_fit.py",
    "cli/answer.py",  # put and show
    "cli/progress.py",  # the live line, which redraws itself
}
ANSWERS_BY_A_PIPE = {"search/or_tools.py", "mapping/exact_worker.py"}
"""Processes of our own that say JSON to us and not to people."""
OWN_SCRIPTS = ("bench/gpu_", "program/zoo/traced.py")
"""Run by those who measure our own workloads; no command leads there."""


def test_nothing_else_prints() -> None:
    root = Path(loadmaster.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        if str(path.relative_to(root)).startswith(OWN_SCRIPTS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _prints(ast.unparse(node.func)):
                found.add(str(path.relative_to(root)))
    assert found - ANSWERS_BY_A_PIPE == PRINTS


def _prints(function: str) -> bool:
    name = function.rpartition(".")[2]
    if name in ("print", "pprint", "echo", "secho", "Console", "basicConfig", "StreamHandler"):
        return True
    stream = function.rpartition(".")[0]
    return name in ("write", "writelines") and stream.endswith(("stdout", "stderr", "stream"))


@pytest.mark.parametrize("function", ["print", "typer.echo", "sys.stderr.write", "self._stream.write"])
def test_what_counts_as_printing(function: str) -> None:
    assert _prints(function) and not _prints("file.write")
