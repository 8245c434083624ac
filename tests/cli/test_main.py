"""The frame around the commands: help, exit codes, one line per error, JSON, hostile names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster import __version__
from loadmaster.cli.answer import Answer, Table, json_text, one_line
from loadmaster.cli.main import COMMANDS, app
from loadmaster.errors import LoadmasterError, MissingPackage
from loadmaster.host import command_line

HEAVY = {"numpy", "jax", "onnx", "torch", "ortools", "rich", "loadmaster._core"}


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    shown, loaded = _modules_after("--help")
    assert all(f"  {name} " in shown and summary in shown for name, (_, summary) in COMMANDS.items())
    assert not HEAVY & loaded
    assert not any(name.startswith("loadmaster.cli.inspect") for name in loaded)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example_and_imports_nothing_heavy(command: str) -> None:
    shown, loaded = _modules_after(command, "--help")
    assert f"Example: loadmaster {command}" in shown
    assert "--json" in shown and "--quiet" in shown
    assert not HEAVY & loaded


def _modules_after(*args: str) -> tuple[str, set[str]]:
    code = (
        "import sys\nfrom loadmaster.cli.main import app\n"
        f"try:\n    app({list(args)!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('modules', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, _, modules = done.stdout.rpartition("modules")
    return shown, set(modules.split())


def test_importing_the_package_needs_no_command_line() -> None:
    code = "import sys, loadmaster.simulate; print('typer' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_run_knows_its_command_however_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["plan", "net.npz", "--costs=/home/me/net.json"]
    for program in ("/usr/bin/loadmaster", "/site-packages/loadmaster/__main__.py"):
        monkeypatch.setattr(sys, "argv", [program, *words])
        assert command_line() == ["plan", "net.npz", "--costs=net.json"]
    for program in ("-c", "/elsewhere/__main__.py", "pytest"):
        monkeypatch.setattr(sys, "argv", [program, *words])
        assert command_line() == ["python"]


def test_version_and_no_arguments(run: Any) -> None:
    assert run("--version").out == f"loadmaster {__version__}\n"
    alone = run()
    assert alone.exit == 0 and alone.out.startswith("Usage: loadmaster")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("simulat",), ("no command 'simulat'", "did you mean 'simulate'?")),
        (("simulate",), ("Missing argument 'MODEL'", "see 'loadmaster simulate --help'")),
        (("models", "--nope"), ("No such option: --nope", "see 'loadmaster models --help'")),
        (("--nope",), ("--nope", "see 'loadmaster --help'")),
        (("models", "a", "b"), ("unexpected extra argument", "see 'loadmaster models --help'")),
        (("inspect", "resnet50", "--top", "x"), ("--top", "see 'loadmaster inspect --help'")),
        (("check", "resnet50", "p.json", "--max", "0"), ("--max",)),
        (("machines", "--out", "x.toml"), ("--out needs a machine",)),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(run: Any, run_json: Any, args: Any, words: Any) -> None:
    result = run(*args)
    assert result.exit == 2 and result.out == ""
    assert all(word in result.error_line for word in words), result.err
    document = run_json(*args)
    assert document["exit"] == 2 and document["rows"] == []
    assert f"error: {document['error']['message']}" == result.error_line


def _replace(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Let `loadmaster models` do something else."""

    def command() -> Answer:
        if isinstance(answer, BaseException):
            raise answer
        print("a library prints this")
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr("loadmaster.cli.models.command", command)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MissingPackage("x is missing", remedy="pip install x"), 3, "x is missing: pip install x"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "f"), 2, "'f': Permission denied"),
        (
            MemoryError("1 PiB"),
            2,
            "'models' needs more memory than there is here (1 PiB): give a smaller model, or smaller numbers with --set",
        ),
        (LoadmasterError("two\nlines \x1b[31m"), 2, "two lines \\x1b[31m"),
    ],
)
def test_exit_codes(run: Any, run_json: Any, monkeypatch: Any, error: Any, code: int, words: str) -> None:
    _replace(monkeypatch, error)
    result = run("models")
    assert result.exit == code and result.error_line == f"error: {words}"
    assert run_json("models")["exit"] == code


