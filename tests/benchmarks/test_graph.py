"""The graph suite: its cells are all there, its rows say what they must, its summary adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suites import Options, run_suite
from benchmarks.suites.graph import CASES, QUICK
from benchmarks.suites.graph_cells import CELLS, CLASSICAL, LARGE_BUDGET, OPTIONS, PEERS, QUICK_SET, WORKLOADS
from benchmarks.suites.graph_external import external_cells, generated_content
from benchmarks.suites.graph_run import _made, run_graph
from benchmarks.suites.graph_summary import best_classical, saved, saved_over_base, targets
from benchmarks.suites.malloc_summary import played
from loadmaster.machine import load_machine
from loadmaster.program.zoo import MODELS
from loadmaster.search.registry import solver_labels


def _row(case: str, solver: str, value: float, seed: int = 0, **extra: Any) -> dict[str, Any]:
    return {
        "case": case,
        "solver": solver,
        "seed": seed,
        "value": value,
        "seconds": 1.0,
        "bound": 50.0,
        "baseline": 200.0,
        "status": "feasible",
        "extra": {"ops": 7, **extra},
    }


def test_every_workload_is_in_the_suite_in_both_ways() -> None:
    assert len(WORKLOADS) == 18 and set(QUICK_SET) <= set(WORKLOADS)
    for model in WORKLOADS:
        assert CELLS[f"placement/{model}"].tasks == ("placement",)
        assert len(CELLS[f"joint/{model}"].tasks) == 3
        assert len(load_machine(MODELS[model].machine).devices) > 1
    assert set(QUICK) <= set(CASES)
    assert sum(case.startswith("order/") for case in CASES) == 23


def test_every_solver_of_a_cell_is_known() -> None:
    names = {OPTIONS.get(name, (name, {}))[0] for cell in CELLS.values() for name in cell.solvers}
    assert names - set(PEERS) <= set(solver_labels("graph"))


def test_a_peer_is_made_by_the_suite_and_unknown_to_the_package() -> None:
    pytest.importorskip("equinox")
    made = _made("hdp")
    assert not isinstance(made, str) and (made.name, made.problem_kind) == ("hdp", "graph")
    assert "hdp" not in solver_labels("graph")


def test_quick_rows_have_baseline_bound_and_gap() -> None:
    cases = ("synthetic/watts_strogatz-0", "external*", "order/light_shufflenet")
    solvers = ("expert", "heft", "classical", "random-best", "anneal", "peak-cut")
    rows = list(run_suite("graph", Options(quick=True, cases=cases, solvers=solvers)))
    by_case = {row.case for row in rows}
    assert {"synthetic/watts_strogatz-0", "external/generated-0", "order/light_shufflenet"} <= by_case
    reasons = {row.solver: row.extra["reason"] for row in rows if row.status == "skipped"}
    assert "msr-fiddle/dnn-partitioning" in reasons[None] and "no plan" in reasons["expert"]
    for row in rows:
        assert row.status != "refused by the checker"
        if row.unit == "ps" and row.value > 0:
            assert row.baseline and row.bound and row.gap is not None and row.gap >= 0
            assert row.extra["fullest"] <= 1 and row.extra["link_bytes"] >= 0
    found = played([row.as_dict() for row in rows])
    assert {"anneal", "heft", "classical"} <= {solver for _, solver in found}
    best = best_classical(found, "synthetic/watts_strogatz-0")
    assert best is not None and best[0] in CLASSICAL


def test_budgets_follow_size_and_a_curve_is_kept() -> None:
    cell = CELLS["synthetic/barabasi_albert-0"]
    row = run_graph(cell, "random-best", 0, budget=30)
    assert row.evaluations == 30 == row.extra["budget"]
    assert [point[1] for point in row.extra["curve"]] == sorted(
        (p[1] for p in row.extra["curve"]), reverse=True
    )
    assert row.value < 0 or row.value == row.extra["curve"][-1][1]
    assert run_graph(cell, "no-such", 0).status == "skipped"
    assert LARGE_BUDGET < 2_000


def test_published_graphs_are_found_where_they_lie(tmp_path: Path) -> None:
    folder = tmp_path / "dnn-partitioning"
    for part in ("latency-inputs/LayerGraphs", "throughput-inputs/OperatorGraphs", "human-experts"):
        (folder / part).mkdir(parents=True)
    content = generated_content(1, layers=4)
    count = len(content["nodes"]) // 2
    (folder / "latency-inputs/LayerGraphs/tiny_training.json").write_text(json.dumps(content))
    (folder / "throughput-inputs/OperatorGraphs/tiny.json").write_text(json.dumps(content))
    thirds = [list(range(first, count, 3)) for first in range(3)]
    split = {"fpgas": [{"nodes": nodes} for nodes in thirds], "cpus": []}
    (folder / "human-experts/tiny_training_expert.json").write_text(json.dumps(split))
    cells = external_cells(folder)
    assert [cell.case for cell, _ in cells] == [
        "external/latency/layers/tiny_training",
        "external/throughput/ops/tiny",
    ]
    assert [split is not None for _, split in cells] == [True, False]
    options = Options(quick=True, cases=("external",), data=tmp_path, solvers=("heft",))
    rows = list(run_suite("graph", options))
    expert = [row for row in rows if row.solver == "published-expert"]
    assert len(expert) == 1 and expert[0].status == "feasible" and expert[0].value > 0
    assert {row.case for row in rows} == {cell.case for cell, _ in cells}


def test_the_summary_compares_medians_and_says_what_was_asked() -> None:
    rows = [_row("joint/llama", "classical", 110.0), _row("joint/llama", "hdp", 60.0)]
    rows += [_row("joint/llama", "anneal", value, seed) for seed, value in enumerate((80.0, 90.0, 120.0))]
    rows += [_row("order/wavenet-2x9", "auto", 50.0), _row("order/wavenet-2x9", "depth-first", 49.0)]
    speed = {
        "case": "speed/small/random",
        "solver": None,
        "value": 6_000.0,
        "unit": "evaluations/s",
        "status": "met",
        "extra": {"vectors": "random"},
    }
    found = played([*rows, speed])
    name, group = best_classical(found, "joint/llama") or ("", None)
    assert name == "anneal" and group is not None and group.median == 90  # not the learned one
    assert saved(found, "anneal", "classical", ["joint/llama"]) == (pytest.approx(1 - 90 / 110), 1)
    assert saved_over_base(found, "anneal", ["joint/llama"]) == pytest.approx(0.55)
    asked = {target.goal: target for target in targets(found, [*rows, speed])}
    assert next(t for text, t in asked.items() if "5,000 evaluations" in text).met is True
    assert next(t for text, t in asked.items() if "depth-first" in text).met is False
    assert next(t for text, t in asked.items() if "half of the training" in text).met is True
    assert next(t for text, t in asked.items() if "best classical" in text).met is False
