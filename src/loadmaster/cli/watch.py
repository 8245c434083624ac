"""`loadmaster watch`: a local page that follows the runs of a folder."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table, Usage, put
from loadmaster.cli.progress import duration_text, gap_text, value_text


def command(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs, or one run.")] = Path(
        "runs"
    ),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Serve at this port. [any that is free]")
    ] = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the table and end, as --json does.")] = False,
) -> Answer:
    """Follow running searches on a local page: best, bound, gap, time left, curves, what lies where.

    The page is served on this computer alone (127.0.0.1), only reads, and shows runs that start or end meanwhile.
    Ctrl-C ends it; the searches go on.

    Example: loadmaster watch runs --open

    Example: loadmaster watch runs --once
    """
    from loadmaster.report.watch import Watch, WatchServer

    if not folder.is_dir():
        raise Usage(
            f"there is no folder '{folder}'", object=str(folder), remedy="give the folder that --run named"
        )
    watch = Watch(folder)
    if once or context.obj:  # with --json
        return _table(watch.rows(), folder)
    with WatchServer(watch, port) as server, contextlib.suppress(KeyboardInterrupt):
        put(f"watching '{folder}' at {server.address}  (Ctrl-C ends it)", sys.stdout)
        if show:
            import webbrowser

            webbrowser.open(server.address)
        server.serve_forever()
    return Answer()


def _table(rows: list[dict[str, Any]], folder: Path) -> Answer:
    sound = [row for row in rows if row["error"] is None]
    warnings = tuple(row["error"] for row in rows if row["error"] is not None)
    if not sound:
        return Answer(sound, [f"no runs in '{folder}'"], warnings)
    cells = [
        (
            row["run"],
            row["state"],
            value_text(row["value"], row["unit"]),
            row["origin"] or "–",
            value_text(row["bound"], row["unit"]),
            gap_text(row["gap"]),
            "–" if row["seconds_left"] is None else duration_text(row["seconds_left"]),
            f"{row['evaluations']:,}",
            f"{row['seconds']:.1f}",
        )
        for row in sound
    ]
    columns = ("run", "state", "best", "by", "bound", "gap", "left", "evaluations", "seconds")
    return Answer(sound, [Table(columns, cells)], warnings)
