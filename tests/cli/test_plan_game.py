"""`loadmaster plan` on games: every solver a user can name, resumes, pictures, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadmaster.machine import load_machine
from loadmaster.plan import load_plan
from loadmaster.plan.check import check
from loadmaster.program.models import load_model
from loadmaster.simulate import simulate

MODEL, CHIP = "alexnet-inf", "tpu-v4i-16m"
pytestmark = pytest.mark.usefixtures("elsewhere")


def rows_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in answer["rows"]}


@pytest.mark.parametrize("solver", ["msa", "greedy-order", "es-moves", "anneal-moves", "msa-order", "auto"])
def test_a_game_is_planned_checked_and_kept(run_json: Any, solver: str) -> None:
    family = {
        "greedy-order": ("heuristic", "--set", "rule=greedy-order"),
        "es-moves": ("search",),
        "anneal-moves": ("search", "--set", "method=anneal-moves"),
    }
    words = family.get(solver, (solver,))
    answer = run_json("plan", MODEL, "-m", CHIP, "--solver", *words, "--budget", "200")
    rows = rows_of(answer)
    ours = rows[solver]
    assert {"all-slow", "msa", "production"} <= set(rows) and ours["what"] == "result"
    bound = rows.get("bound", ours)["picoseconds"]  # a plan that meets it stands for it
    assert ("bound" in rows) == (ours["status"] != "optimal")
    assert ours["gap"] == pytest.approx(ours["picoseconds"] / bound - 1)
    assert ours["speedup"] == pytest.approx(rows["production"]["picoseconds"] / ours["picoseconds"])
    assert answer["before"] == "production"
    program, machine = load_model(MODEL), load_machine(CHIP)
    plan = load_plan(Path(answer["plan"]), program, machine)
    assert check(program, machine, plan) == []
    best = min(row["picoseconds"] for name, row in rows.items() if name != "bound")
    assert simulate(program, machine, plan).total_ps == rows[answer["origin"]]["picoseconds"] == best
    assert answer["copies"] == len(plan.copy_rows) and answer["moves"] > 20
    if solver == "auto":
        assert ours["picoseconds"] <= min(rows["production"]["picoseconds"], rows["msa"]["picoseconds"])


def test_the_problem_follows_from_solver_and_machine(run_json: Any, run: Any) -> None:
    by_machine = run_json("plan", MODEL, "-m", CHIP, "--budget", "70", "--no-run")
    by_solver = run_json("plan", "bert:layers=1", "-m", "nnp-i-dma", "--solver", "msa", "--no-run")
    named = run_json(
        "plan",
        MODEL,
        "-m",
        CHIP,
        "--problem",
        "mapping",
        "--solver",
        "search",
        "--set",
        "method=random",
        "--budget",
        "20",
        "--no-run",
        "--exact-seconds",
        "0",
    )
    assert "moves" in by_machine and "moves" in by_solver and "nodes" in named
    assert "no problem 'maping'" in run("plan", MODEL, "--problem", "maping").error_line
    refused = run("plan", MODEL, "-m", CHIP, "--solver", "msa", "--noise", "0.1")
    assert refused.exit == 2 and "--noise" in refused.error_line
    assert "no solver 'msaa'" in run("plan", MODEL, "-m", CHIP, "--solver", "msaa").error_line
    assert "refuses" in run("plan", MODEL, "-m", CHIP, "--solver", "search", "--set", "start=luck").error_line
    no_production = run("plan", MODEL, "-m", "tpu-v4i:cmem=3MiB", "--solver", "production")
    assert no_production.exit == 2 and "no production placement" in no_production.error_line


def test_other_machines_play_the_same_game(run_json: Any) -> None:
    for model, machine in (("bert:layers=1", "nnp-i-dma"), ("bert:layers=1", "imxrt1170:hyperram=64MiB")):
        answer = run_json("plan", model, "-m", machine, "--problem", "malloc-game", "--budget", "130")
        rows = rows_of(answer)
        assert rows["auto"]["picoseconds"] < rows["all-slow"]["picoseconds"]
        assert rows["auto"]["picoseconds"] >= rows["bound"]["picoseconds"]


def test_a_resumed_game_equals_an_unbroken_one_and_can_be_drawn(run_json: Any, run: Any) -> None:
    words = ("plan", "alexnet-train", "-m", CHIP, "--solver", "search")
    first = run_json(*words, "--budget", "190")
    resumed = run_json("plan", "alexnet-train", "--resume", first["run"], "--budget", "500")
    whole = run_json(*words, "--budget", "500")
    assert rows_of(resumed)["es-moves"]["picoseconds"] == rows_of(whole)["es-moves"]["picoseconds"]
    assert rows_of(resumed)["es-moves"]["evaluations"] == 500
    assert run("replay", first["run"]).exit == 0
    assert run("figures", first["run"], "--out", "pictures").exit == 0
    drawn = sorted(path.name for path in Path("pictures").iterdir())
    assert drawn == [
        "alexnet-train-tpu-v4i-16m-es-moves-curve.svg",
        "alexnet-train-tpu-v4i-16m-es-moves-memory.svg",
    ]


def test_options_are_named_kept_and_taken_up_again(run_json: Any, run: Any) -> None:
    assert "2023" in run("solvers", "msa").out and "max_ratio" in run("solvers", "msa").out
    named = run_json("plan", MODEL, "-m", CHIP, "--solver", "msa", "--set", "style=2023", "--no-run")
    assert rows_of(named)["msa"]["picoseconds"] > 0
    assert (
        "no style '2099'"
        in run("plan", MODEL, "-m", CHIP, "--solver", "msa", "--set", "style=2099").error_line
    )
    words = ("plan", "alexnet-train", "-m", CHIP, "--solver", "search", "--set", "population=20")
    first = run_json(*words, "--budget", "60")
    resumed = run_json("plan", "alexnet-train", "--resume", first["run"], "--budget", "200")
    whole = run_json(*words, "--budget", "200")
    assert rows_of(resumed)["es-moves"]["picoseconds"] == rows_of(whole)["es-moves"]["picoseconds"]
