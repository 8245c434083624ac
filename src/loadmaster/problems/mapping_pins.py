"""Pins of the Mapping problem: entries that are decided already, and what to say of bad ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from loadmaster.errors import Refused
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import NO_OFFSET
from loadmaster.plan.static import lifetimes_in_loops
from loadmaster.problems.entries import Entries
from loadmaster.problems.pins import BadPin, Pins
from loadmaster.program.hazards import places
from loadmaster.program.program import Program

Int8 = npt.NDArray[np.int8]
OPEN = -1
"""As the memory of an entry: it is for solvers to decide."""


def pinned_entries(program: Program, machine: Machine, entries: Entries, pins: Pins) -> Int8:
    """[2N] the memory (0: fastest) that each entry is pinned to, or OPEN.

    An entry holds all results or all weights of a node: a pin of one of them is a pin of all.
    """
    reach, found = machine.reach[0], np.full(2 * entries.nodes, OPEN, dtype=np.int8)
    by: dict[int, int] = {}
    for op, device in pins.device.items():
        if device != 0:
            raise BadPin(
                f"op '{program.op_name[op]}' can't be pinned to '{machine.devices[device].name}': here all "
                f"ops run on '{machine.devices[0].name}'",
                object=program.op_name[op],
                remedy="give --problem graph",
            )
    for tensor, (memory, _) in pins.memory.items():
        name, there = program.tensor_name[tensor], machine.memories[memory].name
        entry = int(entries.of_tensor[tensor])
        if entry < 0 or memory not in reach:
            if memory == machine.home[0]:
                continue  # that is where it stays
            why = (
                f"'{machine.devices[0].name}' does not reach it"
                if entry >= 0
                else ("inputs and what may not move stay in the slowest memory")
            )
            raise BadPin(
                f"tensor '{name}' can't be pinned to '{there}': {why}",
                object=name,
                number=there,
                remedy=f"pin it to '{machine.memories[machine.home[0]].name}'",
            )
        wanted = reach.index(memory)
        if found[entry] not in (OPEN, wanted):
            other = program.tensor_name[by[entry]]
            raise Refused(
                f"'{other}' and '{name}' are pinned to two memories and are decided together",
                object=name,
                number=there,
                remedy="pin both to one memory",
            )
        found[entry], by[entry] = wanted, tensor
    return found


def check_offsets(program: Program, machine: Machine, pins: Pins) -> None:
    """Raise with a pin beyond the end of its memory, or two that want one byte at one time."""
    first, last = lifetimes_in_loops(program)
    place = places(program)
    fixed = [
        (tensor, memory, offset, offset + int(program.storage_bytes[tensor]))
        for tensor, (memory, offset) in pins.memory.items()
        if offset != NO_OFFSET and last[tensor] >= first[tensor]
    ]
    for tensor, memory, _, end in fixed:
        name, there = program.tensor_name[tensor], machine.memories[memory]
        if end > there.capacity:
            raise Refused(
                f"where '{name}' is pinned it ends at {end:,}, and '{there.name}' has {there.capacity:,} bytes",
                object=name,
                number=end,
                remedy="pin it lower",
            )
    for (a, memory, low, high), (b, beside, floor, top) in combinations(fixed, 2):
        at = max(int(first[a]), int(first[b]))
        together = at <= min(int(last[a]), int(last[b])) and place[a] != place[b]
        if memory == beside and together and low < top and floor < high:
            one, other = program.tensor_name[a], program.tensor_name[b]
            raise Refused(
                f"the pins of '{one}' and '{other}' overlap in '{machine.memories[memory].name}': both are "
                f"alive at op {at} '{program.op_name[at]}'",
                object=one,
                number=max(low, floor),
                remedy="pin one of them elsewhere",
            )


def taken_first(entries: Entries, pinned: Int8) -> Entries:
    """The entries with those that are pinned at the head of the rectifier's order: room is theirs."""
    order = entries.order[np.argsort(pinned[entries.order] == OPEN, kind="stable")]
    return replace(entries, order=order)


def check_room(
    program: Program,
    machine: Machine,
    entries: Entries,
    pinned: Int8,
    pins: Pins,
    moved: Callable[[Int8], float],
) -> None:
    """Raise with a set of pins that do not fit together, and would without any one of them."""
    if moved(pinned) == 0:
        return
    kept = pinned.copy()
    for entry in np.flatnonzero(pinned != OPEN).tolist():
        without = kept.copy()
        without[entry] = OPEN
        if moved(without) > 0:
            kept = without
    blamed = np.flatnonzero(kept != OPEN)
    memory = machine.memories[machine.reach[0][int(kept[blamed[0]])]]
    names = [program.tensor_name[t] for t in pins.memory if entries.of_tensor[t] in blamed]
    raise Refused(
        f"the pins of {', '.join(repr(name) for name in names)} do not fit '{memory.name}' together, which "
        f"has {memory.capacity:,} bytes",
        object=names[0],
        number=memory.capacity,
        remedy="leave one of them out",
    )
