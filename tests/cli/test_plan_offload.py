"""`loadmaster plan` for a device that works in its first memory alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cost_files import write_costs
from loadmaster.machine import load_machine
from loadmaster.offload.problem import Offload
from loadmaster.plan import load_plan
from loadmaster.planner import Objective, make_problem
from loadmaster.planner.planner import problem_kind
from loadmaster.program.measured_costs import MeasuredCosts, costless_hash
from loadmaster.program.storage import load, save
from offload_stack import gpu, stack

pytestmark = pytest.mark.usefixtures("elsewhere")
TIED = "llama:layers=1,batch=1,tokens=64"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "stack.npz"
    save(stack(layers=4), path)
    return path


def test_a_share_of_what_a_model_needs(model: Path, run_json: Any) -> None:
    answer = run_json(
        "plan", str(model), "-m", "h200", "--capacity", "hbm=60%", "--budget", "120", "--out", "p.json"
    )
    rows = {row["name"]: row for row in answer["rows"]}
    assert {"layerwise", "prefetch", "msa", "auto"} <= rows.keys()
    others = [row["picoseconds"] for row in rows.values() if row["what"] == "baseline"]
    assert rows["auto"]["picoseconds"] <= min(others)
    capacity = answer["fast_capacity_bytes"]
    assert answer["fast_peak_bytes"] <= capacity == int(answer["needed_bytes"] * 0.6)
    program, machine = load(model), load_machine(f"h200:hbm={capacity}")
    assert Offload(program, machine).violations(load_plan(Path("p.json"), program, machine)) == []
    again = run_json("plan", str(model), "--resume", answer["run"], "--budget", "150")
    ours = next(row for row in again["rows"] if row["name"] == "auto")
    assert ours["picoseconds"] <= rows["auto"]["picoseconds"]


def test_measured_times_and_workspace_come_from_a_file(model: Path, run_json: Any, run: Any) -> None:
    program, path = load(model), "costs.json"
    write_costs(MeasuredCosts(costless_hash(program), "gpu", (10**9,) * program.n_ops, 2**20), path)
    asked = (
        "plan",
        str(model),
        "-m",
        "h200",
        "--costs",
        path,
        "--no-run",
        "--solver",
        "heuristic",
        "--set",
        "rule=all-resident",
    )
    answer = run_json(*asked)
    assert answer["ops_picoseconds"] == 10**9 * program.n_ops
    exact = run_json(*asked, "--capacity", f"hbm={answer['needed_bytes'] + 2**20}")
    assert exact["rows"][-1]["picoseconds"] is not None
    short = run_json(*asked, "--capacity", f"hbm={answer['needed_bytes'] + 2**19}")
    ours = next(row for row in short["rows"] if row["what"] == "result")
    assert ours["picoseconds"] is None and short["origin"] != "all-resident"  # known methods found one
    assert (answer["before"], short["before"]) == ("all-resident", "layerwise")
    write_costs(MeasuredCosts("another", "gpu", (1,) * program.n_ops), path)
    assert "another program" in run(*asked).error_line


def test_shares_and_measured_times_are_for_offload_alone(model: Path, run: Any) -> None:
    asked = ("plan", str(model), "--no-run", "--machine")
    assert "--problem offload" in run(*asked, "nnp-i", "--capacity", "sram=50%").error_line
    assert "hbm=50%" in run(*asked, "h200", "--capacity", "host=50%").error_line
    assert "--problem offload" in run(*asked, "nnp-i", "--costs", "costs.json").error_line


def test_a_machine_that_works_in_its_first_memory_poses_offload() -> None:
    assert problem_kind(load_machine("h200")) == "offload"
    assert problem_kind(load_machine("h200"), Objective.BYTES_MOVED) == "mapping"
    assert problem_kind(load_machine("nnp-i")) == "mapping"
    assert isinstance(make_problem(stack(layers=2), gpu(2**32)), Offload)


def test_a_program_with_ties_has_no_plan_where_ops_work_in_one_memory(run: Any) -> None:
    """Offload plans know no tensors written over each other, and no other problem keeps to the rule."""
    asked = ("--quiet", "plan", TIED, "-m", "h200:hbm=64MiB", "--budget", "3", "--no-run", "--no-recompute")
    assert "written over another one" in run(*asked).error_line
    assert "work in 'hbm' alone" in run(*asked[:-1], "--problem", "mapping").error_line
