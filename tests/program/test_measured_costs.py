"""Measured op times as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_files import write_costs
from loadmaster.errors import BadProgram
from loadmaster.program.build import Builder
from loadmaster.program.measured_costs import MeasuredCosts, apply_costs, costless_hash, read_costs
from loadmaster.program.program import COMPUTED, Program


def two_ops() -> Program:
    build = Builder("two")
    first, middle, last = (
        build.tensor(name, bytes=8, kind=kind)
        for name, kind in (("a", "input"), ("b", "activation"), ("c", "output"))
    )
    build.op("one", "add", reads=[first], writes=[middle])
    build.op("two", "add", reads=[middle], writes=[last])
    return build.build()


def test_what_is_written_is_read_and_applied(tmp_path: Path) -> None:
    program, path = two_ops(), tmp_path / "costs.json"
    costs = MeasuredCosts(costless_hash(program), "gpu", (1_500, None), 4096, 96, (0, 4000))
    write_costs(costs, path)
    assert read_costs(path) == costs
    measured = apply_costs(program, costs, "gpu")
    assert measured.costs is not None and measured.costs.tolist() == [[1_500], [COMPUTED]]
    assert costless_hash(measured) == program.hash  # so that it can be applied again
    assert apply_costs(measured, costs).hash == measured.hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loadmaster_costs": 2}, "no cost table"),
        ({"picoseconds": [1, "x"]}, "no list"),
        ({"picoseconds": None}, "no list"),
        ({"workspace_bytes": -1}, "workspace_bytes -1"),
        ({"kept_bytes": 0.5}, "kept_bytes 0.5"),
        ({"op_workspace": [1]}, "op_workspace"),
        ({"op_workspace": [1, -1]}, "op_workspace"),
        ({"op_workspace": 7}, "op_workspace"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "costs.json"
    write_costs(MeasuredCosts("x", "gpu", (1, 2)), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BadProgram, match=message):
        read_costs(path)
    path.write_text("{")
    with pytest.raises(BadProgram, match="not JSON"):
        read_costs(path)
    with pytest.raises(BadProgram, match="can't be read"):
        read_costs(tmp_path / "none.json")


def test_times_of_something_else_are_refused() -> None:
    program = two_ops()
    own = costless_hash(program)
    for costs, message in (
        (MeasuredCosts("y", "gpu", (1, 2)), "another program"),
        (MeasuredCosts(own, "gpu", (1,)), "1 times"),
        (MeasuredCosts(own, "tpu", (1, 2)), "'tpu'"),
    ):
        with pytest.raises(BadProgram, match=message):
            apply_costs(program, costs, "gpu")
