"""How pictures look and how they are written (the same data gives the same bytes), and lines: how solvers
learn, and how much room a compiler leaves as memories grow and shrink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.errors import LoadmasterError, require
from loadmaster.export.figures.data import Improvements, collect_learning_curves
from loadmaster.files import replacing
from loadmaster.machine.machine import Machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program.program import Program
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, solve

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


def choose_colours(memories: int) -> list[str]:
    """Fastest first; the slowest, where everything is at first, is grey."""
    return [_BETWEEN[i % len(_BETWEEN)] for i in range(memories - 1)] + [GREY]


@contextmanager
def use_style() -> Iterator[None]:
    """Draw inside it; whatever style the user has is left alone."""
    matplotlib = require("matplotlib", "figures")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def make_figure(height: float, width: float = WIDTH, *, square: bool = False) -> Figure:
    """Without pyplot, so without a display and without state. `square`: of axes whose aspect is
    fixed, which are then moved together."""
    require("matplotlib", "figures")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="compressed" if square else "constrained")


def name_baseline(over: str) -> str:
    """What a speed-up is over, within a label."""
    return "the compiler" if over == "compiler" else over


def hide_frame(axes: Axes) -> None:
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
    with use_style(), replacing(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=metadata)
    return path


FACTORS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 12.0)


@dataclass(frozen=True)
class Room:
    """One scaled machine; times in picoseconds."""

    factor: float
    compiler_ps: int
    density_ps: int
    best_ps: int
    bound_ps: int

    @property
    def compiler(self) -> float:
        """compiler / bound: the largest speed-up that anybody could show."""
        return self.compiler_ps / self.bound_ps

    @property
    def density(self) -> float:
        return self.density_ps / self.bound_ps

    @property
    def best(self) -> float:
        """1 where the optimum is proven; else the best map and the bound leave this open."""
        return self.best_ps / self.bound_ps


def scale_capacities(machine: Machine, factor: float) -> Machine:
    """The machine with other capacities, but for the slowest memory, which holds everything."""
    for number in machine.reach[0][:-1]:
        memory = machine.memories[number]
        machine = machine.with_capacity(memory.name, max(1, round(memory.capacity * factor)))
    return machine


def measure_room(
    program: Program, machine: Machine, factors: Sequence[float] = FACTORS, seconds: float = 60.0
) -> Iterator[Room]:
    """One row per factor; the exact solver gets so many seconds for each."""
    for factor in factors:
        problem = Mapping(program, scale_capacities(machine, factor))
        density = solve(make_solver("mapping", "density"), problem, Budget())
        exact = solve(make_solver("mapping", "exact"), problem, Budget(seconds=seconds))
        assert density.value is not None  # everything in the slowest memory is always legal
        known = [density.value, problem.compiler_ps, *([] if exact.value is None else [exact.value])]
        yield Room(factor, problem.compiler_ps, density.value, min(known), exact.bound.value)


def draw_learning_curves(
    solvers: Dict[str, Sequence[Improvements]],
    compiler_ps: int,
    bound_ps: int,
    end: int,
    title: str,
    levels: Dict[str, int] | None = None,
    over: str = "compiler",
) -> Figure:
    """Best speed-up against evaluations: a thin line per run, mean and standard deviation per
    solver. `levels` are times of solvers that do not learn; `over` names the one of `compiler_ps`."""
    with use_style():
        figure = make_figure(4.4)
        axes = figure.add_subplot()
        found = [compiler_ps / max(1, value) for runs in solvers.values() for run in runs for _, value in run]
        top = compiler_ps / bound_ps if bound_ps > 0 else max([1.0, *found])
        lines = [("bound", top, "-")] if bound_ps > 0 else []  # nothing is proven about hardware
        lines.append((over, 1.0, "--"))
        lines += [(name, compiler_ps / max(1, time), ":") for name, time in (levels or {}).items()]
        for i, (name, runs) in enumerate(solvers.items()):
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
            curves = collect_learning_curves(runs, compiler_ps, end)
            for row in curves.runs:
                axes.step(curves.at, row, where="post", color=colour, linewidth=0.6, alpha=0.45)
            low, high = curves.mean - curves.deviation, curves.mean + curves.deviation
            axes.fill_between(
                curves.at, low.clip(0), high, step="post", color=colour, alpha=0.15, linewidth=0
            )
            axes.step(curves.at, curves.mean, style, where="post", color=colour, linewidth=1.8, label=name)
        for _, level, style in lines:
            axes.axhline(level, color="#555555", linewidth=0.9, linestyle=style, zorder=1)
        # Names at the right end; those of lines that nearly touch share one place.
        for level, names in _together([(level, name) for name, level, _ in lines], 0.035 * top):
            axes.annotate(
                ", ".join(names),
                (1, level),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color="#555555",
            )
        # Before a first legal map there is no speed-up; all-slow is always one.
        least = 0.0 if over == "compiler" else 1 - 0.06 * (max(top, 1.01) - 1)
        highest = least + 1.06 * (max(top, 1.01) - least)
        axes.set(
            xlim=(0, end),
            ylim=(least, highest),
            title=title,
            xlabel="evaluations",
            ylabel=f"best speed-up over {name_baseline(over)}",
        )
        axes.grid(axis="y")
        if solvers:  # below: the lower right corner is where slow solvers are
            figure.legend(loc="outside lower center", frameon=False, ncols=min(6, len(solvers)))
    return figure


def _together(labels: list[tuple[float, str]], nearest: float) -> list[tuple[float, list[str]]]:
    found: list[tuple[float, list[str]]] = []
    for level, name in sorted(labels, reverse=True):
        if found and found[-1][0] - level < nearest:
            found[-1][1].append(name)
        else:
            found.append((level, [name]))
    return found


def draw_room(rows: Sequence[Room], title: str) -> Figure:
    """Compiler and density over the bound, against the factor on all capacities but the last."""
    with use_style():
        figure = make_figure(3.6)
        axes = figure.add_subplot()
        factors = [row.factor for row in rows]
        open_ = [row.best for row in rows]
        axes.fill_between(
            factors,
            1.0,
            open_,
            color="#bbbbbb",
            linewidth=0,
            zorder=1,
            label="not decided: best map over bound",
        )
        for i, name in enumerate(("compiler", "density")):
            axes.plot(
                factors,
                [getattr(row, name) for row in rows],
                color=COLOURS[i],
                linewidth=1.8,
                marker=MARKERS[i],
                markersize=5,
                label=f"{name} / bound",
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(factors, [_factor(factor) for factor in factors])
        axes.minorticks_off()
        highest = max([1.02, *(row.compiler for row in rows), *(row.density for row in rows)])
        axes.set(
            title=title,
            ylabel="time / bound",
            ylim=(1 - 0.04 * (highest - 1), 1 + 1.08 * (highest - 1)),
            xlabel="capacity of every memory but the slowest, times",
        )
        axes.grid()
        axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
    return figure


def _factor(factor: float) -> str:
    return f"1/{1 / factor:g}" if factor < 1 else f"{factor:g}"
