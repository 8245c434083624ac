"""Lines: how solvers learn, and how much room there is."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadmaster.export.figures.data import Improvements, learning_curves
from loadmaster.export.figures.room import Room
from loadmaster.export.figures.style import COLOURS, MARKERS, STYLES, new_figure, over_words, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    with styled():
        figure = new_figure(4.4)
        axes = figure.add_subplot()
        found = [compiler_ps / max(1, value) for runs in solvers.values() for run in runs for _, value in run]
        top = compiler_ps / bound_ps if bound_ps > 0 else max([1.0, *found])
        lines = [("bound", top, "-")] if bound_ps > 0 else []  # nothing is proven about hardware
        lines.append((over, 1.0, "--"))
        lines += [(name, compiler_ps / max(1, time), ":") for name, time in (levels or {}).items()]
        for i, (name, runs) in enumerate(solvers.items()):
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
            curves = learning_curves(runs, compiler_ps, end)
            for row in curves.runs:
                axes.step(curves.at, row, where="post", color=colour, linewidth=0.6, alpha=0.45)
            low, high = curves.mean - curves.spread, curves.mean + curves.spread
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
            ylabel=f"best speed-up over {over_words(over)}",
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
    with styled():
        figure = new_figure(3.6)
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
