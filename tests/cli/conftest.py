"""Runs the command line in this process, and checks whatever JSON it prints against the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import loadmaster.cli
from loadmaster.cli.main import app
from loadmaster.machine import load_machine
from loadmaster.mapping.first_fit import first_fit
from loadmaster.plan import save_plan
from loadmaster.program.zoo import load_workload

SCHEMA = json.loads((Path(loadmaster.cli.__file__).parent / "schema.json").read_text())
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


@dataclass(frozen=True)
class Result:
    exit: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line that an error may take."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in self.err
        return lines[0]


Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are kept below the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run() -> Run:
    def call(*args: object, env: dict[str, str] | None = None) -> Result:
        result = CliRunner().invoke(app, [str(arg) for arg in args], env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def run_json(run: Run) -> RunJson:
    def call(*args: object) -> dict[str, Any]:
        result = run(*args, "--json")
        assert result.out.count("\n") == 1
        assert "NaN" not in result.out and "Infinity" not in result.out
        document: dict[str, Any] = json.loads(result.out)
        validate(document, SCHEMA)
        assert document["exit"] == result.exit and document["ok"] == (result.exit == 0)
        for row in document["rows"]:
            command = "plan" if document["command"] == "resume" else document["command"]  # the same rows
            name = command + (f".{row['what']}" if "what" in row else "")
            validate(row, SCHEMA["$defs"][name])
        return document

    return call


def validate(value: Any, schema: dict[str, Any]) -> None:
    """The part of JSON Schema that our schema uses."""
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert isinstance(value, tuple(TYPES[name] for name in names)), (value, schema)
        assert not isinstance(value, bool) or "boolean" in names, (value, schema)
    if isinstance(value, dict):
        assert not set(schema.get("required", ())) - set(value), (value, schema)
        for key, entry in value.items():
            validate(entry, schema.get("properties", {}).get(key, {}))
    if isinstance(value, list):
        for entry in value:
            validate(entry, schema.get("items", {}))


@pytest.fixture(scope="session")
def light() -> Path:
    """The folder of real models inside the onnx package."""
    onnx = pytest.importorskip("onnx")
    return Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A sound plan of resnet50 on nnp-i."""
    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    path = tmp_path / "plan.json"
    save_plan(first_fit(program, machine), program, machine, path)
    return path
