"""Write what is recorded of mallocMuZero into benchmarks/results/muzero.md.

python benchmarks/muzero_table.py [--check]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.suites.malloc_learned import FIRST, SEARCHED, learned_targets, lines, mean_speedup
from benchmarks.suites.malloc_summary import Found, played

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "malloc.json"
PAGE = HERE / "results" / "muzero.md"
BEGIN, END = "<!-- results: made by benchmarks/muzero_table.py -->", "<!-- end of results -->"
MACHINES = ("tpu-v4i", "tpu-v4i-16m")


def ms(value: float) -> str:
    return "–" if math.isinf(value) else f"{value / 1e9:.4g}"


def programs(found: Found, machine: str) -> str:
    head = [
        "program",
        "games",
        "production",
        "msa",
        "greedy",
        "evolution, equal games",
        "search over moves, equal games",
        f"`paper`, first {FIRST} games",
        "`paper`",
        "`paper-prod`",
        "over production",
        "bound",
        "gap",
    ]
    rows = []
    for line in lines(found, machine):
        name = line.case.split("/")[0]
        rows.append(
            [
                f"**`{name}`**" if line.held_out else f"`{name}`",
                str(line.games),
                ms(line.production),
                ms(line.msa),
                ms(line.greedy),
                f"{ms(line.evolution[1])} (`{line.evolution[0]}`)",
                f"{ms(line.rival[1])} (`{line.rival[0]}`)",
                ms(line.zero_shot),
                ms(line.agent),
                ms(line.prod),
                f"{line.production / line.prod:.4f} ×",
                ms(line.bound),
                f"{line.agent / line.bound - 1:.2%}",
            ]
        )
    every = lines(found, machine)
    if every:
        means = [
            mean_speedup((line.production, value(line)) for line in every)
            for value in (
                lambda x: x.msa,
                lambda x: x.greedy,
                lambda x: x.evolution[1],
                lambda x: x.rival[1],
                lambda x: x.zero_shot,
                lambda x: x.agent,
                lambda x: x.prod,
            )
        ]
        cells = [f"{mean:.4f} ×" for mean in means]
        rows.append(["geometric mean over production", "", "1", *cells, "", "", ""])
    return table(head, rows)


def ablations(found: Found) -> str:
    cases = sorted({case for case, _ in found if case.startswith("ablation/")})
    solvers = list(dict.fromkeys(solver for case, solver in found if case.startswith("ablation/")))
    rows = []
    for solver in solvers:
        groups = [found.get((case, solver)) for case in cases]
        gaps = [
            statistics.fmean(value / group.bound - 1 for value in group.values) for group in groups if group
        ]
        cells = [
            "–" if group is None else f"{statistics.fmean(v / group.bound - 1 for v in group.values):.2%}"
            for group in groups
        ]
        seeds = max(len(group.rows) for group in groups if group)
        rows.append(
            (statistics.fmean(gaps), [f"`{solver}`", str(seeds), *cells, f"{statistics.fmean(gaps):.2%}"])
        )
    rows.sort(key=lambda pair: pair[0])
    return table(
        ["variant", "seeds", *(case.removeprefix("ablation/") for case in cases), "mean gap"],
        [row for _, row in rows],
    )


def simulations(found: Found) -> str:
    rows = []
    for case, solver in found:
        if solver == SEARCHED and (case, "policy-only") in found:
            bare, searched = found[case, "policy-only"], found[case, SEARCHED]
            rows.append(
                [f"`{case}`", ms(bare.median), ms(searched.median), f"{bare.median / searched.median:.4f} ×"]
            )
    return table(["program", "bare policy", "32 simulations", "policy / search"], rows)


def page(document: dict[str, Any]) -> str:
    rows = document["rows"]
    found = played(rows)
    goals = [target for machine in MACHINES for target in learned_targets(found, rows, machine)]
    speed = [
        [
            row["extra"]["target"],
            row["extra"].get("platform", "–"),
            f"{row['value']:,.0f} moves/s",
            ", ".join(
                f"{name.removeprefix('ms_')} {row['extra'][name]:.1f}"
                for name in row["extra"]
                if name.startswith("ms_")
            ),
            row["status"],
        ]
        for row in rows
        if row["case"] == "speed/self-play"
    ]
    text = [
        (
            "All times are **simulated**, in milliseconds. Held-out programs are bold: no training or early stopping saw them. "
            "But `inception-v3` with 16 MiB was looked at while the agent was worked on: windows at many places, and crossing them, came "
            "after a trial there (3.395 ms before, 3.371 after), so its row is no held-out evidence for those two. "
            "`evolution` is the better of `es-moves` and `msa-order` after as many evaluations as the agent had games."
        ),
        "",
        "### Targets",
        "",
        table(["target", "measured", ""], [[t.goal, t.result, t.word] for t in goals]),
        "",
        "### Self-play",
        "",
        table(["target", "on", "measured", "milliseconds of a move of the whole batch", ""], speed),
        "",
    ]
    for machine in MACHINES:
        text += [f"### Programs on `{machine}`", "", programs(found, machine), ""]
    text += [
        "### What search adds to the shipped policy",
        "",
        "Best of 8 whole games each, nothing learned, `value_scale` 0.1, one H200:",
        "",
        simulations(found),
        "",
        "### Ablations",
        "",
        (
            "Small networks from scratch on two cores, equal games, gap to the bound, mean over "
            "seeds (`python benchmarks/muzero_ablation.py`):"
        ),
        "",
        ablations(found),
    ]
    return "\n".join(text).rstrip()


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return rewrite(PAGE, BEGIN, END, page(document))


if __name__ == "__main__":
    sys.exit(main())
