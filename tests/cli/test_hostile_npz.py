"""Hostile npz files through the command line: exit 2, one line, nothing written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.program import save
from loadmaster.program.zoo import load_workload


@pytest.fixture
def columns(tmp_path: Path) -> dict[str, Any]:
    save(load_workload("alexnet-inf"), tmp_path / "whole.npz")
    with np.load(tmp_path / "whole.npz") as file:
        return {name: file[name] for name in file.files}


def texts(values: list[str]) -> Any:
    return np.frombuffer(json.dumps(values).encode(), np.uint8)


def wrapping(start: Any) -> Any:
    return np.concatenate([[0, 2**63 - 1, -(2**63) + 4], start[3:]])


CASES = {
    "writes that wrap round": ("write_start", wrapping, "'write_start' does not cut"),
    "reads that wrap round": ("read_start", wrapping, "'read_start' does not cut"),
    "a group of 8 GiB": ("op_group", lambda c: np.full_like(c, 2**31 - 2), "is in group 2147483646"),
    "20,000 loops": (
        "loop_parent",
        lambda c: np.arange(-1, 19_999, dtype=np.int32),
        "20,000 loops, above the limit 4,096",
    ),
    "text for numbers": ("op_flops", lambda c: np.array(["a"]), "only numbers are read"),
    "deep JSON": ("header", lambda c: np.frombuffer(b"[" * 9000, np.uint8), "nested deeper"),
    "half a character": (
        "op_kind.values",
        lambda c: texts(["\ud800", *json.loads(c.tobytes())[1:]]),
        "half a character",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_programs(run: Any, tmp_path: Path, columns: dict[str, Any], case: str) -> None:
    name, spoil, words = CASES[case]
    columns[name] = spoil(columns[name])
    if name == "loop_parent":
        columns["loop_trips"] = np.ones(20_000, np.int64)
    bad, out, plan = tmp_path / "bad.npz", tmp_path / "out.csv", tmp_path / "plan.json"
    plan.write_text('{"loadmaster_plan": 1}')
    np.savez_compressed(bad, **columns)
    for command in (("inspect", bad), ("export", "csv", bad, plan, "--out", out)):
        result = run(*command)
        assert result.exit == 2 and words in result.error_line
    assert not out.exists()


def test_an_entry_that_is_no_array(run: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("header.txt", "hello")
    assert "entry 'header.txt' is no .npy array" in run("inspect", bad).error_line


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (np.frombuffer(b"[" * 9000, np.uint8), "nested deeper than 64 levels"),
        (np.frombuffer(b"7" * 5000, np.uint8), "more than 64 digits"),
        (np.array(["text"]), "only numbers are read"),
        (np.frombuffer(b"[]", np.uint8), "is no policy of format 1"),
    ],
)
def test_policies(run: Any, elsewhere: Path, about: Any, words: str) -> None:
    np.savez_compressed(elsewhere / "bad.npz", about=about)
    result = run(
        "plan", "gnmt-2", "-m", "p100x2", "--solver", "go", "--init", elsewhere / "bad.npz", "--budget", 5
    )
    assert result.exit == 2 and words in result.err.splitlines()[-1]
