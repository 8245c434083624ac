"""A report with a measured run: simulated beside measured, of the same plan only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.plan import Plan
from loadmaster.program.zoo import load_workload
from loadmaster.report import write_plan_report
from loadmaster.simulate import simulate


def run_file(folder: Path, plan: Plan, ops: list[dict[str, Any]]) -> Path:
    path = folder / "run.json"
    total = {"what": "total", "plan": plan.hash, "device": "cuda", "seconds": 0.5}
    path.write_text(json.dumps({"rows": [total, *ops]}), encoding="utf-8")
    return path


def test_simulated_stands_beside_measured(tmp_path: Path) -> None:
    program, machine, plan = load_workload("resnet50"), load_machine("nnp-i"), Plan()
    ops = [{"what": "op", "op": 3, "name": "x", "start_seconds": 0.1, "end_seconds": 0.35}]
    measured = run_file(tmp_path, plan, ops)
    facts = write_plan_report(program, machine, [("plan", plan)], tmp_path / "r.html", measured)
    (whole,) = (row for row in facts.rows if row["what"] == "measured")
    line = simulate(program, machine, plan)
    assert whole["seconds"] == 0.5 and whole["simulated_seconds"] == line.seconds
    assert whole["difference"] == pytest.approx(line.seconds / 0.5 - 1)
    (op,) = (row for row in facts.rows if row["what"] == "measured_op")
    assert op["name"] == program.op_name[3] and op["seconds"] == pytest.approx(0.25)
    assert op["simulated_seconds"] == int(line.op_end[3] - line.op_start[3]) / 1e12


def test_other_plans_and_other_files_are_refused(tmp_path: Path) -> None:
    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    other = Plan(queue="fifo")
    out, measured = tmp_path / "r.html", run_file(tmp_path, other, [])
    with pytest.raises(LoadmasterError, match="another plan"):
        write_plan_report(program, machine, [("plan", Plan())], out, measured)
    measured.write_text('{"rows": []}', encoding="utf-8")
    with pytest.raises(LoadmasterError, match="is not what"):
        write_plan_report(program, machine, [("plan", Plan())], out, measured)
    with pytest.raises(LoadmasterError, match="can't be read"):
        write_plan_report(program, machine, [("plan", Plan())], out, tmp_path / "none.json")
    assert not out.exists()
