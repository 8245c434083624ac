"""`loadmaster plan` on several devices: what is told, what is refused, resumes, replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadmaster.machine import load_machine
from loadmaster.plan import load_plan
from loadmaster.plan.check import check
from loadmaster.program.models import load_model
from loadmaster.simulate import simulate

MODEL, MACHINE = "bert:layers=2", "p100x2"
pytestmark = pytest.mark.usefixtures("elsewhere")


def rows_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in answer["rows"]}


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        ("anneal", "search"),
        ("brkga", "search --set method=brkga"),
        ("random-best", "search --set method=random-best"),
        ("large-neighbourhood", "search --set method=large-neighbourhood"),
        ("heft", "heuristic --set rule=heft"),
        ("classical", "classical"),
        ("auto", "auto"),
    ],
)
def test_a_graph_is_planned_checked_and_kept(run_json: Any, solver: str, words: str) -> None:
    answer = run_json(
        "plan",
        MODEL,
        "-m",
        MACHINE,
        "--tasks",
        "placement,fusion,schedule",
        "--solver",
        *words.split(),
        "--budget",
        "80",
    )
    rows = rows_of(answer)
    ours, base = rows[solver], rows["base"]
    assert {"base", "critical-path", solver, "bound", "gpu0", "gpu1"} <= set(rows)
    assert ours["what"] == "result" and ours["picoseconds"] >= rows["bound"]["picoseconds"]
    assert ours["gap"] == pytest.approx(ours["picoseconds"] / rows["bound"]["picoseconds"] - 1)
    assert ours["speedup"] == pytest.approx(base["picoseconds"] / ours["picoseconds"])
    program, machine = load_model(MODEL), load_machine(MACHINE)
    plan = load_plan(Path(answer["plan"]), program, machine)
    assert check(program, machine, plan) == []
    timeline = simulate(program, machine, plan)
    best = min(row["picoseconds"] for row in rows.values() if row["what"] in ("baseline", "result"))
    assert timeline.total_ps == rows[answer["origin"]]["picoseconds"] == best
    assert answer["link_bytes"] == timeline.link_bytes.sum()
    assert rows["gpu0"]["peak_bytes"] == timeline.memory_peak[0] <= rows["gpu0"]["capacity_bytes"]
    if solver in ("auto", "classical"):
        best_known = min(base["picoseconds"], rows["critical-path"]["picoseconds"])
        assert ours["picoseconds"] <= best_known


def test_only_what_is_decided_differs_from_the_base(run_json: Any) -> None:
    words = ("plan", MODEL, "-m", MACHINE, "--solver", "auto", "--budget", "40", "--no-run", "--out")
    run_json(*words, "s.json", "--tasks", "schedule", "--base", "fusion=none,placement=single")
    run_json(*words, "p.json", "--tasks", "placement", "--base", "fusion=none", "--groups", "op")
    program, machine = load_model(MODEL), load_machine(MACHINE)
    single, placed = (load_plan(Path(name), program, machine) for name in ("s.json", "p.json"))
    assert single.fusion is None and placed.fusion is None
    assert single.device is not None and set(single.device.tolist()) == {0}


def test_several_devices_mean_this_problem(run_json: Any, run: Any) -> None:
    by_machine = run_json("plan", MODEL, "-m", MACHINE, "--budget", "2", "--no-run")
    assert by_machine["tasks"] == ["placement", "fusion", "schedule"]
    one = run_json("plan", MODEL, "-m", "nnp-i", "--tasks", "fusion,schedule", "--budget", "2", "--no-run")
    assert one["tasks"] == ["fusion", "schedule"] and one["link_bytes"] == 0
    plain = run_json("plan", MODEL, "-m", "nnp-i", "--budget", "20", "--no-run", "--exact-seconds", "0")
    assert "tasks" not in plain


def test_wrong_input_gets_one_clear_line(run: Any) -> None:
    def line(*words: str) -> str:
        refused = run("plan", MODEL, *words)
        assert refused.exit in (1, 2)
        return str(refused.error_line)

    assert "no task 'fushion'" in line("-m", MACHINE, "--tasks", "placement,fushion")
    assert "has one device" in line("-m", "nnp-i", "--tasks", "placement")
    assert "has one device" in line("-m", "nnp-i", "--problem", "graph")
    assert "weights and moments take" in line(
        "-m", MACHINE, "--capacity", "hbm0=1KiB", "--capacity", "hbm1=1KiB"
    )
    assert "no kind of groups 'sope'" in line("-m", MACHINE, "--groups", "sope")
    assert "is not PART=NAME" in line("-m", MACHINE, "--base", "single")
    assert "no base placement 'best'" in line("-m", MACHINE, "--base", "placement=best")
    assert "--tasks is for the graph problem" in line(
        "-m", "nnp-i", "--problem", "mapping", "--tasks", "fusion"
    )
    assert "--tasks is for the graph problem" in line("--objective", "peak-memory", "--tasks", "fusion")
    assert "--noise" in line("-m", MACHINE, "--noise", "0.1")
    assert "no solver 'aneal' for graph" in line("-m", MACHINE, "--solver", "aneal")


def test_a_resumed_run_equals_an_unbroken_one_and_can_be_replayed(run_json: Any, run: Any) -> None:
    for solver, option in (("anneal", "length=400"), ("brkga", "population=40")):
        words = (
            "plan",
            MODEL,
            "-m",
            MACHINE,
            "--solver",
            "search",
            "--set",
            f"method={solver}",
            "--set",
            option,
        )
        first = run_json(*words, "--budget", "200")
        resumed = run_json("plan", MODEL, "--resume", first["run"], "--budget", "400")
        whole = run_json(*words, "--budget", "400")
        assert rows_of(resumed)[solver]["picoseconds"] == rows_of(whole)[solver]["picoseconds"]
        assert rows_of(resumed)[solver]["evaluations"] == 400
    assert run("replay", first["run"]).exit == 0 and run("replay", whole["run"]).exit == 0
    assert run("compare", first["run"], whole["run"]).exit == 0
    assert run("check", MODEL, Path(whole["run"]) / "best.json", "-m", MACHINE).out.strip() == "ok"
    listed = run_json("runs")["rows"]
    assert {row["problem"] for row in listed} == {"graph"} and len(listed) == 4
    assert "is about graph" in run("figures", first["run"]).error_line
    assert "--resume takes" in run("plan", MODEL, "--resume", first["run"], "--tasks", "fusion").error_line
