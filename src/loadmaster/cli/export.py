"""`loadmaster export`: give a plan to a runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.files import OverwriteOption, check_free, writing
from loadmaster.cli.model import MachineOption, Model, takes_model

TARGETS = ("ort",)


@takes_model
def command(
    model: Model,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    machine: MachineOption = None,
    to: Annotated[
        str, typer.Option("--to", help="ort: an ONNX model in the plan's order.")
    ] = "ort",
    overwrite: OverwriteOption = False,
) -> Answer:
    """Write a model so that a runtime follows the plan; the plan is checked first.

    For ONNX Runtime the nodes are written in the plan's order, with a Python file beside that shows
    the settings under which it keeps to it. The machine is the plan's; by default one without limits.

    Example: loadmaster export model.onnx plan.json --out ordered.onnx
    """
    if to not in TARGETS:
        raise Usage(f"there is no target '{to}'", object="--to", number=to,
                    remedy=f"use {' or '.join(TARGETS)}")  # fmt: skip
    check_free(out, overwrite)
    from loadmaster.export.onnx_order import export_onnx_order
    from loadmaster.machine import load_machine
    from loadmaster.plan import load_plan
    from loadmaster.units import UNLIMITED

    chosen = load_machine(machine or f"arena:{UNLIMITED}")
    program = model.load()
    decided = load_plan(plan, program, chosen)
    with writing(out):
        moved = export_onnx_order(model.source, program, chosen, decided, out)
    rows = [{"what": "file", "name": str(out), "moved": moved, "ops": program.n_ops}]
    cells = [("order", "yes"), ("memories, offsets, copies", "no"), ("devices, fusion", "no")]
    settings = out.with_suffix(".py")
    return Answer(rows, [Table(("of the plan", "expressed"), cells, str(out)),
                         f"checked: ok, {moved:,} nodes moved; run it with the settings in {settings}"])  # fmt: skip
