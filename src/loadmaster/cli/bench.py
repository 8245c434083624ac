"""`loadmaster bench`: suites of measurements. Prints a table and writes nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.progress import say


def command(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="simulate")],
    quick: Annotated[bool, typer.Option("--quick", help="End within a minute.")] = False,
    case: Annotated[
        list[str] | None, typer.Option(metavar="CASE", help="Only these cases; * stands for any.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 1,
) -> Answer:
    """Measure, and compare with the target, the baseline or the bound.

    Example: loadmaster bench simulate --quick --json > simulate.json
    """
    from loadmaster.bench import Options, host, run_suite, versions

    options = Options(quick=quick, cases=tuple(case or ()), seeds=seeds)
    rows = []
    for row in run_suite(suite, options):
        say(f"{row.case}: {row.value:.4g} {row.unit} ({row.status})")
        rows.append(row)
    cells = [
        (row.case, row.machine or "–", str(row.seed), f"{row.value:.4g} {row.unit}",
         row.goal, f"{row.evaluations:,}", f"{row.seconds:.2f}", row.status)
        for row in rows
    ]  # fmt: skip
    columns = ("case", "machine", "seed", "value", "goal", "evaluations", "seconds", "status")
    return Answer(
        [row.as_dict() for row in rows],
        [Table(columns, cells)],
        more={"suite": suite, "versions": versions(), "host": host()},
    )
