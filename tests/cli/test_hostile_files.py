"""What was sent to do harm, through the command line: exit 2, one line, nothing written, no waiting."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.machine import load_machine
from loadmaster.mapping.first_fit import first_fit
from loadmaster.plan import Plan, save_plan
from loadmaster.program.zoo import load_workload

MEMORY = '[[memory]]\nname = "sram"\ncapacity = {}\nbandwidth = "1GB/s"\n'
DEVICE = '[[device]]\nname = "d"\nmatrix = {}\nvector = 1\n'
SMALL = 'name = "m"\n' + MEMORY.format('"1MiB"') + DEVICE.format(1)
MANY = """name = "many"
[[memory]]
name = "hbm"
count = 4096
capacity = 1
bandwidth = 1
[[device]]
name = "d"
matrix = 1
vector = 1
[[link]]
between = "hbm"
bandwidth = 1
"""


def here() -> list[str]:
    """The names in the current folder."""
    return sorted(path.name for path in Path().iterdir())


def refused(run: Any, *args: object) -> str:
    result = run(*args)
    assert result.exit == 2 and result.out == "", (result.out, result.err)
    return str(result.error_line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "m"\n' + MEMORY.format("9" * 5_000) + DEVICE.format(1), "more than 30 digits"),
        ('name = "m"\n' + MEMORY.format(f'"{"9" * 400}"') + DEVICE.format(1), "can't be read from"),
        ("a = " + "[" * 3_000, "nested deeper than 8 levels"),
        ('base = "nnp-i"\n[[memory]]\nname = ["x"]\n', "a memory has no name"),
        (SMALL + "units = 3\n", "has units 3"),
        ('name = "m"\n' + MEMORY.format(1) + DEVICE.format("{}"), "has no matrix rate"),
        ("base = 3\n" + SMALL, "it has base 3"),
        (f'base = "{"x" * 5_000}"\n' + SMALL, "it has base 'xxx"),
        (f'base = "{"x" * 200}"\n' + SMALL, "there is no machine 'xxx"),
        ('base = "m.toml"\n' + SMALL, "bases without end"),
        (MANY, "count 4096: give a whole number from 1 to 256"),
        (MANY.replace("4096", "256"), "65,280 links: give at most 16,384"),
    ],
)
def test_machines(run: Any, elsewhere: Path, text: str, words: str) -> None:
    Path("m.toml").write_text(text)
    for command in (
        "machines m.toml --out out.toml",
        "simulate resnet50 -m m.toml",
        "plan resnet50 -m m.toml",
        "inspect resnet50 -m m.toml",
    ):
        assert words in refused(run, *command.split())
    assert here() == ["m.toml"]


def test_buffers(run: Any, elsewhere: Path) -> None:
    head = "id,lower,upper,size\n"
    Path("long.csv").write_text(head + f"a,0,1,{'1' * 131_073}\n")
    Path("A.99999999999999999999999.csv").write_text(head + "a,0,1,1\n")
    before = here()
    for command in (
        "allocate FILE --minimize",
        "plan FILE",
        "plan FILE --fits",
        "inspect FILE",
        "allocate FILE --capacity 1MiB --out out.csv",
    ):
        line = refused(run, *command.replace("FILE", "long.csv").split())
        assert "'long.csv', line 2: field larger than field limit" in line
        line = refused(run, *command.replace("FILE", "A.99999999999999999999999.csv").split())
        assert "states a capacity of 99999999999999999999999 bytes, above 2^62" in line
    assert here() == before


@pytest.mark.parametrize("priority", ["1e400", "1" + "0" * 400, "9" * 5_000, "NaN", '"\\ud800"'])
def test_plans(run: Any, elsewhere: Path, priority: str) -> None:
    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    save_plan(Plan(), program, machine, "plan.json")
    document = json.loads(Path("plan.json").read_text())
    text = json.dumps(document | {"queue": "priority", "priority": [0] * program.n_ops})
    Path("plan.json").write_text(text.replace("[0, ", f"[{priority}, "))
    for command in ("check", "simulate", "export trace"):
        assert "plan 'plan.json'" in refused(run, *command.split(), "resnet50", "plan.json", "-m", "nnp-i")
    assert here() == ["plan.json"]


PIPES = [
    "inspect PIPE.onnx",
    "inspect PIPE.tflite",
    "inspect PIPE.hlo",
    "inspect PIPE.txt",
    "inspect PIPE.npz",
    "inspect PIPE.json",
    "inspect PIPE.csv",
    "import PIPE --format onnx",
    "allocate PIPE.csv --minimize",
    "machines PIPE.toml",
    "simulate resnet50 -m PIPE.toml",
    "simulate resnet50 -m PIPE.json",
    "check resnet50 PIPE.json",
    "simulate resnet50 --costs PIPE.json",
    "compare PIPE.json PIPE.json",
    "report PIPE.json",
    "replay PIPE.json",
]


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("command", PIPES)
def test_nothing_waits_for_a_pipe_or_reads_a_device(
    run: Any, elsewhere: Path, command: str, kind: str
) -> None:
    (name,) = {word for word in command.split() if word.startswith("PIPE")}
    if kind == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    refused(run, *command.split())
    assert here() == [name]


WRITERS = [
    "machines nnp-i --out OUT.toml",
    "import resnet50 --out OUT.npz",
    "plan resnet50 --budget 10 --out OUT.json",
    "allocate b.csv --minimize --out OUT.csv",
    "allocate b.csv --minimize --plan OUT.json",
    "allocate b.csv --minimize --plot OUT.svg",
    "report resnet50 --out OUT.html",
    "export trace resnet50 plan.json -m nnp-i --out OUT.json.gz",
    "export header resnet50 plan.json -m nnp-i --out OUT.h",
    "export csv resnet50 plan.json -m nnp-i --out OUT",
]


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a device", "link to a file", "folder"])
@pytest.mark.parametrize("command", WRITERS)
def test_only_regular_files_are_written_over(
    run: Any, elsewhere: Path, plan_file: Path, command: str, kind: str
) -> None:
    Path("b.csv").write_text("id,lower,upper,size\na,0,1,1\n")
    Path("mine").write_text("mine")
    out = Path(next(word for word in command.split() if word.startswith("OUT")))
    if kind == "pipe":
        os.mkfifo(out)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(out))
    elif kind == "folder":
        if out.name == "OUT":
            pytest.skip("a target of several files writes into a folder")
        out.mkdir()
    else:
        out.symlink_to("/dev/null" if kind == "link to a device" else "mine")
    before = here(), out.lstat().st_mode
    refused(run, *command.split(), "--overwrite")
    assert (here(), out.lstat().st_mode) == before
    assert Path("mine").read_text() == "mine"


def test_a_file_too_large_has_a_name(elsewhere: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "from loadmaster.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "machines", "nnp-i", "--out", "out.toml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: 'out.toml' can't be written: File too large")
    assert done.stderr.count("\n") == 1 and not here()


def test_half_a_character_in_a_name_is_exported_as_its_escape(elsewhere: Path) -> None:
    from loadmaster.export.csv_files import export
    from loadmaster.export.plans import ExportRequest

    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    names = tuple(f"{name}\ud800\0" for name in program.tensor_name)
    plan = first_fit(program, machine)
    done = export(ExportRequest("m", replace(program, tensor_name=names), machine, plan, Path("tables")))
    tables = [file for file in done.files if file.name not in ("ops.csv", "copies.csv")]
    assert tables and all("\\ud800\\x00" in file.read_text() for file in tables)