def test_a_bug_is_one_line_and_a_file(run: Any, run_json: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _replace(monkeypatch, ZeroDivisionError("of\nours"))
    result = run("models")
    assert result.exit == 70
    (file,) = tmp_path.glob("loadmaster-*.log")
    assert "ZeroDivisionError: of ours" not in result.error_line
    assert "a bug in loadmaster (ZeroDivisionError): of ours" in result.error_line
    assert result.error_line.endswith(str(file))
    assert "Traceback" in file.read_text() and "test_main.py" in file.read_text()
    assert run_json("models")["error"]["object"] == "ZeroDivisionError"


def test_json_holds_no_numbers_that_json_lacks_and_nothing_else_is_on_stdout(
    run: Any, monkeypatch: Any
) -> None:
    import json

    import numpy as np

    rows = [{"a": float("nan"), "b": np.int64(3), "c": (float("inf"), np.float32(0.5))}]
    _replace(monkeypatch, Answer(rows, warnings=("w",), more={"suite": "s"}))
    result = run("models", "--json")
    document = json.loads(result.out)
    assert document["rows"] == [{"a": None, "b": 3, "c": [None, 0.5]}]
    assert document["warnings"] == ["w"] and document["suite"] == "s"
    assert result.err == "a library prints this\n"


def test_hostile_names_are_shown_literally(run: Any, monkeypatch: Any) -> None:
    nasty = "[red]x[/red] \x1b]0;t\x07 \u202eabc :smile:"
    shown = "[red]x[/red] \\x1b]0;t\\x07 \\u202eabc :smile:"
    table = Table(("name",), [(nasty,)], title=nasty)
    _replace(monkeypatch, Answer(blocks=[table, nasty], warnings=(nasty,)))
    result = run("models")
    assert result.out.count(shown) == 3
    assert result.err == f"warning: {one_line(nasty)}\n"
    assert "\x1b" not in result.out + result.err


def test_quiet_silences_warnings(run: Any, monkeypatch: Any) -> None:
    _replace(monkeypatch, Answer(blocks=["done"], warnings=("careful",)))
    assert run("models").err == "warning: careful\n"
    assert run("models", "--quiet").err == ""
    assert run("--quiet", "models").out.endswith("done\n")


def test_json_flag_after_two_dashes_is_an_argument(run: Any) -> None:
    result = run("models", "--", "--json")
    assert result.exit == 2 and "no model '--json'" in result.error_line


def _real(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadmaster", *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_narrow_encoding_and_no_colour_are_honoured() -> None:
    done = _real("models", PYTHONIOENCODING="ascii", NO_COLOR="1", PYTHONUTF8="0")
    assert done.returncode == 0 and done.stderr == ""
    assert "224 \\xd7 224" in done.stdout and "\x1b" not in done.stdout


def test_nobody_reads(tmp_path: Path) -> None:
    code = "from loadmaster.cli.main import main; main()"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code, "machines", "nnp-i"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert done.returncode == 141 and done.stderr == b""


def test_refusals_end_the_output(run: Any, monkeypatch: Any) -> None:
    from loadmaster.errors import Refused

    _replace(monkeypatch, Answer(blocks=["before"], error=Refused("no")))
    result = run("models")
    assert result.exit == 1 and result.out.endswith("before\nno\n") and result.err == ""
    assert '"ok": false, "exit": 1' in json_text("models", Answer(error=Refused("no")), 1)


def test_the_app_is_what_the_console_script_runs() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="loadmaster")
    assert script.value == "loadmaster.cli.main:main"
    assert app.info.cls is not None


def test_help_is_in_panels_by_purpose(run: Any) -> None:
    shown = run("plan", "--help").out
    titles = ["Arguments:", "Options:", "How it is sought:", "What is decided:", "What is kept:"]
    places = [shown.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places) and "\nReading a PyTorch module:\n" in shown
    fits = run("fits", "--help").out
    assert "--machine" in fits and not any(word in fits for word in ("PyTorch", "--train", "--shape", "onnx"))
