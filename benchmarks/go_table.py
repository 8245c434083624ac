"""Make the tables of benchmarks/results/go.md from the recorded results of the graph suite.

`python benchmarks/go_table.py` rewrites the lines between the two markers; `--check` fails if they
would change.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.graph_table import RESULTS, milliseconds
from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.suites.graph_cells import (
    ABLATED,
    ABLATIONS,
    APART,
    BY_SECONDS,
    STEERED,
    TUNED,
    WORKLOADS,
    ZERO_SHOT,
)
from benchmarks.suites.graph_summary import saved
from benchmarks.suites.malloc_summary import TIE, Found, played
from benchmarks.suites.order import TRAINING

PAGE = Path(__file__).parent / "results" / "go.md"
BEGIN, END = "<!-- results: made by benchmarks/go_table.py -->", "<!-- end of results -->"
UNLEARNED = "go+anneal-unlearned"
RIVALS = tuple(name for name in BY_SECONDS if name not in (*STEERED, UNLEARNED))
HELD_OUT = ("rnnlm-8", "gnmt-8", "txl-8", "inception-b64", "wavenet-4x9", "amoebanet", "unet", "moe")
Tried = set[tuple[str, str]]


def cases_of(found: Found, kind: str, models: Sequence[str] = WORKLOADS) -> list[str]:
    known = {case for case, _ in found}
    return [case for model in models if (case := f"{kind}/{model}") in known]


def times(found: Found, tried: Tried, cases: Sequence[str], columns: Sequence[str]) -> str:
    known = [name for name in columns if any((case, name) in tried for case in cases)]
    lines = []
    for case in cases:
        first = next(group for (each, _), group in found.items() if each == case).rows[0]
        name = case.partition("/")[2]
        lines.append(
            [
                f"`{name}`" + (" (held out)" if name in HELD_OUT else ""),
                f"{first['baseline'] / 1e9:.4g}",
                *(milliseconds(found, tried, case, column) for column in known),
            ]
        )
    return table(["graph", "base", *(f"`{name}`" for name in known)], lines)


def by_seconds(found: Found) -> list[str]:
    """Who won at equal seconds, with and without what was learned."""
    cases = cases_of(found, "seconds")
    sets = {
        "the best of " + ", ".join(f"`{name}`" for name in RIVALS): RIVALS,
        f"`{UNLEARNED}`": (UNLEARNED,),
    }
    lines = []
    for what, names in sets.items():
        better = equal = worse = 0
        for case in cases:
            ours = [found[case, name].median for name in STEERED if (case, name) in found]
            others = [found[case, name].median for name in names if (case, name) in found]
            if not ours or not others:
                continue
            ratio = min(ours) / min(others)
            better, equal, worse = (
                better + (ratio < 1 - TIE),
                equal + (abs(ratio - 1) <= TIE),
                worse + (ratio > 1 + TIE),
            )
        lines.append(
            [f"the better of `go+anneal` and `go+brkga` against {what}", str(better), str(equal), str(worse)]
        )
    for name in STEERED:
        shares = [
            found[case, name].median
            / min(found[case, each].median for each in RIVALS if (case, each) in found)
            for case in cases
            if (case, name) in found
        ]
        if shares:
            lines.append(
                [
                    f"`{name}` alone against the best of them",
                    str(sum(s < 1 - TIE for s in shares)),
                    str(sum(abs(s - 1) <= TIE for s in shares)),
                    str(sum(s > 1 + TIE for s in shares)),
                ]
            )
    return [table(["", "better", "equal", "worse"], lines), ""]


def list_targets(found: Found, tried: Tried) -> str:
    """GO's targets, by the rows that exist."""
    lines = []
    joint, placed = cases_of(found, "joint", TRAINING), cases_of(found, "placement", TRAINING)
    for name in (*ZERO_SHOT, *STEERED):
        for kind, cases in (("jointly", joint), ("placement alone", placed)):
            for over in ("expert", "metis", "round-robin", "hdp"):
                share = saved(found, name, over, cases)
                if share:
                    lines.append(
                        [
                            f"`{name}` over `{over}`, {kind}",
                            f"{share[0]:.1%} saved in the mean of {share[1]} graphs",
                        ]
                    )
    held = [case for case in cases_of(found, "joint") if case.partition("/")[2] in HELD_OUT]
    for over in ("expert", "metis", "round-robin"):
        share = saved(found, ZERO_SHOT[0], over, held)
        if share:
            lines.append(
                [
                    f"held out: `{ZERO_SHOT[0]}` over `{over}`, jointly",
                    f"{share[0]:.1%} saved in the mean of {share[1]} graphs",
                ]
            )
    unfused = []
    for case in cases_of(found, "joint"):
        best = [found[case, name].median for name in STEERED if (case, name) in found]
        if best and (case, "fusion-none") in found:
            unfused.append((1 - min(best) / found[case, "fusion-none"].median, case.partition("/")[2]))
    if unfused:
        low, name = min(unfused)
        lines.append(
            [
                "jointly over no fusion, expert, first come (the default of a framework that does not fuse)",
                f"{statistics.fmean(share for share, _ in unfused):.1%} in the mean, {low:.1%} at least (`{name}`)",
            ]
        )
    seconds = [
        (row["extra"]["ops"], found[case, ZERO_SHOT[0]].seconds)
        for case in (*joint, *held)
        if (case, ZERO_SHOT[0]) in found
        for row in found[case, ZERO_SHOT[0]].rows
    ]
    if seconds:
        lines.append(
            [
                "one forward pass, hints and one evaluation included",
                "; ".join(f"{ops:,} ops: {took:.1f} s" for ops, took in sorted(set(seconds))[-3:]),
            ]
        )
    return table(["", "measured"], lines)


