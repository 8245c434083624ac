"""Make the tables of benchmarks/results/graph.md from the recorded results: never typed, never out of date.

`python benchmarks/graph_table.py` rewrites the lines between the two markers; `--check` fails if
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
from benchmarks.suites.graph_cells import CLASSICAL, PEERS, SEEDED
from benchmarks.suites.graph_summary import (
    best_classical,
    gap,
    other_cases,
    saved_over_base,
    targets,
    workload_cases,
)
from benchmarks.suites.malloc_summary import Found, bound_of, played
from loadmaster.graph.search import FUSERS, PLACERS, SCHEDULERS, SEARCHES

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "graph.json"
PAGE = HERE / "results" / "graph.md"
BEGIN, END = "<!-- results: made by benchmarks/graph_table.py -->", "<!-- end of results -->"
TRIED = (*SEARCHES, *SEEDED, *PEERS)
COLUMNS = (*FUSERS, *SCHEDULERS, *PLACERS, "classical", *TRIED)
INTRODUCTION = (
    "All times are **simulated**, in milliseconds, under docs/simulation.md on modelled machines. *Saved* is "
    "1 − t / t of the base plan. Searches have 2,000 evaluations, 500 on graphs above 30,000 ops; the median of their "
    "seeds, with best and worst where they differ. Columns `…-seeded` began with the constructive solvers' plans. "
    "`×`: no plan that fits was found; `–`: not run."
)


def milliseconds(found: Found, tried: set[tuple[str, str]], case: str, solver: str) -> str:
    """The median; with best and worst where seeds differ."""
    group = found.get((case, solver))
    if group is None:
        return "×" if (case, solver) in tried else "–"
    text = f"{group.median / 1e9:.4g}"
    difference = group.worst / group.best - 1
    return text if difference < 5e-4 else f"{text} ({group.best / 1e9:.4g}–{group.worst / 1e9:.4g})"


def bar(found: Found, cases: Sequence[str]) -> str:
    """The best classical solver of each workload: what a learned agent has to beat."""
    lines = []
    for case in cases:
        best = best_classical(found, case)
        if best is None:
            continue
        name, group = best
        first, bound = group.rows[0], bound_of(found, case)
        over = first["extra"]["base_over"]
        base = f"{first['baseline'] / 1e9:.4g}" + (" (does not fit)" if over else "")
        lines.append(
            [
                f"`{case.partition('/')[2]}`",
                f"{first['extra']['ops']:,}",
                f"`{first['machine']}`",
                base,
                f"`{name}`",
                f"{group.median / 1e9:.4g}",
                f"{1 - group.median / first['baseline']:.1%}",
                f"{bound / 1e9:.4g}",
                f"{group.median / bound - 1:.1%}",
                f"{group.seconds:.1f} s",
                f"{group.extra('link_bytes') / 2**20:,.0f}",
                f"{group.extra('fullest'):.0%}",
            ]
        )
    head = [
        "graph",
        "ops",
        "machine",
        "base",
        "best classical",
        "time",
        "saved",
        "bound",
        "gap",
        "took",
        "MiB over links",
        "fullest device",
    ]
    return table(head, lines)


def times(found: Found, tried: set[tuple[str, str]], cases: Sequence[str], columns: Sequence[str]) -> str:
    known = [name for name in columns if any((case, name) in tried for case in cases)]
    lines = [
        [f"`{case.partition('/')[2]}`", *(milliseconds(found, tried, case, name) for name in known)]
        for case in cases
    ]
    return table(["graph", *(f"`{name}`" for name in known)], lines)


def overall(found: Found, cases: Sequence[str]) -> str:
    """Each solver over all cells that it has a plan for."""
    lines = []
    for name in (*COLUMNS, "published-expert"):
        known = [case for case in cases if (case, name) in found]
        if not known:
            continue
        share = saved_over_base(found, name, known)
        gaps = [value for case in known if (value := gap(found, case, name)) is not None]
        wins = sum((best_classical(found, case) or ("",))[0] == name for case in known)
        seconds = statistics.median(found[case, name].seconds for case in known)
        lines.append(
            [
                f"`{name}`",
                f"{len(known)} of {len(cases)}",
                "–" if share is None else f"{share:.1%}",
                f"{statistics.fmean(gaps):.1%}",
                str(wins) if name in CLASSICAL else "–",
                f"{seconds:.2f} s",
            ]
        )
    return table(["solver", "plans that fit", "saved over base", "mean gap", "best in", "median took"], lines)


def orders(found: Found) -> str:
    """The order with the least peak."""
    lines = []
    for case in other_cases(found, "order"):
        known = {name: group for (each, name), group in found.items() if each == case}
        best = min(known, key=lambda name: (known[name].median, known[name].seconds))
        bound, group = bound_of(found, case), known[best]
        ours = known.get("auto", group)
        proof = "optimal" if group.median <= bound else f"{group.median / bound - 1:.2%}"
        lines.append(
            [
                f"`{case.partition('/')[2]}`",
                f"{group.extra('ops'):,}",
                f"{group.rows[0]['baseline'] / 2**20:,.2f}",
                f"{ours.median / 2**20:,.2f}",
                f"{group.median / 2**20:,.2f} (`{best}`)",
                f"{1 - group.median / group.rows[0]['baseline']:.1%}",
                proof,
            ]
        )
    return table(["graph", "ops", "its own order, MiB", "`auto`, MiB", "best", "saved", "gap"], lines)


def page(document: dict[str, Any]) -> str:
    rows = document["rows"]
    found = played(rows)
    tried = {(row["case"], row["solver"]) for row in rows if row["solver"]}
    lines = [
        INTRODUCTION,
        "",
        "### Targets",
        "",
        table(["target", "measured", ""], [[t.goal, t.result, t.word] for t in targets(found, rows)]),
        "",
    ]
    for kind, title in (
        ("joint", "Fusion, placement and order together"),
        ("placement", "Placement alone, nothing fused, first come first served"),
    ):
        cases = workload_cases(found, kind)
        if cases:
            lines += [
                f"### {title}",
                "",
                bar(found, cases),
                "",
                "Solvers that make a plan or a few:",
                "",
                times(found, tried, cases, [name for name in COLUMNS if name not in TRIED]),
                "",
                "Searches:",
                "",
                times(found, tried, cases, TRIED),
                "",
                "Over all graphs:",
                "",
                overall(found, cases),
                "",
            ]
    for kind, title in (
        ("synthetic", "Random graphs that are short of memory (held-out families)"),
        ("external", "Graphs in the format of dnn-partitioning"),
    ):
        cases = other_cases(found, kind)
        if cases:
            lines += [f"### {title}", "", bar(found, cases), "", overall(found, cases), ""]
    if other_cases(found, "order"):
        lines += ["### The order with the least peak", "", orders(found), ""]
    return "\n".join(lines).rstrip()


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": []}
    return rewrite(PAGE, BEGIN, END, page(document))


if __name__ == "__main__":
    sys.exit(main())
