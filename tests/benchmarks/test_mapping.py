"""The mapping suite: what is counted, what the rows say together, how parts are put together."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.suites import Options, run_suite
from benchmarks.suites.mapping import CASES
from benchmarks.suites.mapping_cells import CELLS, NINE, PARTS, ROOM, Cell
from benchmarks.suites.mapping_rivals import RIVALS
from benchmarks.suites.mapping_run import CountedMapping, best_at, best_at_seconds, run_cell
from benchmarks.suites.mapping_solvers import (
    BLACK,
    ONCE,
    PAPER,
    PIECES,
    VARIANTS,
    WHITE,
    is_white,
    make_cell_solver,
)
from benchmarks.suites.mapping_wrong import Misdescribed, misdescribe
from loadmaster.mapping.decoder import Decoder
from loadmaster.mapping.egrl.search import OPERATORS, Settings
from loadmaster.search.registry import solver_labels

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
SMALL = Cell("small", "bert:layers=1", "nnp-i-half")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_name_solvers_that_exist() -> None:
    assert len(NINE) == 9 and len(ROOM) == 11 and set(CELLS) < set(CASES)
    known = {*solver_labels("mapping"), *VARIANTS, *RIVALS, *PAPER}
    for cell in CELLS.values():
        assert set(cell.solvers) <= known, cell.case
        assert (cell.budget is None) == (cell.seconds is not None)
    assert set(BLACK).isdisjoint(WHITE) and all(is_white(label) for label in WHITE)
    assert CELLS["ports-parallel/bert/nnp-i"].load_machine().rules.ports == "parallel"
    assert CELLS["noise-0.03-50/bert/nnp-i"].noise == 0.03 and CELLS["wrong/bert/nnp-i"].wrong == 0.5


def test_parts_name_cells_and_their_solvers() -> None:
    for cases, solvers, seeds in PARTS.values():
        assert cases and seeds > 0
        for case in cases:
            assert set(solvers) <= set(CELLS[case].solvers), (case, solvers)
    # What shares out its budget is also run with fewer evaluations.
    assert CELLS["budget-50/wrong/bert/nnp-i"].solvers == ("probe",)
    assert CELLS["budget-200/bert/nnp-i"].budget == 200 and "budget-200/wrong/bert/nnp-i" not in CELLS


def test_variants_are_distinct_settings_and_show_every_operator_alone() -> None:
    made = [Settings(**options) for options in VARIANTS.values()]
    assert all(a != b for i, a in enumerate(made) for b in made[:i])
    # By default it has one operator, which needs no label of its own.
    apart = [name for name in OPERATORS if not getattr(Settings(), name)]
    assert len(apart) == len(OPERATORS) - 1
    for name in apart:
        only = Settings(**VARIANTS[f"egrl-only-{name}"])
        assert [bool(getattr(only, each)) for each in OPERATORS] == [each == name for each in OPERATORS]
    assert set(PIECES) < set(VARIANTS) and "egrl" not in PIECES
    assert make_cell_solver("egrl-strict", {"batch": 3}).options["batch"] == 3


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
    assert 1 < extra["unique_maps"] <= 150 == extra["legality_checks"]
    assert set(extra["at"]) == {"1", "4", "50"} and set(extra["at_seconds"]) == {"0.1", "0.3", "1", "3"}
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
    noisy = Cell("noisy", SMALL.model, SMALL.machine, noise=0.3)
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


def test_curves_say_what_was_best_when() -> None:
    curve = [(1, 1000), (10, 500), (40, 210), (90, 200)]
    assert best_at(curve, 200) == {"1": 1000, "4": 1000, "50": 210, "200": 200}
    assert best_at(curve, None)["1000"] == 200 and best_at([(3, 7)], 50) == {"1": None, "4": 7, "50": 7}
    clock = [(0.05, 1000), (0.3, 500), (2.0, 400)]
    assert best_at_seconds(clock) == {"0.1": 1000, "0.3": 500, "1": 500, "3": 400}
    assert set(best_at_seconds([]).values()) == {None}


@pytest.mark.parametrize("solver", ["egrl", "egrl-strict-untrained", "probe", *RIVALS])
def test_solvers_on_scores_submit_nothing_illegal(solver: str) -> None:
    row = run_cell(CELLS["resnet101/nnp-i"], solver, 1, budget=40)
    assert row.extra["invalid_fraction"] == 0 and row.extra["hardware_runs"] == row.evaluations == 40
    assert row.extra["legality_checks"] >= 40 and row.extra["first_valid_at"] == 1
    assert row.extra["at"]["1"] == row.extra["curve"][0][1] and row.value >= row.bound
    assert row.extra["bound_proven"] is True
    assert run_cell(CELLS["resnet101/nnp-i"], solver, 1, budget=40).value == row.value


def test_rivals_begin_from_density() -> None:
    problem = SMALL.load()
    greedy = Decoder(problem).decode(np.zeros((1, *Decoder(problem).shape)))[0]
    for solver in RIVALS:
        row = run_cell(SMALL, solver, 0, budget=5)
        assert row.extra["at"]["1"] == problem.evaluate(greedy)


def test_a_wrong_description_changes_what_is_seen_and_not_what_is_measured() -> None:
    wrong, right = CELLS["wrong/resnet101/nnp-i"], CELLS["resnet101/nnp-i"]
    seen, other, truth = wrong.load(0), wrong.load(1), right.load()
    assert isinstance(seen, Misdescribed) and seen.machine != other.machine != truth.machine
    assert [m.capacity for m in seen.machine.memories] == [m.capacity for m in truth.machine.memories]
    assert misdescribe(truth.machine, 0.5, 0) == misdescribe(truth.machine, 0.5, 0) == seen.machine
    maps = np.random.default_rng(0).integers(0, 3, (20, 2 * truth.nodes), dtype=np.int8)
    for a, b in zip(seen.rectify(maps), truth.rectify(maps), strict=True):
        assert (a == b).all()
    assert (seen.times(maps) == truth.times(maps)).all() and seen.bound() == truth.bound()
    # Who believes the description chooses otherwise; who goes by capacities does not see it.
    rows = {solver: [run_cell(wrong, solver, seed) for seed in (0, 1)] for solver in ("density", "compiler")}
    assert rows["density"][0].value != run_cell(right, "density", 0).value
    assert rows["compiler"][0].value == rows["compiler"][1].value == truth.compiler_ps
    assert all(row.bound == truth.bound().value <= row.value for each in rows.values() for row in each)


def test_the_quick_suite_has_few_rows_and_speed_has_a_target() -> None:
    options = Options(quick=True, solvers=("random", "compiler"), seeds=2)
    rows = list(run_suite("mapping", options))
    names = [(row.case, row.solver, row.seed) for row in rows]
    assert names == [
        ("speed", None, 0),
        ("speed", None, 1),
        ("resnet101/nnp-i", "random", 0),
        ("resnet101/nnp-i", "compiler", 0),
        ("resnet101/nnp-i", "random", 1),
    ]
    assert [row.extra["budget"] for row in rows[2:]] == [200, None, 200]
    assert rows[0].unit == "maps/s" and rows[0].extra["target"] == ">= 50,000 maps/s"


def test_rows_name_the_options_that_their_label_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.cli.bench import command

    monkeypatch.setattr("benchmarks.suites.mapping.QUICK_BUDGET", 20)
    answer = command(
        "mapping", quick=True, case=["resnet101/nnp-i"], seeds=1, solver=["egrl-strict", "random"]
    )
    strict, random = answer.rows
    assert strict["extra"]["options"] == {"view": "strict"} and "options" not in random["extra"]
    assert strict["extra"]["budget"] == random["extra"]["budget"] == 20 >= strict["evaluations"] > 0
    assert "egrl-strict (view=strict)" in str(answer.blocks[0])


def test_jobs_of_parts() -> None:
    runs = script("mapping_runs")
    jobs = runs.jobs_of(["main"], ["resnet50/nnp-i"])
    assert len(jobs) == len(set(jobs)) and jobs.count(("resnet50/nnp-i", "egrl", 9)) == 1
    assert [seed for _, solver, seed in jobs if solver in ONCE] == [0] * 3
    # With a wrong description every seed is another problem.
    wrong = runs.jobs_of(["wrong"], ["wrong/resnet50/nnp-i"], ["density"])
    assert [seed for _, _, seed in wrong] == list(range(5))
    assert runs.jobs_of(["noise"], ["resnet50/nnp-i"]) == []
    with pytest.raises(SystemExit, match="there is no cell 'nope'"):
        runs.jobs_of(["main"], ["nope"])


def test_jobs_run_in_processes_and_are_not_run_twice(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    command = [
        sys.executable,
        str(BENCHMARKS / "mapping_runs.py"),
        "--part",
        "main",
        "--cells",
        "resnet50/nnp-i",
        "--solvers",
        "random",
        "ageing-evolution",
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
