"""How the pictures look, and how they are written: the same data gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.errors import LoadmasterError, require
from loadmaster.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Hues that stay apart for colour-blind readers (after Okabe and Ito); line styles tell more apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f")
STYLES: tuple[str, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
GREY = "#c8c8c8"
_BETWEEN = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
WIDTH = 8.0
"""Inches; text of 9 points stays legible when a README scales it to its column."""

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is everywhere the same
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "svg.hashsalt": "loadmaster",
    "svg.fonttype": "path",
    "figure.dpi": 100,
    "savefig.dpi": 150,
}


def memory_colours(memories: int) -> list[str]:
    """Fastest first; the slowest, where everything is at first, is grey."""
    return [_BETWEEN[i % len(_BETWEEN)] for i in range(memories - 1)] + [GREY]


@contextmanager
def styled() -> Iterator[None]:
    """Draw inside it; whatever style the user has is left alone."""
    matplotlib = require("matplotlib", "figures")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(height: float, width: float = WIDTH, *, square: bool = False) -> Figure:
    """Without pyplot, so without a display and without state. `square`: of axes whose aspect is
    fixed, which are then moved together."""
    require("matplotlib", "figures")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="compressed" if square else "constrained")


def over_words(over: str) -> str:
    """What a speed-up is over, within a label."""
    return "the compiler" if over == "compiler" else over


def plain(axes: Axes) -> None:
    """No frame and no ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def save(figure: Figure, path: Path) -> Path:
    """Write an SVG or a PNG; the ending says which."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("svg", "png"):
        raise LoadmasterError(
            f"'{path}' has no ending of a picture", object=str(path), remedy="name it .svg or .png"
        )
    # The date and the version would make every file another one.
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with styled(), replacing(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=metadata)
    return path
