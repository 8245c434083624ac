"""Draw the measured times at half of the memory from the recorded results: `python benchmarks/gpu_picture.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.gpu_summary import Cell, cells
from loadmaster.export.figures.curves import COLOURS, GREY, make_figure, save, use_style

HERE = Path(__file__).parent
BARS = {
    "Loadmaster": ("auto",),
    "XLA's rule (msa)": ("msa",),
    "checkpoint": ("checkpoint",),
    "prefetch": ("prefetch", "prefetch-hooks"),
    "layer by layer": ("layerwise", "layerwise-hooks"),
    "save_on_cpu": ("save_on_cpu",),
}
"""Name -> solvers and peers, the fastest of which is drawn."""
COLOUR = dict(zip(BARS, (*COLOURS[:5], GREY), strict=True))
ORDER = ("llama", "moe", "vit", "bert", "unet", "resnet50", "gpt_train", "resnet50_train")
TOP = 3.0
"""Times everything resident: what is longer is cut and labelled."""


def main() -> None:
    rows = json.loads((HERE / "results" / "gpu.json").read_text(encoding="utf-8"))["rows"]
    half = {cell.model: cell for cell in cells(rows) if cell.percent == 50 and cell.ours}
    models = [half[model] for model in ORDER if model in half]
    with use_style():
        figure = make_figure(3.6)
        axes = figure.add_subplot()
        for place, cell in enumerate(models):
            for name, at, height in _bars(cell):
                axes.bar(place + at, min(height, TOP), 0.16, color=COLOUR[name])
                if height > TOP:
                    axes.annotate(
                        f"{height:.1f} ", (place + at, TOP), ha="center", va="top", fontsize=7, rotation=90
                    )
        axes.axhline(1, color="#555555", linewidth=0.9)
        axes.set_xticks(range(len(models)), [cell.model.replace("_", "\n") for cell in models])
        axes.set(
            ylim=(0, TOP),
            ylabel="time / everything resident",
            title="Half of the memory that the model needs, measured on one H200",
        )
        axes.grid(axis="y")
        handles = [axes.bar(0, 0, color=colour, label=name) for name, colour in COLOUR.items()]
        figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=len(BARS))
    save(figure, HERE / "results" / "gpu.svg")


def _bars(cell: Cell) -> list[tuple[str, float, float]]:
    """(name, place beside the model's, time over everything resident)."""
    found = [(name, cell.faster(*solvers)) for name, solvers in BARS.items()]
    there = [(name, row["value"] / (cell.resident or 1)) for name, row in found if row is not None]
    return [(name, 0.16 * (i - (len(there) - 1) / 2), height) for i, (name, height) in enumerate(there)]


if __name__ == "__main__":
    main()
