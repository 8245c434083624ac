"""Statistics of the mapping suite: means, verdicts that can go either way, tables made from rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.suites.mapping_summary import (
    BEATS,
    LOSES,
    NEITHER,
    compare,
    difference_interval,
    evaluations_to,
    mean_and_deviation,
    merged,
    summaries,
    verdict,
)
from benchmarks.suites.mapping_targets import RIVALS, SPEC, targets

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def row(case: str, solver: str, seed: int, value: float, **extra: Any) -> dict[str, Any]:
    return {
        "case": case,
        "machine": "m",
        "solver": solver,
        "seed": seed,
        "evaluations": 100,
        "seconds": 2.0,
        "value": value,
        "unit": "ps",
        "baseline": 1200.0,
        "bound": 900.0,
        "gap": None,
        "status": "feasible",
        "extra": {"all_slowest": 8000, "white_box": solver == "density", **extra},
    }


def test_means_and_deviations() -> None:
    found = summaries([row("a", "egrl", seed, value) for seed, value in enumerate((1000, 1100, 1200))])
    summary = found["a", "egrl"]
    assert summary.mean == 1100 and summary.deviation == 100 and summary.seeds == (0, 1, 2)
    assert summary.gap == pytest.approx(1100 / 900 - 1)
    assert summary.gap_deviation == pytest.approx(100 / 900)
    assert summary.speedup == pytest.approx(np.mean([1200 / 1000, 1200 / 1100, 1]))
    assert mean_and_deviation([3.0]) == (3.0, 0.0)


def test_the_best_bound_of_a_case_is_everybodys() -> None:
    rows = [row("a", "egrl", 0, 1000), {**row("a", "exact", 0, 990), "bound": 990.0}]
    found = summaries(rows)
    assert found["a", "egrl"].bound == 990 and found["a", "egrl"].gap == pytest.approx(1000 / 990 - 1)


def test_a_seed_that_found_nothing_counts_as_all_slowest() -> None:
    found = summaries([row("a", "pg", 0, 1000), row("a", "pg", 1, -1)])["a", "pg"]
    assert found.times == (1000, 8000) and found.found_nothing == 1


def test_seconds_of_a_gpu_do_not_count_as_those_of_a_cpu() -> None:
    slow = {**row("resnet50/nnp-i", "egrl", 0, 1000), "seconds": 200.0}
    helped = {**row("resnet50/nnp-i", "egrl", 1, 1000, gpu="G"), "seconds": 2.0}
    bert = row("bert/nnp-i", "egrl", 0, 1000)
    both = summaries([slow, helped, bert])
    assert [found["seed"] for found in both["resnet50/nnp-i", "egrl"].on_cpu] == [0]
    assert targets(both)[4].result.startswith("resnet50 200 s") and targets(both)[4].met is False
    assert targets(summaries([helped, bert]))[4].met is None


def test_skipped_rows_and_other_units_are_left_out() -> None:
    rows = [{**row("a", "exact", 0, 0), "status": "skipped"}, {**row("speed", "x", 0, 9), "unit": "maps/s"}]
    assert summaries(rows) == {}


def test_verdicts_go_all_three_ways() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.normal(100, 1, 5), rng.normal(110, 1, 5)
    assert verdict(low, high) == BEATS and verdict(high, low) == LOSES
    assert verdict([99, 100, 101, 100, 100.5], [98, 102, 100, 101, 99.8]) == NEITHER
    assert verdict([5.0] * 5, [5.0] * 5) == NEITHER  # both at the optimum
    assert verdict([5.0] * 5, [5.0, 5.0, 5.0, 5.0, 6.0]) == NEITHER  # one bad seed shows nothing
    assert verdict([0.1] * 3, [0.1] * 5) == NEITHER  # equal up to the last bit


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        a, b = rng.normal(10, 1, 30), rng.normal(9, 1, 30)
        low, high = difference_interval(a, b, resamples=500)
        hits += low <= 1 <= high
    assert 0.88 <= hits / 300 <= 0.99
    assert difference_interval([1, 2, 3], [4, 5, 9]) == difference_interval([1, 2, 3], [4, 5, 9])


def test_comparisons_count_cases_where_both_are() -> None:
    rows = [
        row(case, solver, seed, value + seed)
        for case, values in (("a", (10, 90)), ("b", (90, 10)), ("c", (50, 50)))
        for solver, value in zip(("egrl", "ea"), values, strict=True)
        for seed in range(5)
    ]
    versus = compare(summaries([*rows, row("d", "egrl", 0, 5)]), "egrl", "ea", "abcd")
    assert versus.verdicts == {"a": BEATS, "b": LOSES, "c": NEITHER}
    assert versus.count(BEATS) == 1


def test_medians_counts_and_curves() -> None:
    rows = [
        row("a", "egrl", seed, 1000, to_1pct=at, champion_kind=kind, curve=[[1, 3000], [at or 9, 1000]])
        for seed, (at, kind) in enumerate(((30, "gnn"), (10, "gnn"), (20, "learner")))
    ]
    summary = summaries(rows)["a", "egrl"]
    assert summary.median("to_1pct") == 20 and summary.counted("champion_kind") == {"gnn": 2, "learner": 1}
    assert evaluations_to(summary, 1000) == [30, 10, 20] and evaluations_to(summary, 999) == [None] * 3
    never = summaries([*rows, row("a", "egrl", 3, 1000, to_1pct=None)])["a", "egrl"]
    assert never.median("to_1pct") is None


def test_new_rows_take_the_place_of_old_ones() -> None:
    kept = merged(
        [row("a", "egrl", 0, 1), row("a", "egrl", 1, 2)], [row("a", "egrl", 1, 3), row("a", "ea", 0, 4)]
    )
    assert [(r["solver"], r["seed"], r["value"]) for r in kept] == [
        ("ea", 0, 4),
        ("egrl", 0, 1),
        ("egrl", 1, 3),
    ]


def test_targets_are_met_missed_or_not_measured() -> None:
    assert {target.met for target in targets({})} == {None}
    assert targets({})[0].word == "not measured"

    def rows(ours: float, rivals: float) -> list[dict[str, Any]]:
        return [
            row(case, solver, seed, value + seed / 10, to_95pct_of_gain=40 if solver == "egrl" else 100)
            for case in SPEC
            for solver, value in (("egrl", ours), *((rival, rivals) for rival in RIVALS))
            for seed in range(5)
        ]

    good, bad = targets(summaries(rows(901, 950))), targets(summaries(rows(990, 950)))
    assert [target.met for target in good[:5]] == [True] * 5
    assert [target.met for target in bad[:5]] == [False, False, False, True, True]
    assert "worse than `ea` in `resnet50/nnp-i`" in bad[1].result and bad[0].word == "**missed**"

    moved = [
        row(f"transfer/{trained}/{model}", name, seed, value + seed, valid=True, epsilon=0.0)
        for trained, name, value in (("bert", "gnn 50%", 1100), ("none", "random", 3000))
        for model in ("resnet50", "resnet101")
        for seed in range(5)
    ]
    moved += [
        row(f"{case}/bert/{budget}", "egrl", seed, value + seed)
        for case, budget, value in (("warm", 200, 1000), ("cold", 2000, 940))
        for seed in range(5)
    ]
    assert [target.met for target in targets(summaries(moved))[5:]] == [True, True, False]


def test_tables_are_made_from_rows_and_say_who_lost() -> None:
    spec = importlib.util.spec_from_file_location("mapping_table", BENCHMARKS / "mapping_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = [
        row("resnet50/nnp-i", solver, seed, value + seed, champion_kind="gnn", to_95pct_of_gain=at)
        for solver, value, at in (("egrl", 1000, 50), ("ea", 950, 200), ("random", 2000, 10))
        for seed in range(5)
    ]
    rows += [
        row("resnet50/nnp-i", "density", 0, 1100),
        row("transfer/bert/resnet50", "gnn 100%", 0, 1300, valid=False, epsilon=0.25),
    ]
    text = module.page({"rows": rows})
    assert "| `ea` | 0 | 0 | 1 | `resnet50/nnp-i` |" in text
    assert "| `random` | 1 | 0 | 0 | – |" in text
    assert "11.33 ± 0.18 %" in text  # 1002 over 900, and sd 1.58 of it
    assert "| `resnet50/nnp-i` | 50 | 200 | 0.25 |" in text
    assert "| bert | gnn 100% | 0.923 ± 0.000 (0/1 fit, ε 0.25) | – | – |" in text
    assert module.page({"rows": []}) == ""
