"""The mapping suite: what is counted, what the rows say together, how parts are put together."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.suites import Options, run_suite
from benchmarks.suites.mapping import CASES, QUICK_NETWORK
from benchmarks.suites.mapping_cells import BLACK, CELLS, WHITE, Cell
from benchmarks.suites.mapping_run import CountedMapping, reached, run_cell, to_gain
from benchmarks.suites.mapping_transfer import Snapshots
from loadmaster.mapping.egrl.settings import Settings
from loadmaster.mapping.problem import Mapping
from loadmaster.search.registry import make_labelled, solver_labels
from loadmaster.search.solver import Budget, Meter, solve

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
SMALL = Cell("small", "bert:layers=1", "nnp-i-half")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_name_solvers_and_switches_that_exist() -> None:
    assert (
        sum(cell.case.count("/") == 1 and not cell.case.startswith("ablation/") for cell in CELLS.values())
        == 9
    )
    settings = set(Settings.__dataclass_fields__) | {"init"}
    for cell in CELLS.values():
        assert set(cell.solvers) <= set(solver_labels("mapping")) and cell.budget > 0
        assert set(cell.solver) <= settings, cell.case
        if cell.case.startswith("ablation/"):
            Settings(**cell.solver)
    assert set(CELLS) < set(CASES) and set(BLACK).isdisjoint(WHITE)
    assert CELLS["ablation/ports-parallel"].load_machine().rules.ports == "parallel"


def test_a_row_is_what_the_solver_found() -> None:
    row = run_cell(SMALL, "annealing", 3, budget=150)
    problem = SMALL.load()
    assert row.evaluations == 150 and row.seed == 3 and row.solver == "annealing"
    assert row.baseline == problem.compiler_ps and row.bound == problem.bound().value
    assert row.gap == pytest.approx(row.value / problem.bound().value - 1)
    extra = row.extra
    assert extra["best_speedup"] == pytest.approx(problem.compiler_ps / row.value)
    assert extra["curve"][-1][1] == row.value and extra["white_box"] is False
    assert [value for _, value in extra["curve"]] == sorted((v for _, v in extra["curve"]), reverse=True)
    assert extra["first_valid_at"] == extra["curve"][0][0] == 1
    assert extra["hardware_runs"] == round(150 * (1 - extra["invalid_fraction"]))
    assert 1 < extra["unique_maps"] <= 150
    json.dumps(row.as_dict(), allow_nan=False)
    again = run_cell(SMALL, "annealing", 3, budget=150)
    assert again.value == row.value and again.extra["curve"] == extra["curve"]


def test_white_box_rows_cost_no_evaluations_and_nothing_found_is_told() -> None:
    density, compiler = (run_cell(SMALL, name, 0) for name in ("density", "compiler"))
    assert density.evaluations == compiler.evaluations == 0 and density.extra["white_box"]
    assert density.value < compiler.value == compiler.baseline
    nothing = run_cell(CELLS["resnet50/nnp-i"], "ageing-evolution", 0, budget=3)
    assert nothing.value == -1 and nothing.gap is None and nothing.status == "unknown"
    assert nothing.extra["invalid_fraction"] == 1 and nothing.extra["first_valid_at"] is None


def test_noise_is_left_out_of_what_is_reported() -> None:
    noisy = Cell("noisy", SMALL.model, SMALL.machine, problem={"noise": 0.3})
    row = run_cell(noisy, "random", 0, budget=40)
    assert row.bound == SMALL.load().bound().value and row.value >= row.bound
    assert row.extra["curve"][-1][1] != row.value


def test_counting_matches_what_is_submitted() -> None:
    problem = SMALL.load_as(CountedMapping)
    rng = np.random.default_rng(0)
    maps = rng.integers(0, 3, (30, 2 * problem.nodes), dtype=np.int8)
    maps[5] = maps[4]
    scores = problem.score(maps)
    fits = scores.value >= 0
    assert problem.submitted == 30 and problem.unique == 29
    assert problem.unfit == int((~fits).sum())
    assert problem.first_valid_at == (int(np.argmax(fits)) + 1 if fits.any() else None)


def test_curves_say_when_a_value_was_reached() -> None:
    curve = [(1, 1000), (10, 500), (40, 210), (90, 200)]
    assert reached(curve, 500) == 10 and reached(curve, 499) == 40 and reached(curve, 199) is None
    # Speed-ups 1, 2, 4.76 and 5 beyond 1: 95 % of the gain of 4 is 4.8.
    assert to_gain(curve, 1000) == 90 and to_gain(curve, 1000, 0.9) == 40
    assert to_gain([], 1000) is None


def test_the_quick_suite_has_few_rows_and_speed_has_a_target() -> None:
    options = Options(quick=True, solvers=("greedy-dp", "compiler"), seeds=2)
    rows = list(run_suite("mapping", options))
    names = [(row.case, row.solver, row.seed) for row in rows]
    assert names == [
        ("speed", None, 0),
        ("speed", None, 1),
        ("resnet50/nnp-i", "greedy-dp", 0),
        ("resnet50/nnp-i", "compiler", 0),
        ("resnet50/nnp-i", "greedy-dp", 1),
    ]
    assert [row.extra["budget"] for row in rows[2:]] == [220, None, 220]
    assert rows[0].unit == "maps/s" and rows[0].extra["target"] == ">= 50,000 maps/s"


def test_quick_rows_name_the_options_that_make_them_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.cli.bench import command

    pytest.importorskip("jax")
    monkeypatch.setattr("benchmarks.suites.mapping.QUICK_BUDGET", 60)
    answer = command("mapping", quick=True, case=["resnet50/nnp-i"], seeds=1, solver=["ea", "random"])
    ea, random = answer.rows
    assert ea["extra"]["options"] == QUICK_NETWORK and "options" not in random["extra"]
    assert ea["extra"]["budget"] == random["extra"]["budget"] == 60 >= ea["evaluations"] > 0
    assert "ea (width=32, depth=2, batch=8)" in str(answer.blocks[0])


def test_snapshots_come_at_shares_of_the_budget() -> None:
    problem = Mapping(SMALL.load().program, SMALL.load_machine())
    observer = Snapshots(40)

    class Counting:
        name, problem_kind, summary, deterministic = "counting", "mapping", "", True

        def run(self, meter: Meter, seed: int, state: Any) -> Any:
            while not meter.exhausted:
                meter.evaluate(problem.all_slowest())
                if meter.observer.wants_checkpoint(meter):
                    meter.checkpoint({"at": np.array(meter.evaluations)})
            return meter.solution()

    solve(Counting(), problem, Budget(40), 0, observer)
    assert {share: int(state["at"]) for share, state in observer.states.items()} == {
        0.25: 10,
        0.5: 20,
        1.0: 40,
    }


def test_the_random_map_is_the_first_of_random_search() -> None:
    pytest.importorskip("equinox")
    from loadmaster.mapping.egrl.agent import random_map

    problem = SMALL.load_as(CountedMapping)
    decision = random_map(problem, 5)
    assert decision.shape == (2 * problem.nodes,)
    assert (decision == random_map(problem, 5)).all() and (decision != random_map(problem, 6)).any()
    assert make_labelled("mapping", "random").name == "random"


def test_jobs_run_in_processes_and_are_not_run_twice(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    command = [
        sys.executable,
        str(BENCHMARKS / "mapping_runs.py"),
        "--cells",
        "resnet50/nnp-i",
        "--solvers",
        "random",
        "greedy-dp",
        "compiler",
        "--seeds",
        "0",
        "1",
        "--jobs",
        "2",
        "--budget",
        "30",
        "--out",
        str(out),
    ]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    assert first.stdout.startswith("5 jobs to run")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 5 and all(line["rows"][0]["evaluations"] in (0, 30) for line in lines)
    assert all(line["made"]["versions"]["numpy"] for line in lines)
    kept = out.read_text().splitlines()
    out.write_text("\n".join([*kept[:4], kept[4][:50]]))  # torn: that job is run again
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.startswith("1 jobs to run, 4 in")
    runs = script("mapping_runs")
    assert len(runs.done_in(out)) == 5


def test_parts_are_merged_by_case_solver_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = script("record")
    monkeypatch.setattr(record, "HERE", tmp_path)
    monkeypatch.setattr(record, "commit", lambda: "abc")
    (tmp_path / "results").mkdir()

    def part(name: str, cpu: str, values: dict[int, float]) -> Path:
        lines = [
            json.dumps(
                {
                    "job": ["c", "egrl", seed],
                    "made": {"versions": {}, "host": {"cpu": cpu}},
                    "rows": [{"case": "c", "solver": "egrl", "seed": seed, "value": value, "extra": {}}],
                }
            )
            for seed, value in values.items()
        ]
        path = tmp_path / name
        path.write_text("\n".join(lines) + '\n{"torn')
        return path

    record.main("mapping", "--rows", str(part("a", "one", {0: 5.0, 1: 6.0})))
    record.main("mapping", "--rows", str(part("b", "two", {1: 7.0, 2: 8.0})))
    document = json.loads((tmp_path / "results" / "mapping.json").read_text())
    assert [(row["seed"], row["value"]) for row in document["rows"]] == [(0, 5.0), (1, 7.0), (2, 8.0)]
    made = [document["made"][row["extra"]["made"]]["host"]["cpu"] for row in document["rows"]]
    assert made == ["one", "two", "two"] and document["commit"] == "abc"
    record.main("mapping", "--rows", "--fresh", str(tmp_path / "b"))
    assert len(json.loads((tmp_path / "results" / "mapping.json").read_text())["rows"]) == 2
