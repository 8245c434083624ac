"""The malloc suite: its cells load, its rows say what they must, its summary adds up."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.suites import Options, run_suite
from benchmarks.suites.malloc_cells import GAMES, HELD_OUT, PROGRAMS
from benchmarks.suites.malloc_summary import best_search, played, speedup, suite_cases, targets, wins


def _row(case: str, solver: str, value: float, seed: int = 0, **extra: Any) -> dict[str, Any]:
    return {
        "case": case,
        "solver": solver,
        "seed": seed,
        "value": value,
        "seconds": 1.0,
        "bound": 50.0,
        "status": "feasible",
        "extra": {"moves": 7, **extra},
    }


def test_every_program_is_in_the_suite_on_both_machines() -> None:
    assert len(PROGRAMS) >= 12 and set(HELD_OUT) <= set(PROGRAMS)
    for name in PROGRAMS:
        for machine in ("tpu-v4i", "tpu-v4i-16m"):
            problem = GAMES[f"{name}/{machine}"].load()
            assert problem.moves > 20 and problem.bound().value < problem.all_slow_ps


@pytest.mark.parametrize("case", [case for case in GAMES if case.startswith(("other/", "synthetic-0"))])
def test_other_cells_load(case: str) -> None:
    problem = GAMES[case].load()
    assert problem.moves > 4


def test_quick_rows_have_baseline_bound_and_gap() -> None:
    rows = list(run_suite("malloc", Options(quick=True, cases=("alexnet-inf/tpu-v4i-16m", "speed/*moves"))))
    solvers = {row.solver for row in rows}
    assert {"all-slow", "msa", "production", "msa-order", "es-moves", "anneal-moves", "climb"} <= solvers
    for row in rows:
        if row.unit == "ps":
            assert row.baseline and row.bound and row.gap is not None and row.gap >= 0
            assert row.extra["baseline_by"] == "production" and row.status != "refused by the checker"
    speeds = {row.case: row.value for row in rows if row.case.startswith("speed/")}
    assert speeds["speed/moves"] > speeds["speed/observed-moves"] > 1_000


def test_the_summary_compares_medians() -> None:
    rows = [
        _row("moe-4/tpu-v4i", "production", 100.0),
        _row("moe-4/tpu-v4i", "msa", 110.0),
        _row("bert-base/tpu-v4i", "production", 100.0),
        _row("bert-base/tpu-v4i", "msa", 90.0),
    ]
    rows += [_row("moe-4/tpu-v4i", "es-moves", value, seed) for seed, value in enumerate((80.0, 90.0, 120.0))]
    found = played(rows)
    cases = suite_cases(found, "tpu-v4i")
    assert cases == ["bert-base/tpu-v4i", "moe-4/tpu-v4i"]
    assert speedup(found, "msa", "production", cases) == pytest.approx((100 / 110 * 100 / 90) ** 0.5)
    assert wins(found, "msa", "production", cases) == (1, 0, 1)
    name, group = best_search(found, "moe-4/tpu-v4i") or ("", None)
    assert (
        name == "es-moves" and group is not None and (group.median, group.best, group.worst) == (90, 80, 120)
    )
    asked = {target.goal: target for target in targets(found, rows, "tpu-v4i")}
    beats = next(target for text, target in asked.items() if "at least 4 %" in text)
    assert beats.met is True and "+11.11%" in beats.result
