"""Make the tables of benchmarks/results/gpu.md from the recorded results: never typed, never out of date.

`python benchmarks/gpu_table.py` rewrites the lines between the two markers; `--check` fails if they
would change.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.gpu_planners import SIMULATED
from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.suites.gpu_plans import COPIES, GRAPH, PEER_SOLVERS, PERCENTS
from benchmarks.suites.gpu_summary import RAN, Cell, cells, gains, targets, variant_cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu.json"
PAGE = HERE / "results" / "gpu.md"
BEGIN, END = "<!-- results: made by benchmarks/gpu_table.py -->", "<!-- end of results -->"
INTRODUCTION = (
    "All times are **measured**, in milliseconds, medians after warm-ups; *simulated* is what the plan was predicted to take from "
    "the calibrated op times and links. The budget is a share of what the model needs with everything resident, workspaces "
    "included. *All resident* is the faster of the ordinary run and of a plan with everything resident. *Copies / ops* is the time to copy half of what the model needs over the link, over the time of its ops: batches of "
    "`bert`, `llama`, `moe`, `unet` and `vit` are chosen so that it is about 0.75 to 0.9, where it matters what is planned. *Measured* is the faster of op by op and as a CUDA graph, "
    "and so is the *best peer*, the fastest of what others do under the same budget: plans of our executor (`layerwise`, `prefetch`, "
    "`msa`) or hooks, which are no CUDA graphs. *Limit* is max(time of the ops, bytes that must move / link); in training it is the time of the ops once "
    "each, since what is computed again need not move. `–`: not run, or it did not fit."
)
RATIOS = (
    "The same models with other batches, at half of the memory, no part of the figures above. `bert`, `moe`, `unet` and `vit` had "
    "these large batches until their batches were chosen by *copies / ops*. Saved on average where copies don't bind: "
)

PLANNED = (
    "Half of the memory, **simulated** with the measured op times, one core, one seed (`gpu_planners.py`): how far each way to plan "
    "gets in its seconds. `muzero` and `game` (evolution over moves) play the MallocGame over two runs in a row, judged by the plans that their games become; `egrl` maps each "
    "tensor to one memory for life. In training `auto` alone may compute again; the bound is for plans that don't."
)


def ms(row: dict[str, Any] | None) -> str:
    return "–" if row is None else f"{row['value'] / 1e9:.1f}"


def share(number: float | None) -> str:
    return "–" if number is None else f"{number:+.1%}"


def ratio(cell: Cell) -> str:
    return "–" if cell.ratio is None else f"{cell.ratio:.2f}"


def peer(cell: Cell) -> str:
    best = cell.best_peer
    return "–" if best is None else f"{ms(best)} (`{best['solver']}`)"


def main_table(found: list[Cell], percent: int) -> str:
    lines = []
    for cell in found:
        ours = cell.ours
        if cell.percent != percent or ours is None:
            continue
        extra = ours["extra"]
        resident = "–" if cell.resident is None else f"{cell.resident / 1e9:.1f}"
        same = "yes" if extra["equal"] else f"within {extra['largest_difference']:.1g}"
        lines.append(
            [
                f"`{cell.model}`",
                ratio(cell),
                f"{extra['capacity'] / 2**30:.2f}",
                f"{extra['peak'] / 2**30:.2f}",
                resident,
                f"{extra['simulated'] / 1e9:.1f}",
                f"**{ms(ours)}**",
                f"{extra['difference']:+.1%}",
                peer(cell),
                share(cell.saved),
                f"{cell.limit / 1e9:.1f}",
                share(ours["value"] / cell.limit - 1 if cell.limit else None),
                same,
            ]
        )
    head = [
        "model",
        "copies / ops",
        "budget, GiB",
        "peak, GiB",
        "all resident",
        "simulated",
        "measured",
        "simulated − measured",
        "best peer",
        "saved",
        "limit",
        "above it",
        "same results",
    ]
    return table(head, lines)


def training_table(found: list[Cell]) -> str:
    """what computing again gains."""
    lines = [
        [
            f"`{cell.model}`",
            f"{cell.percent} %",
            ms(cell.ours),
            str((cell.ours or {"extra": {}})["extra"].get("again", "–")),
            ms(cell.faster(COPIES)),
            ms(cell.rows.get("checkpoint")),
            ms(cell.rows.get("save_on_cpu")),
        ]
        for cell in found
        if cell.percent < 100 and cell.faster(COPIES) is not None
    ]
    head = ["model", "budget", "`auto`", "ops run again", f"`{COPIES}`", "`checkpoint`", "`save_on_cpu`"]
    return table(head, lines) if lines else ""


def variants_table(found: list[Cell]) -> str:
    lines = [
        [
            f"`{cell.model}`",
            ratio(cell),
            ms(cell.ours),
            peer(cell),
            share(cell.saved),
            f"{cell.limit / 1e9:.1f}",
        ]
        for cell in found
    ]
    return table(["model", "copies / ops", "measured", "best peer", "saved", "limit"], lines)


def loop_table(rows: list[dict[str, Any]]) -> str:
    """Hardware in the loop."""
    lines = []
    for row in rows:
        extra = row["extra"]
        if extra.get("kind") == "loop" and row["status"] == "ok" and "search_seconds" in extra:
            low, high = extra["speedup_interval"]
            first, best = (
                "–" if extra[key] is None else f"{extra[key] / 1e9:.1f}" for key in ("first_ps", "best_ps")
            )
            lines.append(
                [
                    f"`{row['case']}`",
                    f"`{row['solver'].removesuffix('+hardware')}`",
                    str(row["evaluations"]),
                    f"{extra['search_seconds']:.0f}",
                    first,
                    best,
                    ms(row),
                    f"{row['baseline'] / 1e9:.1f}",
                    f"{extra['speedup']:.3f} ({low:.3f} to {high:.3f})",
                ]
            )
    head = [
        "case",
        "search",
        "evaluations",
        "seconds",
        "first",
        "best",
        "re-measured",
        "simulator's plan",
        "speed-up (95 %)",
    ]
    return table(head, lines) if lines else ""


def planners_table(rows: list[dict[str, Any]]) -> str:
    """What each way to plan was simulated to take, the rules behind the searches."""
    found = [row for row in rows if row["extra"].get("kind") == "simulated" and row["status"] != "skipped"]
    names = sorted(
        dict.fromkeys(row["solver"] for row in found),
        key=lambda name: name.removesuffix(SIMULATED) in PEER_SOLVERS,
    )
    lines = []
    for case in dict.fromkeys(row["case"] for row in found):
        mine = {row["solver"]: row for row in found if row["case"] == case}
        bound = max(row["bound"] for row in mine.values())
        times = [ms(mine[name]) if name in mine and mine[name]["value"] > 0 else "–" for name in names]
        lines.append([f"`{case}`", f"{bound / 1e9:.1f}", *times])
    budget = {row["solver"]: row["extra"]["budget_seconds"] for row in found if row["seconds"] > 5}
    head = [
        f"`{name.removesuffix(SIMULATED)}`" + (f", {budget[name]:.0f} s" if name in budget else "")
        for name in names
    ]
    return table(["case", "bound", *head], lines) if lines else ""


def every_row(found: list[Cell], percent: int) -> str:
    """Whatever ran: plans first, then hooks."""
    here = [cell for cell in found if cell.percent == percent]
    names = list(
        dict.fromkeys(
            name for cell in here for name, row in cell.rows.items() if row["extra"].get("kind") != "loop"
        )
    )
    names.sort(key=lambda name: name.removesuffix(GRAPH) not in PEER_SOLVERS)
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
    found, others = cells(rows), variant_cells(rows)
    lines = [
        INTRODUCTION,
        "",
        table(["target", "measured", ""], [[t.goal, t.result, t.word] for t in targets(rows)]),
        "",
    ]
    for percent in sorted(PERCENTS, reverse=True):
        if any(cell.percent == percent for cell in found):
            lines += [
                f"### A budget of {percent} %",
                "",
                main_table(found, percent),
                "",
                "Everything that ran:",
                "",
                every_row(found, percent),
                "",
            ]
    if others:
        saved = gains(others)
        mean = "–" if not saved else f"{statistics.fmean(saved):.1%} over {len(saved)}."
        lines += ["### Other batches", "", RATIOS + mean, "", variants_table(others), ""]
    if trained := training_table(found):
        lines += ["### Computing again", "", trained, ""]
    if looped := loop_table(rows):
        lines += ["### Hardware in the loop", "", looped, ""]
    if planners := planners_table(rows):
        lines += ["### Planners", "", PLANNED, "", planners, ""]
    left_out = [
        row
        for row in rows
        if row["status"] not in (*RAN, "skipped") and row["extra"].get("kind") != "simulated"
    ]
    if left_out:
        lines += [
            "### What did not run",
            "",
            table(
                ["case", "by", "what happened"],
                [
                    [f"`{row['case']}`", f"`{row['solver']}`", f"{row['status']}: {reason(row)}"[:160]]
                    for row in left_out
                ],
            ),
            "",
        ]
    return "\n".join(lines).rstrip()


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": []}
    return rewrite(PAGE, BEGIN, END, page(document) if document["rows"] else "Not recorded yet.")


if __name__ == "__main__":
    sys.exit(main())
