"""Ops that are pinned to a device: they and what must be with them are groups of their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.errors import Refused
from loadmaster.machine.machine import Machine
from loadmaster.problems.pins import BadPin, Pins
from loadmaster.program.program import Program

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def pinned_components(
    program: Program, machine: Machine, component: Int32, pins: Pins
) -> tuple[Int32, dict[int, int]]:
    """Hard components [n_ops] in which every pinned op has one, and component -> device.

    A component decides for the step that it is fused into, so that a pinned op stays where it is
    whatever it is fused with.
    """
    if pins.memory:
        name = program.tensor_name[next(iter(pins.memory))]
        raise BadPin(
            f"tensor '{name}' can't be pinned here: a tensor lives with the op that makes it",
            object=name,
            remedy="give --pin-op OP=DEVICE",
        )
    component = component.copy()
    chosen: dict[int, int] = {}
    by: dict[int, int] = {}
    for op, device in sorted(pins.device.items()):
        name = program.op_name[op]
        if program.op_view[op]:
            raise BadPin(
                f"op '{name}' only shows another tensor and runs nowhere",
                object=name,
                remedy="pin the op that makes the tensor",
            )
        if component[op] < 0:
            component[op] = op
        own = int(component[op])
        if chosen.setdefault(own, device) != device:
            first, other = program.op_name[by[own]], machine.devices[chosen[own]].name
            raise Refused(
                f"'{first}' is pinned to '{other}' and '{name}' to '{machine.devices[device].name}', and "
                "they must be on one device",
                object=name,
                number=device,
                remedy="pin both to one device",
            )
        by.setdefault(own, op)
    return component, chosen


def pinned_groups(group: Int32, component: Int32, chosen: dict[int, int]) -> tuple[Int32, Int32]:
    """(groups [n_ops], numbered by first appearance, with pinned components apart; device [G] or -1)."""
    apart = group.astype(np.int64)
    for number, own in enumerate(chosen):
        apart[component == own] = int(group.max(initial=-1)) + 1 + number
    real = np.flatnonzero(group >= 0)
    _, first, code = np.unique(apart[real], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    groups = np.full(len(group), -1, dtype=np.int32)
    groups[real] = rank[code]
    device = np.full(len(first), -1, dtype=np.int32)
    for own, where in chosen.items():
        device[groups[component == own]] = where
    return groups, device


def check_runs(program: Program, machine: Machine, node_op: Int32, durations: Int64, pins: Pins) -> None:
    """Raise if a device can't run what is pinned to it."""
    for op, device in pins.device.items():
        if durations[int(np.searchsorted(node_op, op)), device] < 0:
            name, where = program.op_name[op], machine.devices[device].name
            raise Refused(
                f"'{where}' can't run op '{name}' ({program.op_kind[op]})",
                object=name,
                number=device,
                remedy="pin it to another device",
            )
