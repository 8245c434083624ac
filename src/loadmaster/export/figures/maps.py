"""Maps: where tensors went, how maps differ, how contiguous they are, and the maps themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dict
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.export.figures.curves import (
    COLOURS,
    MARKERS,
    choose_colours,
    draw_learning_curves,
    hide_frame,
    make_figure,
    name_baseline,
    use_style,
)
from loadmaster.export.figures.data import (
    WHITE_BOX,
    Cell,
    Int64,
    MapRun,
    Maps,
    count_transitions,
    measure_contiguity,
    measure_distances,
    scale_to_plane,
)
from loadmaster.mapping.problem import Mapping
from loadmaster.units import show_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNDECIDED = "white"


def memory_names(problem: Mapping) -> list[str]:
    """Fastest first."""
    return [problem.machine.memories[number].name for number in problem.memories]


def draw_transitions(
    problem: Mapping, before: Maps, after: Maps, names: tuple[str, str], title: str
) -> Figure:
    """Four matrices: weights and activations apart, by bytes and by count."""
    with use_style():
        figure = make_figure(6.2, 6.0, square=True)
        figure.suptitle(title, fontsize=10)
        axes = figure.subplots(2, 2)
        for row, (kind, found) in enumerate(count_transitions(problem, before, after).items()):
            for column, (unit, table) in enumerate((("bytes", found.bytes), ("count", found.count))):
                _matrix(axes[row, column], table, memory_names(problem), unit == "bytes")
                axes[row, column].set_title(f"{kind}, by {unit}")
                if column == 0:
                    axes[row, column].set_ylabel(names[0])
                if row == 1:
                    axes[row, column].set_xlabel(names[1])
    return figure


def _matrix(axes: Axes, table: Int64, memories: list[str], as_bytes: bool) -> None:
    total = max(1, int(table.sum()))
    axes.imshow(table / total, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(memories))
    axes.set_xticks(ticks, memories)
    axes.set_yticks(ticks, memories, rotation=90, va="center")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for (row, column), amount in np.ndenumerate(table):
        if not amount:
            continue
        text = show_bytes(int(amount)) if as_bytes else f"{amount:,}"
        colour = "white" if amount / total > 0.5 else "black"
        axes.text(
            column,
            row,
            f"{text}\n{_percent(amount / total)}",
            ha="center",
            va="center",
            fontsize=8,
            color=colour,
        )


def _percent(share: float) -> str:
    return "<1%" if share < 0.005 else f"{share:.0%}"


def draw_embedding(
    problem: Mapping,
    maps: Sequence[Maps],
    times: Sequence[int],
    labels: Sequence[str],
    marked: Sequence[bool],
    title: str,
    over_ps: int,
    over: str = "compiler",
) -> Figure:
    """Maps as points; near means that few bytes lie elsewhere. A label has a marker of its own,
    marked maps are large, and the colour is the speed-up over `over_ps`, the time of `over`."""
    with use_style():
        figure = make_figure(4.6)
        axes = figure.add_subplot()
        points, explained = scale_to_plane(measure_distances(problem, np.array(maps)))
        speed = over_ps / np.maximum(np.array(times, dtype=np.float64), 1)
        low, high = float(speed.min()), float(max(speed.max(), speed.min() + 1e-9))
        best = np.array(marked)
        for size, chosen, edge in ((22, ~best, "none"), (110, best, "black")):
            for i, label in enumerate(dict.fromkeys(labels)):
                here = chosen & (np.array(labels) == label)
                axes.scatter(
                    points[here, 0],
                    points[here, 1],
                    c=speed[here],
                    s=size,
                    marker=MARKERS[i % len(MARKERS)],
                    cmap="viridis",
                    vmin=low,
                    vmax=high,
                    edgecolors=edge,
                    linewidths=0.8,
                    zorder=3 if edge == "black" else 2,
                )
        for i, label in enumerate(dict.fromkeys(labels)):  # the legend's markers have no speed
            axes.scatter([], [], marker=MARKERS[i % len(MARKERS)], color="#555555", s=30, label=label)
        figure.colorbar(axes.collections[0], ax=axes, label=f"speed-up over {name_baseline(over)}", pad=0.01)
        axes.set(
            title=title,
            xlabel=f"large: the best of each; two dimensions show {explained:.0%} of the variance",
        )
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.08)
        axes.set_xticks([])
        axes.set_yticks([])
        figure.legend(loc="outside lower center", frameon=False, ncols=min(6, len(set(labels))))
    return figure


def draw_contiguity(problem: Mapping, maps: Dict[str, Maps], title: str) -> Figure:
    """Two bars per map: edges within one memory, consecutive weights in one memory."""
    with use_style():
        figure = make_figure(0.9 + 0.42 * len(maps))
        axes = figure.add_subplot()
        bars = (
            ("activations", "edges with both activations in one memory"),
            ("weights", "consecutive weights in one memory"),
        )
        for i, (name, label) in enumerate(bars):
            shares = [getattr(measure_contiguity(problem, decision), name) for decision in maps.values()]
            where = np.arange(len(maps)) + (i - 0.5) * 0.38
            axes.barh(where, [share or 0.0 for share in shares], 0.36, color=COLOURS[i], label=label)
            for y, share in zip(where, shares, strict=True):
                text = "none" if share is None else f"{share:.0%}"
                axes.text((share or 0.0) + 0.008, y, text, va="center", fontsize=8)
        axes.set_yticks(range(len(maps)), list(maps))
        axes.invert_yaxis()
        axes.set(xlim=(0, 1.08), xlabel="share")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(axis="x")
        figure.suptitle(title, fontsize=10)
        figure.legend(loc="outside lower center", frameon=False, ncols=2)
    return figure


def draw_strips(problem: Mapping, maps: Dict[str, Maps], title: str) -> Figure:
    """One strip per map: nodes in order, activations above weights, coloured by memory."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    with use_style():
        figure = make_figure(1.2 + 0.5 * len(maps))
        colours = choose_colours(len(problem.memories))
        cells = ListedColormap([*colours, _UNDECIDED])
        rows = figure.subplots(len(maps), 1, squeeze=False)[:, 0]
        for axes, (name, decision) in zip(rows, maps.items(), strict=True):
            memory = np.where(problem.live, decision, len(colours)).reshape(2, problem.nodes)
            axes.imshow(memory, cmap=cells, vmin=0, vmax=len(colours), aspect="auto", interpolation="nearest")
            hide_frame(axes)
            axes.set_yticks([0, 1], ["activations", "weights"], fontsize=7)
            axes.tick_params(length=0, pad=2)
            axes.axhline(0.5, color="white", linewidth=1.5)
            axes.annotate(
                name,
                (1, 0.5),
                xycoords="axes fraction",
                xytext=(5, 0),
                va="center",
                textcoords="offset points",
                fontsize=8,
            )
        rows[-1].set_xlabel(f"node 0 to {problem.nodes - 1}, in program order")
        patches = [
            Patch(color=colour, label=name)
            for colour, name in zip(colours, memory_names(problem), strict=True)
        ]
        patches.append(Patch(facecolor=_UNDECIDED, edgecolor="#999999", label="nothing to decide"))
        figure.suptitle(title, fontsize=10)
        figure.legend(handles=patches, loc="outside lower center", frameon=False, ncols=len(patches))
    return figure


