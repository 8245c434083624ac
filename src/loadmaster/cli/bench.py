"""`loadmaster bench`: suites of measurements. Prints a table and writes nothing."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import loadmaster
from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.progress import say
from loadmaster.errors import LoadmasterError
from loadmaster.units import show_time

if TYPE_CHECKING:
    from benchmarks.suites import Row


def command(
    suite: Annotated[
        str,
        typer.Argument(metavar="SUITE", help="simulate, allocation, mapping, malloc, graph, export or gpu"),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="End within a minute.")] = False,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases; * stands for any.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 1,
    solver: Annotated[list[str] | None, typer.Option(help="Only these solvers.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Other projects' instances; else $LOADMASTER_DATA.")
    ] = None,
) -> Answer:
    """Measure, and compare with the target, the baseline or the bound.

    Example: loadmaster bench simulate --quick --json > simulate.json
    """
    suites = _suites()
    from loadmaster.host import host, load, versions

    options = suites.Options(quick, tuple(case or ()), seeds, tuple(solver or ()), data)
    rows = []
    for row in suites.run_suite(suite, options):
        by = f" {_by(row)}" if row.solver else ""
        say(f"{row.case}{by}: {_value(row)} ({row.status})")
        rows.append(row)
    cells = [
        (
            row.case,
            _by(row),
            str(row.seed),
            _value(row),
            row.goal if row.gap is None else f"{row.gap:.2%}",
            f"{row.evaluations:,}",
            f"{row.seconds:.3f}",
            row.status,
        )
        for row in rows
    ]
    columns = ("case", "on or by", "seed", "value", "goal or gap", "evaluations", "seconds", "status")
    return Answer(
        [row.as_dict() for row in rows],
        [Table(columns, cells)],
        more={"suite": suite, "versions": versions(), "host": {**host(), "load": load()}},
    )


def _suites() -> Any:
    """The suites are in a checkout, beside the package: they measure it and are no part of it."""
    root = Path(loadmaster.__file__).parents[2]
    if not (root / "benchmarks" / "suites").is_dir():
        raise LoadmasterError(
            "the benchmarks are not installed",
            object="benchmarks",
            remedy="clone the repository, install it there with 'pip install -e .', and ask again",
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return import_module("benchmarks.suites")


def _by(row: Row) -> str:
    """A solver with the options that are not its own defaults, or a machine."""
    options = ", ".join(f"{name}={value}" for name, value in row.extra.get("options", {}).items())
    return (row.solver or row.machine or "–") + (f" ({options})" if options else "")


def _value(row: Row) -> str:
    if row.unit == "ps":
        return show_time(round(row.value)) if row.value >= 0 else "–"
    return f"{row.value:.7g} {row.unit}"
