"""Which problem a program on a machine poses, where the user does not say."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from loadmaster.errors import LoadmasterError, nearest
from loadmaster.machine.machine import Machine
from loadmaster.program.program import Program
from loadmaster.search.pins import BadPin, Pins
from loadmaster.search.problem import Problem
from loadmaster.search.registry import KINDS
from loadmaster.units import UNLIMITED

OBJECTIVES = ("time", "peak-memory", "bytes-moved")


def is_arena(machine: Machine) -> bool:
    """One device, and one memory for all but the weights, which have room without limit elsewhere:
    nothing is to be chosen but offsets."""
    others = [m for m in machine.reach[0] if m != machine.home[0]]
    roomy = all(machine.memories[m].capacity >= UNLIMITED for m in others)
    return len(machine.devices) == 1 and bool(others) and roomy


def problem_kind(machine: Machine, objective: str = "time") -> str:
    """The kind of problem (see `loadmaster.search.registry.KINDS`) that suits a machine."""
    if objective == "peak-memory":
        return "order"
    if len(machine.devices) > 1:
        return "graph"
    if is_arena(machine):
        return "allocation"
    if machine.rules.reach == "first" and objective == "time":
        return "offload"
    # Where copies only use idle bandwidth, moving tensors is what the machine was made for.
    idle = machine.rules.copies == "idle" and objective == "time"
    return "malloc-game" if idle else "mapping"


def pose(
    program: Program,
    machine: Machine,
    objective: str = "time",
    *,
    kind: str | None = None,
    pins: Pins | None = None,
) -> Problem:
    """The problem that a program poses on a machine: where tensors live, when they move, which device
    runs what, in which order, or at which offsets, as suits the machine and the objective ('time' or
    'peak-memory'). `kind` names another one; `pins` fix what is decided already."""
    if objective not in ("time", "peak-memory"):
        raise LoadmasterError(
            f"there is no objective '{objective}' here", object=objective, remedy="use time or peak-memory"
        )
    chosen = kind or problem_kind(machine, objective)
    if chosen == "allocation":
        from loadmaster.allocation.problem import ProgramAllocation

        return ProgramAllocation(program, machine, pins=pins)
    if chosen == "order":
        from loadmaster.order.problem import PeakOrder

        if pins:
            raise BadPin("an order has no pins", object="pins", remedy="leave them out")
        return PeakOrder(program, machine)
    if chosen not in KINDS:
        raise LoadmasterError(
            f"there is no kind of problem '{chosen}'{nearest(chosen, list(KINDS))}",
            object=chosen,
            remedy=f"use {', '.join(KINDS)}",
        )
    module, _, name = KINDS[chosen].partition(":")
    return cast(Problem, getattr(import_module(module), name)(program, machine, pins=pins))
