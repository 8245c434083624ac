"""Draw the learning curves of benchmarks/results/mapping.md from the recorded results: `python benchmarks/mapping_picture.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.mapping_cells import BUDGET
from benchmarks.suites.mapping_solvers import BLACK
from loadmaster.export.figures.curves import draw_learning_curves, save

HERE = Path(__file__).parent


def main(case: str = "resnet101/nnp-i") -> None:
    rows = json.loads((HERE / "results" / "mapping.json").read_text(encoding="utf-8"))["rows"]
    here = [row for row in rows if row["case"] == case]
    curves = {
        solver: [
            [(int(at), int(value)) for at, value in row["extra"]["curve"] if at <= BUDGET]
            for row in here
            if row["solver"] == solver
        ]
        for solver in BLACK
    }
    compiler, bound = int(here[0]["baseline"]), int(max(row["bound"] for row in here))
    density = next((int(row["value"]) for row in here if row["solver"] == "density"), None)
    figure = draw_learning_curves(
        {solver: runs for solver, runs in curves.items() if runs},
        compiler,
        bound,
        BUDGET,
        f"{case}: the best map after so many evaluations",
        {} if density is None else {"density": density},
    )
    save(figure, HERE / "results" / "mapping.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
