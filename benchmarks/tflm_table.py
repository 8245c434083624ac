"""Record and show what TFLite Micro makes of our plans, and placement on a microcontroller.

`python benchmarks/tflm_table.py --record FOLDER` runs the cases `tflm/*` and `place/*` of the suite
`export` on the models in FOLDER (see `tflite_models.py`) and writes `results/tflm.json`. Without it,
the tables of benchmarks/results/microcontroller.md are rewritten from there; `--check` fails if they would change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.record import commit, write

HERE = Path(__file__).parent
PAGE = HERE / "results" / "microcontroller.md"
BEGIN, END = "<!-- results: made by benchmarks/tflm_table.py -->", "<!-- end of results -->"
SUITE = ["bench", "export", "--case", "tflm/*", "--case", "place/*"]
ARENAS = (
    "Bytes of the arena's planned part, measured by the runtime itself before and after; every file that was "
    "written computed the same as the model on five inputs, to the last bit."
)
Rows = list[dict[str, Any]]


def record(folder: str) -> None:
    run = [sys.executable, "-m", "loadmaster.cli.main", *SUITE, "--data", folder, "--json"]
    answer = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    answer["versions"]["tflite-micro"] = version("tflite-micro")
    write(
        "tflm",
        {
            "suite": "export",
            "command": " ".join(["loadmaster", *SUITE, "--data", "FOLDER", "--json"]),
            "commit": commit(),
            **{key: answer[key] for key in ("versions", "host", "rows")},
        },
    )


def arenas(rows: Rows) -> str:
    lines = [
        [
            f"`{row['case'].partition('/')[2]}`",
            f"{row['extra']['ops']}",
            f"{row['baseline']:,.0f}",
            f"{row['value']:,.0f}",
            f"{row['value'] / row['baseline'] - 1:+.1%}",
            f"{row['bound']:,.0f}",
            row["status"],
        ]
        for row in rows
        if row["case"].startswith("tflm/") and row["status"] != "skipped"
    ]
    return table(["model", "ops", "runtime's own", "ours", "change", "bound", "verdict"], lines)


def placements(rows: Rows, machine: str) -> str:
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["machine"] == machine:
            times.setdefault(row["case"].split("/")[1], {})[row["solver"]] = row
    lines = []
    for model, by in times.items():
        ours = by["auto"]
        cells = [
            f"{by[name]['value'] / 1e9:.3f}" if name in by else "–"
            for name in ("one-arena", "greedy-by-size", "compiler", "auto")
        ]
        change = f"{ours['value'] / by['one-arena']['value'] - 1:+.1%}" if "one-arena" in by else "–"
        greedy = (
            f"{ours['value'] / by['greedy-by-size']['value'] - 1:+.1%}" if "greedy-by-size" in by else "–"
        )
        lines.append([f"`{model}`", *cells, change, greedy, f"{ours['gap']:.2%}", ours["status"]])
    return table(
        [
            "model",
            "one arena",
            "greedy by size",
            "first fit",
            "ours",
            "against one arena",
            "against greedy",
            "gap",
            "proof",
        ],
        lines,
    )


def made() -> str:
    rows: Rows = json.loads((HERE / "results" / "tflm.json").read_text(encoding="utf-8"))["rows"]
    return "\n".join(
        [
            "### Arenas of TFLite Micro",
            "",
            ARENAS,
            "",
            arenas(rows),
            "",
            "### Placement on `imxrt1170`",
            "",
            "Simulated milliseconds.",
            "",
            placements(rows, "imxrt1170"),
            "",
            "### Placement on `imxrt1170-blocking`",
            "",
            "The same chip under the assumption that the core waits for its loads.",
            "",
            placements(rows, "imxrt1170-blocking"),
        ]
    )


if __name__ == "__main__":
    if "--record" in sys.argv:
        record(sys.argv[sys.argv.index("--record") + 1])
    else:
        sys.exit(rewrite(PAGE, BEGIN, END, made()))
