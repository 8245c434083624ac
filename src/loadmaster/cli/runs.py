"""`loadmaster runs`: one line a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.progress import gap_text, value_text
from loadmaster.errors import LoadmasterError, nearest
from loadmaster.files import writing

_SORTS = {
    "date": "started",
    "gap": "gap",
    "value": "value",
    "seconds": "seconds",
    "evaluations": "evaluations",
    "program": "program",
    "machine": "machine",
    "solver": "solver",
}
"""What users call a column -> its key in a row."""
TRAINING_LOG = ".log.jsonl"
"""Beside a policy of 'train muzero'."""


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs, or one run.")] = Path(
        "runs"
    ),
    sort: Annotated[str, typer.Option(metavar="BY", help=", ".join(_SORTS))] = "date",
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write their logs for TensorBoard here.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """List the runs of a folder: value of the plan handed over, whose it is, bound, gap, evaluations, seconds, how
    it ended.

    With --tensorboard their logs, and those of 'train muzero' (*.log.jsonl), become event files.

    Example: loadmaster runs --sort gap

    Example: loadmaster runs --tensorboard board && tensorboard --logdir board
    """
    from loadmaster.runs.folder import RunFolder
    from loadmaster.runs.history import History, describe_run

    if sort not in _SORTS:
        raise Usage(
            f"--sort can't be '{sort}'{nearest(sort, tuple(_SORTS))}",
            object="--sort",
            number=sort,
            remedy=f"use {', '.join(_SORTS)}",
        )
    if not folder.is_dir():
        raise Usage(
            f"there is no folder '{folder}'", object=str(folder), remedy="give the folder that --run named"
        )
    whole = (folder / "run.json").exists()
    paths = [folder] if whole else sorted(path for path in folder.iterdir() if path.is_dir())
    rows: list[dict[str, Any]] = []
    sound, warnings = [], []
    for path in paths:
        if not (path / "run.json").exists() and not (path / "log.jsonl").exists():
            continue  # some other folder
        try:
            run = RunFolder.open(path)
            rows.append(describe_run(run, History(run.read_log().lines)))
            sound.append(path)
        except LoadmasterError as error:
            warnings.append(error.message)
    key = _SORTS[sort]
    rows.sort(key=lambda row: (row[key] is None, row[key] if row[key] is not None else 0))
    written = [] if tensorboard is None else _boards(sound, folder, tensorboard, overwrite)
    if not rows:
        return Answer(rows, written or [f"no runs in '{folder}'"], tuple(warnings))
    cells = [
        (
            row["run"],
            value_text(row["value"], row["unit"]),
            row["origin"] or "–",
            value_text(row["bound"], row["unit"]),
            gap_text(row["gap"]),
            f"{row['evaluations']:,}",
            f"{row['seconds']:.1f}",
            row["state"],
        )
        for row in rows
    ]
    columns = ("run", "best", "by", "bound", "gap", "evaluations", "seconds", "ended")
    return Answer(rows, [Table(columns, cells), *written], tuple(warnings))


def _boards(runs: list[Path], folder: Path, out: Path, overwrite: bool) -> list[str | Table]:
    """Event files of all runs and of all logs of training in `folder`; what to say about them."""
    from loadmaster.export.viewers import export_log
    from loadmaster.runs.log import read_log

    logs = {path.resolve().name: path / "log.jsonl" for path in runs}
    logs |= {path.name.removesuffix(TRAINING_LOG): path for path in folder.glob(f"*{TRAINING_LOG}")}
    said: list[str | Table] = []
    for name, path in sorted(logs.items()):
        board = out / name
        for old in sorted(board.glob("events.out.tfevents.*")):
            check_free(old, overwrite)  # two files would be shown on top of one another
            old.unlink()
        lines = read_log(path).lines
        begun = next((line["utc"] for line in lines if "utc" in line), None)
        with writing(board):
            said.append(f"wrote {board}: {export_log(lines, board, begun):,} numbers")
    return said
