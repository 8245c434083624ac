"""Show what placements for ExecuTorch gain: `python benchmarks/executorch_table.py` rewrites the table of
benchmarks/results/executorch.md from the recorded rows; `--check` fails if it would change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite

HERE = Path(__file__).parent
PAGE = HERE / "results" / "executorch.md"
BEGIN, END = "<!-- results: made by benchmarks/executorch_table.py -->", "<!-- end of results -->"
COLUMNS = {
    "executorch-greedy": "greedy",
    "executorch-banked": "banked",
    "time": "ours, by time",
    "time-and-bytes": "ours, no more bytes than greedy",
}
"""Solver of a row -> head of its column."""


def cell(row: dict[str, Any]) -> str:
    """Milliseconds and bytes; of our placements also the change against banked, bold where the target is met."""
    text = f"{row['value'] / 1e9:.3f} ms, {row['extra']['bytes']:,} B"
    if not row["solver"].startswith("time"):
        return text
    change = row["value"] / row["baseline"] - 1
    sign = "+" if change > 0 else "−"
    share = f"{sign}{abs(change):.1%}"
    return f"{text} (**{share}**)" if row["status"] == "met" else f"{text} ({share})"


def made() -> str:
    rows = json.loads((HERE / "results" / "executorch.json").read_text(encoding="utf-8"))["rows"]
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["solver"]] = row
    lines = []
    for case, by in cases.items():
        _, model, sram = case.split("/")
        cells = [cell(by[solver]) for solver in COLUMNS]
        lines.append([f"{model}, {sram}", *cells, f"{by['time']['bound'] / 1e9:.3f} ms"])
    return table(["model, SRAM", *COLUMNS.values(), "bound"], lines)


if __name__ == "__main__":
    sys.exit(rewrite(PAGE, BEGIN, END, made()))
