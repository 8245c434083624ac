"""`loadmaster transfer`: what a trained policy decides for models that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.model import MachineOption, Model
from loadmaster.cli.progress import gap_text
from loadmaster.units import show_time


def command(
    policy: Annotated[
        str, typer.Argument(metavar="POLICY", help="pretrained:scores, or a file of 'train egrl'.")
    ],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models to decide for.")],
    machine: MachineOption = None,
) -> Answer:
    """What EGRL's policy decides for each model at once: no search, nothing learned, one evaluation.

    Both views (nominal: with the machine's rates; strict: without) stand beside themselves untrained,
    the compiler's map and everything in the slowest memory. Every map fits.

    Example: loadmaster transfer pretrained:scores resnet50 resnet101 --machine nnp-i
    """
    from loadmaster.mapping.egrl import transfer
    from loadmaster.mapping.problem import Mapping

    def problems() -> Iterator[tuple[str, Mapping]]:
        for name in models:
            model = Model(name)
            yield name, Mapping(model.load(), model.machine(machine))

    rows = transfer(policy, problems())
    cells = [
        (
            row["model"],
            row["name"],
            show_time(row["picoseconds"]),
            f"{row['speedup']:.3f} ×",
            gap_text(row["gap"]),
        )
        for row in rows
    ]
    columns = ("model", "map", "time", "over compiler", "gap to bound")
    return Answer(rows, [Table(columns, cells, policy)], more={"policy": policy})
