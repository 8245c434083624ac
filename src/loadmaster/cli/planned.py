"""What commands about a plan read: a model, a machine with the capacity that the plan was made for, its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.model import Model

if TYPE_CHECKING:
    from loadmaster.machine import Machine
    from loadmaster.plan import Plan
    from loadmaster.program import Program

CapacityOption = Annotated[
    list[str] | None,
    typer.Option(
        "--capacity",
        metavar="MEMORY=SIZE",
        help="The capacity that the plan was made for, as 'plan' was given it: hbm=40GiB, or hbm=50%.",
    ),
]


def read_planned(
    model: Model, machine: str | None, capacity: Sequence[str] | None, plan: Path | None
) -> tuple[Program, Machine, Plan]:
    """The program of a plan file, with the ops in it that the plan runs again; its machine; the plan. Without
    a file, the model as it is and a plan that decides nothing."""
    from loadmaster.plan import Plan, load_planned

    chosen = model.machine(machine)
    program = model.load(chosen)
    chosen = sized_machine(chosen, model, program, capacity)
    if plan is None:
        return program, chosen, Plan()
    about, decided = load_planned(plan, program, chosen)
    return about, chosen, decided


def sized_machine(
    machine: Machine, model: Model, program: Program, capacity: Sequence[str] | None
) -> Machine:
    """The machine with these capacities, in bytes or as shares of what the model's program needs."""
    from loadmaster.planner.capacity import has_shares, kernel_room, parse_capacity, with_bytes, with_shares
    from loadmaster.program.measured_costs import read_costs

    sizes = parse_capacity(capacity or ())
    machine = with_bytes(machine, sizes)
    if not has_shares(sizes):
        return machine
    measured = None if model.costs is None else read_costs(model.costs)
    room = kernel_room(program.n_ops, measured, model.spec.captured_for(machine))
    return with_shares(machine, sizes, program, room.needed)
