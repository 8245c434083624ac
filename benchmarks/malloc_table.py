"""Make the tables of benchmarks/results/malloc_game.md from the recorded results: never typed, never out of date.

`python benchmarks/malloc_table.py` rewrites the lines between the two markers; `--check` fails if
they would change.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.suites.malloc_cells import BUDGET, CURVE, ONE_PLAN, SEARCHES, WARM
from benchmarks.suites.malloc_summary import (
    Found,
    best_search,
    bound_of,
    played,
    speedup,
    suite_cases,
    targets,
    wins,
)

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "malloc.json"
PAGE = HERE / "results" / "malloc_game.md"
BEGIN, END = "<!-- results: made by benchmarks/malloc_table.py -->", "<!-- end of results -->"
MACHINES = ("tpu-v4i", "tpu-v4i-16m")
COLUMNS = (*ONE_PLAN, *SEARCHES, *WARM)


def milliseconds(found: Found, case: str, solver: str) -> str:
    """The median; with best and worst where seeds differ."""
    group = found.get((case, solver))
    if group is None:
        return "–"
    text = f"{group.median / 1e9:.4g}"
    if group.reference < group.median:
        text += f" [{group.reference / 1e9:.4g}]"
    difference = group.worst / group.best - 1
    return text if difference < 5e-4 else f"{text} ({group.best / 1e9:.4g}–{group.worst / 1e9:.4g})"


def games(found: Found, cases: Sequence[str], columns: Sequence[str]) -> str:
    """One line a game; the last column names the best of all solvers."""
    rows = []
    for case in cases:
        any_group = next(group for (name, _), group in found.items() if name == case)
        bound = bound_of(found, case)
        known = {solver: found[case, solver].median for solver in COLUMNS if (case, solver) in found}
        best = min(known, key=lambda solver: known[solver])
        seeds = max(len(found[case, solver].rows) for solver in columns if (case, solver) in found)
        rows.append(
            [
                f"`{case.split('/tpu')[0]}`",
                str(any_group.extra("moves")),
                str(seeds),
                *(milliseconds(found, case, solver) for solver in columns),
                f"{bound / 1e9:.4g}",
                f"{known[best] / bound - 1:.2%} (`{best}`)",
            ]
        )
    return table(["program", "N", "seeds", *columns, "bound", "gap of best"], rows)


def ratios(found: Found, cases: Sequence[str]) -> str:
    rows = []
    for solver in COLUMNS:
        cells = [f"`{solver}`"]
        for over in ("all-slow", "msa", "production"):
            ratio = speedup(found, solver, over, cases)
            cells.append("–" if ratio is None or solver == over else f"{ratio:.4f} ×")
        cells.append(
            "–"
            if solver == "production"
            else "{} / {} / {}".format(*wins(found, solver, "production", cases))
        )
        seconds = [found[case, solver].seconds for case in cases if (case, solver) in found]
        cells.append(f"{statistics.median(seconds):.2f} s" if seconds else "–")
        rows.append(cells)
    head = [
        "solver",
        "over all-slow",
        "over msa",
        "over production",
        "wins / ties / losses against production",
        "median seconds",
    ]
    return table(head, rows)


def synthetic(found: Found) -> str:
    cases = sorted({case for case, _ in found if case.startswith("synthetic-")})
    rows = []
    for solver in (*COLUMNS, "cp-sat"):
        gaps = [
            found[case, solver].median / bound_of(found, case) - 1
            for case in cases
            if (case, solver) in found
        ]
        if gaps:
            optimal = sum(gap <= 0 for gap in gaps)
            rows.append(
                [
                    f"`{solver}`",
                    f"{statistics.fmean(gaps):.2%}",
                    f"{max(gaps):.2%}",
                    f"{optimal} of {len(gaps)}",
                ]
            )
    return table(["solver", "mean gap to the bound", "largest", "proven optimal"], rows)


def page(document: dict[str, Any]) -> str:
    rows = document["rows"]
    found = played(rows)
    lines = [
        (
            "All times are **simulated**, in milliseconds, under docs/simulation.md on a modelled machine. "
            "`production` is the placement that the production compiler chose, timed by our model, for which it was not tuned. "
            "Searches have equal evaluations; the median of their seeds, with best and worst where they differ. "
            "In brackets, what a placement takes as the compiler issued it, where our checker allows less (donated buffers in place, slices that arrive one by one); comparisons use the smaller. "
            "Columns `…-from-msa` began with MSA's moves. Machines with reduced capacity are synthetic."
        ),
        "",
    ]
    checks = [
        target
        for machine in MACHINES
        for target in targets(found, rows if machine == MACHINES[0] else [], machine)
    ]
    lines += [
        "### Targets",
        "",
        table(["target", "measured", ""], [[t.goal, t.result, t.word] for t in checks]),
        "",
    ]
    for machine in MACHINES:
        cases = suite_cases(found, machine)
        if cases:
            lines += [
                f"### Programs on `{machine}`",
                "",
                "Solvers that make one plan:",
                "",
                games(found, cases, ONE_PLAN),
                "",
                f"Searches, {BUDGET:,} evaluations each:",
                "",
                games(found, cases, (*SEARCHES, *WARM)),
                "",
                "Geometric means over the programs that both have:",
                "",
                ratios(found, cases),
                "",
            ]
    curve = [
        case
        for name in CURVE
        for size in ("", "-64m", "-32m", "-16m", "-8m", "-4m")
        if any(case == f"{name}/tpu-v4i{size}" for case, _ in found) and (case := f"{name}/tpu-v4i{size}")
    ]
    if curve:
        lines += ["### As the fast memory shrinks", "", _by_machine(found, curve), ""]
    others = [case for case in dict.fromkeys(case for case, _ in found) if case.startswith("other/")]
    if others:
        lines += ["### Other machines", "", _by_machine(found, others), ""]
    if any(case.startswith("synthetic-") for case, _ in found):
        lines += ["### Small games, beside CP-SAT", "", synthetic(found), ""]
    return "\n".join(lines).rstrip()


def _by_machine(found: Found, cases: Sequence[str]) -> str:
    rows = []
    for case in cases:
        search = best_search(found, case)
        bound = bound_of(found, case)
        times = [
            milliseconds(found, case, solver) for solver in ("all-slow", "greedy-order", "msa", "production")
        ]
        rows.append(
            [
                f"`{case.removeprefix('other/')}`",
                *times,
                "–" if search is None else f"{search[1].median / 1e9:.4g} ({search[0]})",
                f"{bound / 1e9:.4g}",
                "–" if search is None else f"{search[1].median / bound - 1:.2%}",
            ]
        )
    return table(
        ["game", "all-slow", "greedy-order", "msa", "production", "best search", "bound", "gap"], rows
    )


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return rewrite(PAGE, BEGIN, END, page(document))


if __name__ == "__main__":
    sys.exit(main())
