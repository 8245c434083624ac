"""All pictures of a cell, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.export.figures.cells import WHITE_BOX, Cell, MapRun
from loadmaster.export.figures.curves import draw_learning_curves
from loadmaster.export.figures.data import Maps
from loadmaster.export.figures.maps import draw_contiguity, draw_embedding, draw_strips, draw_transitions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEAR = 1.05
"""Maps up to so many times the compiler's time are shown among the others."""
_MOST_PER_RUN = 40


def pictures(cell: Cell) -> Iterator[tuple[str, Figure]]:
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
    maps = maps_to_show(cell)
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


def maps_to_show(cell: Cell) -> dict[str, Maps]:
    """The compiler's map first, then the best of each solver, slowest first."""
    ordered = sorted(cell.best_maps().items(), key=lambda pair: -pair[1][0])
    others = {name: decision for name, (_, decision) in ordered if name != "compiler"}
    return {"compiler": cell.problem.compiler, **others}


def near_maps(run: MapRun, compiler_ps: int) -> list[tuple[int, Maps]]:
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
            near = near_maps(run, over_ps)
            rows += [(decision, value, name, False) for value, decision in near]
        found = cell.best_maps().get(name)
        if found is not None and name != "compiler":
            rows.append((found[1], found[0], name, True))
    maps, times, labels, marked = zip(*rows, strict=True)
    return draw_embedding(problem, maps, times, labels, marked, cell.name, over_ps, over)
