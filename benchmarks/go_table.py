"""Write what is recorded of GO and its controls into benchmarks/results/go.md.

python benchmarks/go_table.py [--check]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.go_runs import KNOWN, LARGER, MARKS, REAL, RESULTS, SOLVERS, SYNTHETIC
from benchmarks.mapping_table import table
from benchmarks.pages import rewrite

PAGE = Path(__file__).parent / "results" / "go.md"
BEGIN, END = "<!-- results: made by benchmarks/go_table.py -->", "<!-- end of results -->"
Ratios = dict[tuple[str, str, int], list[float]]
"""(case, solver, evaluations) -> the best time over that of the best hint, by seed; infinite where nothing fits."""


def ratios(rows: Sequence[dict[str, Any]]) -> Ratios:
    found: Ratios = {}
    for row in rows:
        if seconds_of(row) is not None:
            continue
        for mark in MARKS:
            value = row["extra"]["best_after"][str(mark)]
            if row["baseline"]:
                ratio = math.inf if value is None else value / row["baseline"]
                found.setdefault((row["case"], row["solver"], mark), []).append(ratio)
    return found


def seconds_of(row: dict[str, Any]) -> float | None:
    """The limit of a row in processor seconds; None: it had one of evaluations."""
    limit: float | None = row["extra"].get("limit", {}).get("seconds")
    return limit


def at_equal_seconds(limited: Sequence[dict[str, Any]]) -> str:
    """Graph by graph, of rows that processor seconds limited, means over seeds; a graph is there once all have run on it."""
    columns = [name for name in SOLVERS if any(row["solver"] == name for row in limited)]
    lines, means = [], []
    for case in (*REAL, *SYNTHETIC, *LARGER):
        own = [[row for row in limited if (row["case"], row["solver"]) == (case, name)] for name in columns]
        if columns and all(own):
            logs = [
                statistics.fmean(math.log(row["value"] / row["baseline"]) for row in each) for each in own
            ]
            means.append(logs)
            shares = [shown(math.exp(each)) for each in logs]
            lines.append([f"`{case}`", f"{seconds_of(own[0][0]):g}", *shares])
    if not lines:
        return ""
    lines.append(
        ["mean", "", *(shown(math.exp(statistics.fmean(each))) for each in zip(*means, strict=True))]
    )
    return table(["graph", "seconds", *(f"`{name}`" for name in columns)], lines)


def against_seconds(limited: Sequence[dict[str, Any]]) -> str:
    """On how many graphs `go` is better than each other solver, the same graphs and seeds for both."""
    value = {(row["case"], row["seed"], row["solver"]): row["value"] for row in limited}
    lines = []
    for name in (name for name in SOLVERS if name != "go"):
        own = {
            case: [
                math.log(value[case, seed, "go"] / value[case, seed, name])
                for seed in range(10)
                if (case, seed, "go") in value and (case, seed, name) in value
            ]
            for case in (*REAL, *SYNTHETIC, *LARGER)
        }
        over = {case: math.exp(statistics.fmean(each)) for case, each in own.items() if each}
        if not over:
            continue
        real, synthetic = (
            [math.log(ratio) for case, ratio in over.items() if ("/" in case) == made]
            for made in (False, True)
        )
        worst = max(over, key=lambda case: over[case])
        lines.append(
            [
                f"`{name}`",
                str(sum(ratio < 0.999 for ratio in over.values())),
                str(sum(0.999 <= ratio <= 1.001 for ratio in over.values())),
                str(sum(ratio > 1.001 for ratio in over.values())),
                f"{over[worst]:.3f} (`{worst}`)",
                *(shown(math.exp(statistics.fmean(each))) if each else "–" for each in (real, synthetic)),
            ]
        )
    head = ["`go` against", "better", "within 0.1 %", "worse", "worst", "time over its, real", "synthetic"]
    return "\n\n" + table(head, lines) if lines else ""


def larger(rows: Sequence[dict[str, Any]]) -> str:
    """The graphs that are too large for the other tables, with how long it takes until there is a plan."""
    lines = []
    for row in rows:
        if row["case"] in LARGER and seconds_of(row) is None:
            first = row["extra"].get("first_plan_seconds")
            lines.append(
                [
                    f"`{row['case']}`",
                    f"{row['extra']['ops']:,}",
                    f"`{row['solver']}`",
                    str(row["evaluations"]),
                    "–" if first is None else f"{first:.1f}",
                    f"{row['seconds']:.1f}",
                    shown(row["value"] / row["baseline"] if row["baseline"] else None),
                ]
            )
    head = ["graph", "ops", "solver", "evaluations", "seconds to a plan", "seconds", "of best-of-8"]
    return table(head, lines) if lines else ""


def mean(found: Ratios, cases: Sequence[str], solver: str, mark: int) -> float | None:
    """Geometric, over seeds and then over the cases that the solver has; None: it has none of them."""
    known = [found[case, solver, mark] for case in cases if (case, solver, mark) in found]
    if not known or len(known) < len(cases):
        return None
    return math.exp(statistics.fmean(statistics.fmean(map(math.log, each)) for each in known))


def shown(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return "none fits" if math.isinf(ratio) else f"{ratio:.3f}"


def compared(found: Ratios, cases: Sequence[str], mark: int) -> str:
    """On how many cases `go` is better than each other solver, by the mean over seeds."""
    rows = []
    for solver in (name for name in SOLVERS if name != "go"):
        pairs = []
        for case in cases:
            ours, theirs = (mean(found, [case], name, mark) for name in ("go", solver))
            if ours is not None and theirs is not None:
                pairs.append((ours, theirs))
        if not pairs:
            continue
        better = sum(a < b * 0.999 for a, b in pairs)
        worse = sum(a > b * 1.001 for a, b in pairs)
        ratio = [math.log(a / b) for a, b in pairs if not math.isinf(a) and not math.isinf(b)]
        rows.append(
            [
                f"`{solver}`",
                str(better),
                str(len(pairs) - better - worse),
                str(worse),
                shown(math.exp(statistics.fmean(ratio)) if ratio else None),
            ]
        )
    return table(
        [f"`go` after {mark} evaluations against", "better", "within 0.1 %", "worse", "time over its"], rows
    )


def page(document: dict[str, Any]) -> str:
    found = ratios(document["rows"])
    known = {case for case, _, _ in found}
    real, synthetic = ([case for case in cases if case in known] for cases in (REAL, SYNTHETIC))
    main = [row for row in document["rows"] if row["case"] in (*real, *synthetic) and seconds_of(row) is None]
    seeds = len({row["seed"] for row in main})
    parts = [
        (
            f"All times are **simulated**. Ratios are to the best of eight hints (`hinted_devices`, fusion within devices), geometric means "
            f"over {seeds} seeds and over graphs; smaller is better. {len(real)} real graphs and {len(synthetic)} synthetic ones, all of "
            "families or machines that GO never saw. Solvers that learn on the graph ran with one seed."
        ),
        "",
    ]
    head = ["solver", *(f"{what}, {mark}" for what in ("real", "synthetic") for mark in MARKS)]
    rows = [
        [
            f"`{solver}`",
            *(shown(mean(found, cases, solver, mark)) for cases in (real, synthetic) for mark in MARKS),
        ]
        for solver in SOLVERS
    ]
    parts += [table(head, [row for row in rows if set(row[1:]) != {"–"}]), ""]
    for mark in (16, 512):
        parts += [compared(found, [*real, *synthetic], mark), ""]
    parts += ["### Graph by graph, 512 evaluations", ""]
    columns = [name for name in SOLVERS if any((case, name, 512) in found for case in (*real, *synthetic))]
    lines = [
        [f"`{case}`", *(shown(mean(found, [case], name, 512)) for name in columns)]
        for case in (*real, *synthetic)
    ]
    parts.append(table(["graph", *(f"`{name}`" for name in columns)], lines))
    seconds = [
        [f"`{name}`", f"{statistics.fmean(row['seconds'] for row in main if row['solver'] == name):.1f}"]
        for name in columns
    ]
    parts += ["", "### Processor seconds of a run", "", table(["solver", "mean"], seconds)]
    trained_on = [case for case in KNOWN if case in known]
    names = [name for name in SOLVERS if mean(found, trained_on, name, 512) is not None] if trained_on else []
    lines = [
        [
            f"`{case}`" if len(cases) == 1 else "mean",
            *(shown(mean(found, cases, name, 512)) for name in names),
        ]
        for case, cases in [*((case, [case]) for case in trained_on), ("", trained_on)]
    ]
    limited = [row for row in document["rows"] if seconds_of(row) is not None]
    short, long = (
        [row for row in limited if ((seconds_of(row) or 0) < 60) == brief] for brief in (True, False)
    )
    for title, made in (
        (
            "Families that GO is trained on, 512 evaluations, ten seeds",
            table(["graph", *(f"`{name}`" for name in names)], lines) if names else "",
        ),
        *(
            (f"Equal processor seconds, {name}", at_equal_seconds(own) + against_seconds(own))
            for name, own in (("5 s", short), ("60 s", long))
        ),
        ("Larger graphs", larger(document["rows"])),
    ):
        if made:
            parts += ["", f"### {title}", "", made]
    return "\n".join(parts)


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return rewrite(PAGE, BEGIN, END, page(document))


if __name__ == "__main__":
    sys.exit(main())
