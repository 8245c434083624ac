"""Statistics of the mapping suite: means, verdicts that can go either way, tables made from rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.suites.mapping_cells import CELLS, NINE, ROOM
from benchmarks.suites.mapping_summary import (
    BEATS,
    LOSES,
    NEITHER,
    at,
    compare,
    difference_interval,
    mean_excess_at,
    mean_gap_after,
    mean_gap_at,
    merged,
    summaries,
    verdict,
)
from benchmarks.suites.mapping_targets import targets

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def row(case: str, solver: str, seed: int, value: float, **extra: Any) -> dict[str, Any]:
    white = solver in ("density", "compiler")
    known = {
        "all_slowest": 8000,
        "white_box": white,
        "budget": None if white else 1_000,
        "invalid_fraction": 0.0,
        "bound_proven": True,
        "first_seconds": 0.1,
    }
    return {
        "case": case,
        "machine": "m",
        "solver": solver,
        "seed": seed,
        "evaluations": 0 if white else 1_000,
        "seconds": 2.0,
        "value": value,
        "unit": "ps",
        "baseline": 1200.0,
        "bound": 900.0,
        "gap": None,
        "status": "feasible",
        "extra": known | extra,
    }


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_means_over_seeds() -> None:
    found = summaries([row("a", "egrl", seed, value) for seed, value in enumerate((1000, 1100, 1200))])
    summary = found["a", "egrl"]
    assert summary.mean == 1100 and summary.seeds == (0, 1, 2)
    assert summary.gap == pytest.approx(1100 / 900 - 1) and summary.best == 1000


def test_the_best_bound_of_a_case_is_everybodys() -> None:
    rows = [row("a", "egrl", 0, 1000), {**row("a", "exact", 0, 990), "bound": 990.0}]
    found = summaries(rows)
    assert found["a", "egrl"].bound == 990 and found["a", "egrl"].gap == pytest.approx(1000 / 990 - 1)


def test_a_bound_above_a_found_value_gives_way_and_an_unreached_one_is_loose() -> None:
    lowered = summaries([row("a", "egrl", 0, 900 * (1 - 1e-7)), row("a", "probe", 0, 950)])
    assert lowered["a", "probe"].lowered and lowered["a", "egrl"].gap == 0
    assert not lowered["a", "probe"].loose
    loose = summaries([row("a", "egrl", 0, 950, bound_proven=False)])["a", "egrl"]
    assert loose.loose and not loose.lowered and loose.excess_of(loose.times) == 0
    assert not summaries([row("a", "egrl", 0, 950)])["a", "egrl"].loose  # proven by somebody else
    assert not summaries([row("a", "egrl", 0, 900, bound_proven=False)])["a", "egrl"].loose


def test_a_seed_that_found_nothing_counts_as_all_slowest() -> None:
    found = summaries([row("a", "pg", 0, 1000), row("a", "pg", 1, -1)])["a", "pg"]
    assert found.times == (1000, 8000) and found.found_nothing == 1


def test_skipped_rows_and_other_units_are_left_out() -> None:
    rows = [{**row("a", "exact", 0, 0), "status": "skipped"}, {**row("speed", "x", 0, 9), "unit": "maps/s"}]
    assert summaries(rows) == {}


def test_times_after_evaluations_and_seconds() -> None:
    rows = [
        row("a", "egrl", 0, 900, at={"1": 1000, "50": 950}, at_seconds={"0.1": 1000, "1": 900}),
        row("a", "probe", 0, 900, curve=[[20, 1200], [100, 900]]),
        row("a", "density", 0, 990),
        row("budget-50/a", "probe", 0, 930),
    ]
    found = summaries(rows)
    assert found["a", "egrl"].times_at(50) == (950,) and found["a", "density"].times_at(50) == (990,)
    # Without a record the curve says it; before the first map, all in the slowest memory.
    assert [found["a", "probe"].times_at(n) for n in (1, 50, 200)] == [(8000,), (1200,), (900,)]
    # A run that had 50 evaluations from the start counts at 50.
    known = at(found, "a", "probe", 50)
    assert known is not None and known[1] == (930,)
    assert mean_gap_at(found, "probe", ["a"], 50) == pytest.approx(930 / 900 - 1)
    assert mean_excess_at(found, "egrl", ["a"], 1) == pytest.approx(1000 / 900 - 1)
    assert mean_gap_at(found, "egrl", ["a", "b"], 50) is None and mean_gap_at(found, "egrl", [], 50) is None
    assert mean_gap_after(found, "egrl", ["a"], 0.1) == pytest.approx(1000 / 900 - 1)
    assert mean_gap_after(found, "egrl", ["a"], 0.3) is None and found["a", "density"].times_after(1) is None


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
        row(case, solver, seed, value + seed, at={"1000": value + seed})
        for case, values in (("a", (10, 90)), ("b", (90, 10)), ("c", (50, 50)))
        for solver, value in zip(("egrl", "probe"), values, strict=True)
        for seed in range(5)
    ]
    found = summaries([*rows, row("d", "egrl", 0, 5, at={"1000": 5})])
    versus = compare(found, "egrl", "probe", "abcd", 1_000)
    assert versus.verdicts == {"a": BEATS, "b": LOSES, "c": NEITHER}
    assert versus.count(BEATS) == 1


def test_new_rows_take_the_place_of_old_ones() -> None:
    kept = merged(
        [row("a", "egrl", 0, 1), row("a", "egrl", 1, 2)], [row("a", "egrl", 1, 3), row("a", "ea", 0, 4)]
    )
    assert [(r["solver"], r["seed"], r["value"]) for r in kept] == [
        ("ea", 0, 4),
        ("egrl", 0, 1),
        ("egrl", 1, 3),
    ]


def everything(ours: float, others: float) -> list[dict[str, Any]]:
    """Rows of all that targets ask for: times of EGRL, and of what it is held against."""

    def made(case: str, solver: str, value: float, seed: int = 0) -> dict[str, Any]:
        same = {str(number): value for number in (1, 4, 50, 200, 1_000)}
        after = dict.fromkeys(("0.1", "0.3", "1", "3"), value)
        return row(case, solver, seed, value, at=same, at_seconds=after)

    rows = [
        made(case, solver, ours, seed)
        for case in (*NINE, *ROOM)
        for solver in ("egrl", "egrl-strict")
        for seed in range(5)
    ]
    rows += [
        made(case, solver, value)
        for case in CELLS
        if case.startswith("held-out-")
        for solver, value in (("egrl", ours), ("egrl-untrained", others))
    ]
    rows += [
        made(f"seconds/{case}", solver, value)
        for case in (*NINE, *ROOM)
        for solver, value in (("egrl", ours), ("egrl-whole", others))
    ]
    return rows


def test_targets_are_met_missed_or_not_measured() -> None:
    assert {target.met for target in targets({})} == {None}
    assert targets({})[0].word == "not measured"
    good = targets(summaries(everything(900.2, 950)))
    assert [target.met for target in good] == [True] * len(good)
    bad = targets(summaries(everything(1300, 950)))
    # Nothing illegal, quick, and still as slow as can be.
    assert [target.met for target in bad] == [False] * 4 + [True, False] + [False] * 6 + [True]
    assert "`egrl` in `resnet50/nnp-i`" in bad[5].result and bad[0].word == "**missed**"
    few = [each for each in everything(900.2, 950) if each["seed"] < 2]
    assert targets(summaries(few))[0].met is None
    illegal = [row("resnet50/nnp-i", "egrl-strict", 0, 1000, invalid_fraction=0.1)]
    assert targets(summaries(illegal))[4].met is False


def test_tables_are_made_from_rows_and_say_who_lost() -> None:
    module = script("mapping_table")
    rows = [
        row("resnet50/nnp-i", solver, seed, value + seed, at=dict.fromkeys(("1", "50", "1000"), value + seed))
        for solver, value in (("egrl", 1000), ("probe", 950), ("random", 2000))
        for seed in range(5)
    ]
    rows += [row("resnet50/nnp-i", "density", 0, 1100), row("resnet50/nnp-i", "compiler", 0, 1200)]
    loose = row("ports-parallel/bert/nnp-i", "egrl", 0, 1000, bound_proven=False, at={"1000": 1000})
    text = module.page({"rows": [*rows, loose]})
    assert "| `probe` | 0 | 0 | 1 | `resnet50/nnp-i` |" in text
    assert "| `random` | 1 | 0 | 0 | – |" in text
    assert "11.33 ± 0.18 %" in text  # 1002 over 900, and sd 1.58 of it
    assert "11.11 % (to a loose bound)" in text
    assert module.page({"rows": []}) == ""


def test_every_table_is_there_when_everything_is_measured() -> None:
    module = script("mapping_table")
    extra = [
        row(case, solver, 0, 1000, at=dict.fromkeys(("1", "50", "200"), 1000))
        for case, cell in CELLS.items()
        if case.startswith(("noise-", "wrong/", "held-out-"))
        for solver in cell.solvers
    ]
    published = row("resnet101/nnp-i", "paper", 0, 1500, at={"1000": 1500})
    text = module.page({"rows": merged(extra, [*everything(905, 950), published])})
    for title in (
        "Targets",
        "Equal seconds",
        "What a run costs",
        "Noise",
        "A machine that is not as described",
        "What training has not seen, cell by cell",
        "As published",
    ):
        assert f"### {title}" in text
    assert "| 50 | 1% | 11.11 % | 11.11 % | 11.11 % | 11.11 % | 11.11 % | 0.56 % |" in text


def test_the_readme_says_gaps_after_one_and_fifty(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("readme_table")
    rows = [
        row(case, solver, 0, value, at={"1": value + 9, "50": value})
        for case in (*NINE, *ROOM)
        for solver, value in (("egrl", 909), ("density", 990), ("compiler", 1200), ("probe", 1000))
    ]
    monkeypatch.setattr(module, "recorded", lambda suite: {"rows": rows})
    nine, room = module.mapping_lines()
    # The best that anyone found is above the bound of 900: gaps are to the bound.
    assert "mean gap 2.00% after 1 evaluation, 1.00% after 50 evaluations" in nine
    assert "density 10.00%, compiler 33.33%, probe 12.11% and 11.11%" in room
    figures = module.mapping_figures(ROOM)
    assert figures is not None and "a loss" not in figures.short_line()
    rows[:] = [each for each in rows if each["solver"] != "egrl"]
    assert module.mapping_lines() == []
