"""Pictures of a MallocGame's plan: the fast memory over time, the ops, and the copies between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.errors import require
from loadmaster.export.figures.curves import GREY, draw_learning_curves, make_figure, use_style
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan import Occupancy, Plan
from loadmaster.plan.steps import AT_HOME
from loadmaster.program import TensorKind
from loadmaster.runs.folder import RunFolder
from loadmaster.runs.history import History
from loadmaster.simulate import Timeline, simulate
from loadmaster.units import show_bytes, show_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KIND_COLOURS = {"weight": "#0072b2", "input": "#56b4e9", "activation": "#e69f00", "output": "#009e73"}
IN, OUT, STALL = "#0072b2", "#d55e00", "#cc0000"


def draw_game_pictures(path: Path, problem: MallocGame) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of one run: its best plan, and how it was found."""
    run = RunFolder.open(path)
    history = History(run.read_log().lines)
    title = f"{problem.program.name} on {problem.machine.name}, {run.about['solver']['name']}"
    if history.improvements:
        plan = run.load_plan(history.improvements[-1]["plan"], problem)
        yield f"{run.about['solver']['name']}-memory", draw_memory(problem, plan, title)
    if len(history.curve) > 1:
        bound = problem.bound().value if history.bound is None else history.bound.value
        yield (
            f"{run.about['solver']['name']}-curve",
            draw_learning_curves(
                {str(run.about["solver"]["name"]): [history.curve]},
                problem.all_slow_ps,
                bound,
                max(1, history.evaluations),
                title,
                over="all-slow",
            ),
        )


def draw_memory(problem: MallocGame, plan: Plan, title: str) -> Figure:
    """Addresses of the fast memory over simulated time; below it ops and copies."""
    timeline = simulate(problem.program, problem.machine, plan)
    with use_style():
        figure = make_figure(6.0)
        grid = figure.add_gridspec(2, 1, height_ratios=(5, 1), hspace=0.02)
        memory = figure.add_subplot(grid[0])
        lanes = figure.add_subplot(grid[1], sharex=memory)
        _draw_residencies(memory, problem, plan, timeline)
        _draw_lanes(lanes, problem, plan, timeline)
        stall = int(timeline.op_stall.sum())
        memory.set_title(
            f"{title}: {show_time(timeline.total_ps)}, of it {show_time(stall)} waiting for copies"
        )
    return figure


def _draw_residencies(axes: Axes, problem: MallocGame, plan: Plan, timeline: Timeline) -> None:
    patches = require("matplotlib.patches", "figures")
    collections = require("matplotlib.collections", "figures")
    program, fast = problem.program, problem.model.fast
    sizes, kinds = program.storage_bytes, program.tensor_kind
    held = Occupancy(program, problem.machine, plan, timeline).held
    held = held.take((held.memory == fast) & (held.row != AT_HOME))
    end = np.minimum(held.end, timeline.total_ps)
    columns = (held.tensor, held.offset, held.begin, end)
    shapes, colours = [], []
    for tensor, offset, begins, ends in zip(*(column.tolist() for column in columns), strict=True):
        width = _micro(ends) - _micro(begins)
        shapes.append(patches.Rectangle((_micro(begins), offset), width, int(sizes[tensor])))
        colours.append(KIND_COLOURS[_kind(int(kinds[tensor]))])
    axes.add_collection(
        collections.PatchCollection(
            shapes, facecolors=colours, edgecolors="white", linewidths=0.3 if len(shapes) < 2000 else 0.0
        )
    )
    capacity = problem.machine.memories[fast].capacity
    ticks = np.linspace(0, capacity, 5)
    axes.set_yticks(ticks, [show_bytes(int(tick)) for tick in ticks])
    axes.set(
        xlim=(0, _micro(timeline.total_ps)),
        ylim=(0, capacity),
        ylabel=f"address in {problem.machine.memories[fast].name}",
    )
    axes.tick_params(labelbottom=False)
    used = {_kind(int(kinds[row.tensor])) for row in plan.residency_rows}
    handles = [
        patches.Patch(color=colour, label=name) for name, colour in KIND_COLOURS.items() if name in used
    ]
    if handles:
        axes.legend(handles=handles, loc="upper right", ncols=len(handles), framealpha=0.9, edgecolor="none")


def _draw_lanes(axes: Axes, problem: MallocGame, plan: Plan, timeline: Timeline) -> None:
    """Three lanes: ops with the waits before them, copies in, copies out."""
    fast = problem.model.fast
    ops = [(op, timeline.op_start[op], timeline.op_end[op]) for op in problem.model.step_op.tolist()]
    waits = [(start - timeline.op_stall[op], start) for op, start, _ in ops if timeline.op_stall[op]]
    copies: list[list[tuple[Any, Any]]] = [[], []]
    for row, copy in enumerate(plan.copy_rows):
        copies[copy.target != fast].append((timeline.copy_start[row], timeline.copy_end[row]))
    _bars(axes, 2, [(start, end) for _, start, end in ops], GREY)
    _bars(axes, 2, waits, STALL)
    _bars(axes, 1, copies[0], IN)
    _bars(axes, 0, copies[1], OUT)
    axes.set_yticks([2, 1, 0], ["ops, waits", "copies in", "copies out"])
    axes.set(ylim=(-0.5, 2.5), xlabel="simulated time, µs")


def _bars(axes: Axes, lane: int, spans: list[tuple[Any, Any]], colour: str) -> None:
    if spans:
        bars = [(_micro(start), max(_micro(end) - _micro(start), 1e-9)) for start, end in spans]
        axes.broken_barh(
            bars,
            (lane - 0.38, 0.76),
            facecolors=colour,
            edgecolors="white",
            linewidth=0.2 if len(bars) < 1000 else 0.0,
        )


def _kind(kind: int) -> str:
    name = TensorKind(kind).name.lower()
    return "weight" if name == "state" else name


def _micro(picoseconds: Any) -> float:
    return float(picoseconds) / 10**6
