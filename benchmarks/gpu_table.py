"""Make the tables of docs/gpu.md from the recorded results: never typed, never out of date.

`python benchmarks/gpu_table.py` rewrites the lines between the two markers; `--check` fails if they
would change.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from loadmaster.bench.gpu_peers import RECOMPUTES
from loadmaster.bench.gpu_plans import PEER_SOLVERS, PERCENTS
from loadmaster.bench.gpu_summary import RAN, Cell, cells, targets
from mapping_table import table
from pages import rewrite

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu.json"
PAGE = HERE.parent / "docs" / "gpu.md"
BEGIN, END = "<!-- results: made by benchmarks/gpu_table.py -->", "<!-- end of results -->"
INTRODUCTION = (
    "All times are **measured**, in milliseconds, medians after warm-ups; *simulated* is what the plan was predicted to take from "
    "the calibrated op times and links. The budget is a share of what the model needs with everything resident, workspaces "
    "included. *Limit* is max(time of the ops, bytes that must move / link). *Best peer* is the fastest of what others do under "
    "the same budget, as plans of our executor (`layerwise`, `prefetch`, `msa`) or with hooks. `–`: not run, or it did not fit."
)


def ms(row: dict[str, Any] | None) -> str:
    return "–" if row is None else f"{row['value'] / 1e9:.1f}"


def main_table(found: list[Cell], percent: int) -> str:
    lines = []
    for cell in found:
        ours, peer = cell.ours, cell.best_peer
        if cell.percent != percent or ours is None:
            continue
        extra = ours["extra"]
        resident = "–" if not ours["baseline"] else f"{ours['baseline'] / 1e9:.1f}"
        gain = "–" if peer is None else f"{1 - ours['value'] / peer['value']:+.1%}"
        by = "–" if peer is None else f"{ms(peer)} (`{peer['solver']}`)"
        same = "yes" if extra["equal"] else f"within {extra['largest_difference']:.1g}"
        lines.append([f"`{cell.model}`", f"{extra['capacity'] / 2**30:.2f}", f"{extra['peak'] / 2**30:.2f}", resident,
                      f"{extra['simulated'] / 1e9:.1f}", f"**{ms(ours)}**", f"{extra['difference']:+.1%}", by, gain,
                      f"{cell.limit / 1e9:.1f}", f"{ours['value'] / cell.limit - 1:+.1%}" if cell.limit else "–", same])  # fmt: skip
    head = ["model", "budget, GiB", "peak, GiB", "all resident", "simulated", "measured", "simulated − measured",
            "best peer", "saved", "limit", "above it", "same results"]  # fmt: skip
    return table(head, lines)


def every_row(found: list[Cell], percent: int) -> str:
    """Whatever ran: plans first, then hooks."""
    here = [cell for cell in found if cell.percent == percent]
    names = list(dict.fromkeys(name for cell in here for name in cell.rows))
    names.sort(key=lambda name: (name not in PEER_SOLVERS, name in RECOMPUTES))
    lines = [[f"`{cell.model}`", *(ms(cell.rows.get(name)) for name in names)] for cell in here]
    return table(["model", *(f"`{name}`" for name in names)], lines)


def reason(row: dict[str, Any]) -> str:
    """Why a row is no result."""
    extra = row["extra"]
    if row["status"] == "wrong":
        return f"`{extra.get('furthest')}` differs by {extra['largest_difference']:.2g} of its largest value"
    return str(extra.get("reason") or "")


def page(document: dict[str, Any]) -> str:
    rows = document["rows"]
    found = cells(rows)
    lines = [INTRODUCTION, "", table(["asked", "measured", ""], [[t.asked, t.result, t.word] for t in targets(rows)]), ""]  # fmt: skip
    for percent in sorted(PERCENTS, reverse=True):
        if any(cell.percent == percent for cell in found):
            lines += [f"### A budget of {percent} %", "", main_table(found, percent), "",
                      "Everything that ran (`checkpoint` computes again, the others do the same work):", "",
                      every_row(found, percent), ""]  # fmt: skip
    left_out = [row for row in rows if row["status"] not in (*RAN, "skipped")]
    if left_out:
        lines += ["### What did not run", "",
                  table(["case", "by", "what happened"],
                        [[f"`{row['case']}`", f"`{row['solver']}`", f"{row['status']}: {reason(row)}"[:160]]
                         for row in left_out]), ""]  # fmt: skip
    return "\n".join(lines).rstrip()


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": []}
    return rewrite(PAGE, BEGIN, END, page(document) if document["rows"] else "Not recorded yet.")


if __name__ == "__main__":
    sys.exit(main())
