"""What commands about a plan read: a model, a machine with the capacity that the plan was made for, its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.answer import Usage
from loadmaster.cli.model import Model, divided

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


def planned(
    model: Model, machine: str | None, capacity: Sequence[str] | None, plan: Path | None
) -> tuple[Program, Machine, Plan]:
    """The program of a plan file, with the ops in it that the plan runs again; its machine; the plan. Without
    a file, the model as it is and a plan that decides nothing."""
    from loadmaster.plan import Plan, load_planned

    chosen = model.machine(machine)
    program = model.load(chosen)
    chosen = sized(chosen, model, program, capacity)
    if plan is None:
        return program, chosen, Plan()
    about, decided = load_planned(plan, program, chosen)
    return about, chosen, decided


def sized(machine: Machine, model: Model, program: Program, capacity: Sequence[str] | None) -> Machine:
    """The machine with these capacities, in bytes or as shares of what the model's program needs."""
    from loadmaster.machine.presets import with_capacities

    sizes, shares = divided(capacity or ())
    machine = with_capacities(machine, sizes)
    if not shares:
        return machine
    from loadmaster.cli.kernel_room import kernel_room
    from loadmaster.program.measured_costs import read_costs

    measured = None if model.costs is None else read_costs(model.costs)
    room = kernel_room(program.n_ops, measured, model.captured_for(machine))
    return with_shares(machine, program, shares, room.needed)


def with_shares(machine: Machine, program: Program, shares: Sequence[str], reserve: int) -> Machine:
    """The machine with capacities such as 'hbm=50%' of what a program needs, `reserve` for kernels included."""
    from loadmaster.machine.presets import with_capacities

    return with_capacities(machine, [_share(program, machine, text, reserve) for text in shares])


def _share(program: Program, machine: Machine, text: str, reserve: int) -> str:
    """'hbm=50%' as bytes."""
    from loadmaster.offload.model import offload_model
    from loadmaster.units import UNLIMITED

    name, _, share = text.removesuffix("%").partition("=")
    fast = machine.memories[machine.reach[0][0]].name
    try:
        part = float(share) / 100
    except ValueError:
        part = -1.0
    if name != fast or not 0 < part <= 100:
        raise Usage(
            f"--capacity '{text}' is no share of '{fast}'",
            object="--capacity",
            number=text,
            remedy=f"write {fast}=50%",
        )
    if program.repeats is not None:
        raise Usage(
            f"ops of '{program.name}' run again: shares are of what it needs without that",
            object="--capacity",
            number=text,
            remedy="give the capacity in bytes, or the model itself",
        )
    roomy = machine.with_capacity(fast, UNLIMITED)
    return f"{fast}={int((offload_model(program, roomy).needed + reserve) * part)}"