_NEAR = 1.05
"""Maps up to so many times the compiler's time are shown among the others."""
_MOST_PER_RUN = 40


def draw_pictures(cell: Cell) -> Iterator[tuple[str, Figure]]:
    """(name, figure): curves, transitions-SOLVER, embedding, contiguity, strips."""
    groups, best = cell.groups(), cell.best_maps()
    over, over_ps = cell.reference
    searches = {
        name: [run.improvements for run in runs]
        for name, runs in groups.items()
        if runs[0].solver not in WHITE_BOX
    }
    if searches:
        end = max(run.evaluations for runs in groups.values() for run in runs)
        levels = {
            name: value
            for name, (value, _) in best.items()
            if groups[name][0].solver in WHITE_BOX and groups[name][0].solver != "compiler"
        }
        yield (
            "curves",
            draw_learning_curves(searches, over_ps, cell.bound_ps, max(1, end), cell.name, levels, over),
        )
    maps = select_maps(cell)
    for name, decision in list(maps.items())[1:]:
        title = f"{cell.name}: from the compiler's map to that of {name}"
        names = ("compiler", name)
        yield (
            f"transitions-{name}",
            draw_transitions(cell.problem, cell.problem.compiler, decision, names, title),
        )
    if cell.compiler_ps is not None or best:
        yield "embedding", _embedding(cell)
    yield "contiguity", draw_contiguity(cell.problem, maps, cell.name)
    yield "strips", draw_strips(cell.problem, maps, cell.name)


def select_maps(cell: Cell) -> dict[str, Maps]:
    """The compiler's map first, then the best of each solver, slowest first."""
    ordered = sorted(cell.best_maps().items(), key=lambda pair: -pair[1][0])
    others = {name: decision for name, (_, decision) in ordered if name != "compiler"}
    return {"compiler": cell.problem.compiler, **others}


def select_near_maps(run: MapRun, compiler_ps: int) -> list[tuple[int, Maps]]:
    """The maps of a run that are worth a point: none much slower than the compiler's."""
    near = [pair for pair in run.maps if pair[0] <= _NEAR * compiler_ps]
    if len(near) <= _MOST_PER_RUN:
        return near
    chosen = np.linspace(0, len(near) - 1, _MOST_PER_RUN).round().astype(int)
    return [near[i] for i in chosen.tolist()]


def _embedding(cell: Cell) -> Figure:
    problem, (over, over_ps) = cell.problem, cell.reference
    rows: list[tuple[Maps, int, str, bool]] = []
    if cell.compiler_ps is not None:
        rows.append((problem.compiler, cell.compiler_ps, "compiler", True))
    for name, runs in cell.groups().items():
        for run in runs if name != "compiler" else []:
            near = select_near_maps(run, over_ps)
            rows += [(decision, value, name, False) for value, decision in near]
        found = cell.best_maps().get(name)
        if found is not None and name != "compiler":
            rows.append((found[1], found[0], name, True))
    maps, times, labels, marked = zip(*rows, strict=True)
    return draw_embedding(problem, maps, times, labels, marked, cell.name, over_ps, over)
