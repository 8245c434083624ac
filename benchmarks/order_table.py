"""Make the tables of benchmarks/results/order.md from the recorded results: never typed, never out of date.

`python benchmarks/order_table.py` rewrites the lines between the two markers; `--check` fails if
they would change. Rows of ONNX Runtime are part of the graph suite; those of Inductor and those of
`order_gaps.py` have files of their own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.suites.order_runtime import RUNTIME

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE / "results" / "order.md"
BEGIN, END = "<!-- results: made by benchmarks/order_table.py -->", "<!-- end of results -->"
Rows = list[dict[str, Any]]


def rows_of(name: str) -> Rows:
    path = RESULTS / f"{name}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


def runtime(rows: Rows) -> str:
    """Our count of the runtime's order, and its own count of its order, the file's and ours."""
    auto = {row["case"]: row for row in rows if row["solver"] == "auto"}
    lines = []
    for row in rows:
        if row["solver"] != RUNTIME:
            continue
        counted, best = row["extra"]["counted"], auto.get(row["case"])
        lines.append(
            [
                f"`{row['case'].partition('/')[2]}`",
                f"{row['baseline']:,.0f}",
                f"{row['value']:,.0f}",
                "–" if best is None else f"{best['value']:,.0f}",
                *(f"{counted[name]:,}" for name in ("file", "default", "ours")),
                f"{counted['ours'] / row['extra']['modelled'] - 1:+.2%}",
            ]
        )
    head = [
        "model",
        "file's order",
        "runtime's default",
        "`auto`",
        "counted: file's order",
        "counted: default",
        "counted: ours",
        "counted over modelled",
    ]
    return table(head, lines)


def inductor(rows: Rows) -> str:
    """Inductor's four orders beside ours."""
    peaks: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        peaks.setdefault(row["case"], {})[row["solver"]] = row
    rules = ("inductor-baseline", "inductor-lpmf", "inductor-bfs", "inductor-dfs", "inductor", "auto")
    lines = []
    for case, found in peaks.items():
        ours = found["auto"]
        lines.append(
            [
                f"`{case}`",
                str(ours["kernels"]),
                *(f"{found[rule]['value']:,}" for rule in rules),
                f"{1 - ours['value'] / found['inductor']['value']:.2%}",
                ours["status"],
            ]
        )
    head = [
        "graph",
        "kernels",
        "as it came",
        "lpmf",
        "bfs",
        "dfs",
        "what Inductor keeps",
        "`auto`",
        "saved",
        "proof",
    ]
    return table(head, lines)


def training(rows: Rows) -> str:
    """Large training graphs: simple orders, ours, and what the version before this one had."""
    found = {(row["model"], row["version"]): row for row in rows}
    lines = []
    for row in rows:
        if row["version"] != "now":
            continue
        before = found.get((row["model"], "before"))
        rules = ("program", "greedy", "depth-first", "reverse-post-order", "value", "bound")
        lines.append(
            [
                f"`{row['model']}`",
                f"{row['ops']:,}",
                *(f"{row[rule] / 2**20:,.1f}" for rule in rules),
                *_proof(row),
                *(
                    ("–", "–", "–")
                    if before is None
                    else (f"{before['value'] / 2**20:,.1f}", *_proof(before))
                ),
            ]
        )
    head = [
        "graph",
        "ops",
        "as it came",
        "greedy",
        "depth first",
        "reverse post-order",
        "`auto`",
        "bound",
        "gap",
        "CPU s",
        "before: `auto`",
        "gap",
        "CPU s",
    ]
    return table(head, lines)


def _proof(row: dict[str, Any]) -> tuple[str, str]:
    gap = row["value"] / row["bound"] - 1
    return ("optimal" if row["status"] == "optimal" else f"{gap:.2%}"), f"{row['cpu_seconds']:.1f}"


def page() -> str:
    parts = []
    if body := training(rows_of("order_gaps")):
        parts += [
            "### Training graphs",
            "",
            (
                "MiB without weights; `python benchmarks/order_gaps.py --before PYTHON`: 60 CPU seconds at most, seed 0, on two "
                "cores that were shared with others, which makes CPU seconds up to twice as many as on an idle "
                "core. *Before* is the version without groups of ops and without flows that cuts go on from, in the same run."
            ),
            "",
            body,
            "",
        ]
    if body := runtime(rows_of("graph")):
        parts += [
            "### ONNX Runtime's default order",
            "",
            (
                "Bytes. The first three columns are by our evaluator; *counted* is by the runtime itself, with relu in "
                "place, weights stored in the file and left out. As they come, these nine files fill in their weights "
                "while they run, and the runtime counts those as results."
            ),
            "",
            body,
            "",
        ]
    if body := inductor(rows_of("inductor_order")):
        parts += [
            "### PyTorch Inductor's orders",
            "",
            (
                "Bytes of the fused kernels' results by our evaluator, which agrees with Inductor's own estimate to the "
                "byte in every order; inputs and weights are left out. Training is loss and gradients in one graph."
            ),
            "",
            body,
            "",
        ]
    return "\n".join(parts).rstrip()


def main() -> int:
    return rewrite(PAGE, BEGIN, END, page())


if __name__ == "__main__":
    sys.exit(main())