def tuned(found: Found, cases: Sequence[str]) -> str:
    """Fine-tuning beside training from scratch with twice the evaluations."""
    lines = []
    for case in cases:
        name, known = case.partition("/")[2], {solver for each, solver in found if each == case}
        values = {
            solver: found[case, solver].median
            for solver in ("go-zero-shot", "go", "go-one")
            if solver in known
        }
        behind = f"{values['go'] / values['go-one'] - 1:+.1%}" if {"go", "go-one"} <= known else "–"
        lines.append(
            [
                f"`{name}`" + (" (held out)" if name in HELD_OUT else ""),
                *(
                    f"{values[solver] / 1e9:.4g}" if solver in values else "–"
                    for solver in ("go-zero-shot", "go", "go-one")
                ),
                behind,
            ]
        )
    return table(["graph", "`go-zero-shot`", "`go`", "`go-one`", "`go` over `go-one`"], lines)


def page(document: dict[str, Any]) -> str:
    rows = document["rows"]
    found = played(rows)
    tried = {(row["case"], row["solver"]) for row in rows if row["solver"]}
    lines = [
        "All times are **simulated**, in milliseconds; one seed. *Saved* is 1 − t / t', by the geometric mean.",
        "",
        list_targets(found, tried),
        "",
    ]
    cases = cases_of(found, "seconds")
    if cases:
        limit = next(group for (case, _), group in found.items() if case == cases[0]).extra(
            "processor_seconds"
        )
        lines += [
            f"### At equal seconds: {limit:g} s of processor time on one core, twice that above 30,000 ops",
            "",
            (
                "All three tasks; network, hints, constructive plans and search included. `-unlearned` is the same "
                "search with a prior made of constructive plans: what it gains over the others is search, what "
                "`go+anneal` gains over it is learning."
            ),
            "",
            times(found, tried, cases, BY_SECONDS),
            "",
            *by_seconds(found),
        ]
    for kind, title in (("joint", "Zero-shot, all three tasks"), ("placement", "Zero-shot, placement alone")):
        cases = [case for case in cases_of(found, kind) if (case, ZERO_SHOT[0]) in tried]
        if cases:
            lines += [
                f"### {title}",
                "",
                times(
                    found,
                    tried,
                    cases,
                    (*ZERO_SHOT, "expert", "metis", "round-robin", "heft", "classical", "hdp"),
                ),
                "",
            ]
    cases = cases_of(found, "ablation", ABLATED)
    if cases:
        columns = ("go", "go-one", "go-paper", APART, *(f"go-one-{name}" for name in ABLATIONS))
        budget = next(group for (case, _), group in found.items() if case == cases[0]).extra("budget")
        lines += [
            f"### Ablations: learning on one graph with {budget:,} evaluations",
            "",
            (
                f"`{APART}`: each task by itself with a third of the evaluations, then together. `go-paper`: the "
                "profile of the paper. `go` begins with the trained policy."
            ),
            "",
            times(found, tried, cases, columns),
            "",
        ]
    cases = cases_of(found, "tuned", TUNED)
    if cases:
        lines += [
            "### The trained policy against training from scratch",
            "",
            "`go`: at most 50 updates (1,667 evaluations). `go-one`: 3,300 evaluations, about 98 updates.",
            "",
            tuned(found, cases),
            "",
        ]
    return "\n".join(lines).rstrip()


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": []}
    return rewrite(PAGE, BEGIN, END, page(document))


if __name__ == "__main__":
    sys.exit(main())
