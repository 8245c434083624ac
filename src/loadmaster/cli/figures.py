"""`loadmaster figures`: pictures of runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Usage, check_free
from loadmaster.cli.progress import say
from loadmaster.errors import nearest
from loadmaster.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = ("svg", "png", "both")


def command(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Runs, or folders of runs.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.")] = Path("figures"),
    format: Annotated[str, typer.Option(metavar="KIND", help="svg, png or both")] = "svg",
    room: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="MODEL MACHINE", help="Also: what is left as memories grow."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="For each proof that --room asks for.")] = 60.0,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Of mapping runs: learning curves, transitions between memories, an embedding of maps, contiguity
    and map strips, for each model and machine. Of games: the fast memory over time with its copies.

    Example: loadmaster figures runs --out figures
    """
    from loadmaster.errors import require

    if format not in _FORMATS:
        raise Usage(
            f"--format can't be '{format}'{nearest(format, _FORMATS)}",
            object="--format",
            number=format,
            remedy=f"use {', '.join(_FORMATS)}",
        )
    if not runs and room is None:
        raise Usage("there is nothing to draw", object="RUN", remedy="give runs, or --room MODEL MACHINE")
    require("matplotlib", "figures")
    writer = _Writer(out, ("svg", "png") if format == "both" else (format,), overwrite)
    warnings = _runs(writer, list(runs)) if runs else []
    if room is not None:
        _room(writer, *room, seconds)
    files = [row["file"] for row in writer.rows]
    return Answer(writer.rows, ["\n".join(f"wrote {file}" for file in files)], tuple(warnings))


def _runs(writer: _Writer, paths: list[Path]) -> list[str]:
    """Games one by one; runs of one mapping problem together. Returns what could not be drawn."""
    from loadmaster.export.figures.data import find_runs, read_cells
    from loadmaster.export.figures.game import draw_game_pictures
    from loadmaster.export.figures.maps import draw_pictures
    from loadmaster.malloc_game.problem import MallocGame
    from loadmaster.search.registry import load_problem

    mappings = []
    for path in find_runs(paths):
        problem = load_problem(path)
        if not isinstance(problem, MallocGame):
            mappings.append(path)
            continue
        prefix = f"{problem.program.name}-{problem.machine.name}"
        for name, figure in draw_game_pictures(path, problem):
            writer.write(f"{prefix}-{name}", prefix, figure)
    warnings = []
    for cell in read_cells(mappings):
        if cell.compiler_ps is None:
            warnings.append(
                f"{cell.name}: drawn without the compiler's time, which no log of these runs has; "
                "nothing is measured for a picture"
            )
        prefix = f"{cell.problem.program.name}-{cell.problem.machine.name}"
        for name, figure in draw_pictures(cell):
            writer.write(f"{prefix}-{name}", cell.name, figure)
    return warnings


def _room(writer: _Writer, model: str, machine: str, seconds: float) -> None:
    from loadmaster.export.figures.curves import FACTORS, draw_room, measure_room
    from loadmaster.machine import load_machine
    from loadmaster.program.models import load_model

    program, chip = load_model(model), load_machine(machine)
    rows = []
    for row in measure_room(program, chip, FACTORS, seconds):
        say(f"capacities times {row.factor:g}: compiler / bound {row.compiler:.4f}")
        rows.append(row)
    what = f"{program.name} on {chip.name}"
    writer.write(f"{program.name}-{chip.name}-room", what, draw_room(rows, what))


class _Writer:
    """Names files, never two alike, and remembers them."""

    def __init__(self, out: Path, endings: tuple[str, ...], overwrite: bool) -> None:
        self.out, self.endings, self.overwrite = out, endings, overwrite
        self.rows: list[dict[str, Any]] = []

    def write(self, name: str, of: str, figure: Figure) -> None:
        from loadmaster.export.figures.curves import save

        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._") or "figure"
        known = {row["file"] for row in self.rows}
        for ending in self.endings:
            path = self.out / f"{stem}.{ending}"
            number = 2
            while str(path) in known:  # another problem over the same names
                path = self.out / f"{stem}-{number}.{ending}"
                number += 1
            check_free(path, self.overwrite)
            with writing(path):
                save(figure, path)
            self.rows.append({"file": str(path), "of": of, "bytes": path.stat().st_size})
