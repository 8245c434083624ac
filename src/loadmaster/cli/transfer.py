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
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="pretrained:bert, or a file of 'train'.")],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models to decide for.")],
    machine: MachineOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random map.")] = 0,
) -> Answer:
    """One greedy pass of a policy on each model: no search, nothing learned, one evaluation.

    A map that does not fit is rectified (tensors move to the next slower memory) before it is
    timed; the share of bytes that had to move is shown.

    Example: loadmaster transfer pretrained:bert resnet50 resnet101 --machine nnp-i
    """
    from loadmaster.mapping.egrl import transfer
    from loadmaster.mapping.problem import Mapping

    def problems() -> Iterator[tuple[str, Mapping]]:
        for name in models:
            model = Model(name)
            yield name, Mapping(model.load(), model.machine(machine))

    rows = transfer(policy, problems(), seed=seed)
    cells = [
        (
            row["model"],
            row["name"],
            "white box" if row["white_box"] else "black box",
            "yes" if row["fits"] else "no",
            f"{100 * row['epsilon']:.1f} %",
            show_time(row["picoseconds"]),
            f"{row['speedup']:.3f} ×",
            gap_text(row["gap"]),
        )
        for row in rows
    ]
    columns = (
        "model",
        "map",
        "kind",
        "fits as it is",
        "bytes moved",
        "time",
        "over compiler",
        "gap to bound",
    )
    return Answer(rows, [Table(columns, cells, policy)], more={"policy": policy})
