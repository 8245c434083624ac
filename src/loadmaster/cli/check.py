"""`loadmaster check`: is a plan sound?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.model import CapacityOption, MachineOption, Model, read_planned, takes_model
from loadmaster.errors import BadPlan, Refused


@takes_model
def command(
    model: Model,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    machine: MachineOption = None,
    capacity: CapacityOption = None,
    most: Annotated[int, typer.Option("--max", min=1, help="How many violations to show.")] = 20,
) -> Answer:
    """Check a plan and its timeline; 'ok', or every violation with its tensor, op and number.

    Example: loadmaster check resnet50 plan.json --machine nnp-i
    """
    from loadmaster.plan.check import check
    from loadmaster.simulate import Timeline, simulate

    program, chosen, decided = read_planned(model, machine, capacity, plan)
    timeline: Timeline | None
    try:
        timeline = simulate(program, chosen, decided)
    except BadPlan:
        timeline = None  # it can't even run; the checker says why
    violations = check(program, chosen, decided, timeline)
    rows: list[dict[str, Any]] = [
        {
            "rule": v.rule,
            "message": v.message,
            "tensor": v.tensor,
            "tensor_name": None if v.tensor is None else program.tensor_name[v.tensor],
            "op": v.op,
            "op_name": None if v.op is None else program.op_name[v.op],
            "number": v.number,
        }
        for v in violations[:most]
    ]
    if not violations:
        return Answer(rows, ["ok"], program.warnings)
    cells = [
        (row["rule"], *(_text(row[key]) for key in ("tensor_name", "op_name", "number", "message")))
        for row in rows
    ]
    error = Refused(
        f"the plan is not sound: {len(violations):,} violations", object=str(plan), number=len(violations)
    )
    blocks: list[str | Table] = [Table(("rule", "tensor", "op", "number", "what is wrong"), cells)]
    if len(violations) > most:
        blocks.append(f"and {len(violations) - most:,} more: see --max")
    return Answer(rows, blocks, program.warnings, error)


def _text(value: object) -> str:
    return "–" if value is None else str(value)
