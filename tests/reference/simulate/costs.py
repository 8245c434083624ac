"""How long a step takes, as plainly as it can be said (docs/simulation.md, section 3).

Part of the slow reference: plain integers, one function per line of the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Device, Machine
from loadmaster.program.op_costs import OTHER_TRANSCENDENTAL, VECTOR_FLOPS
from loadmaster.program.program import CANNOT_RUN, COMPUTED, FLOP_CLASSES, Program
from loadmaster.units import PICOSECONDS


@dataclass(frozen=True)
class Access:
    """A step reads or writes some bytes of a tensor (its root) in one memory."""

    tensor: int
    bytes: int
    memory: int
    by_residency: bool
    """The plan has a residency for it; else it is in the home because nothing else is said."""
    is_write: bool


def ceil_divide(amount: int, divisor: int) -> int:
    return (amount + divisor - 1) // divisor


def ceil_time(amount: int, rate: int) -> int:
    """Picoseconds for `amount` at `rate` per second, rounded up."""
    return ceil_divide(amount * PICOSECONDS, rate)


def rate_for(rates: Mapping[str, int], dtype: str) -> int:
    """The rate of the element type, else that of '*', else the slowest listed."""
    if dtype in rates:
        return rates[dtype]
    if "*" in rates:
        return rates["*"]
    return min(rates.values())


def compute_time(program: Program, device: Device, op: int) -> int:
    """The time of an op's flops on a device: units work side by side, classes in a unit do not."""
    kind, dtype = program.op_kind[op], program.op_dtype[op]
    matrix, vector, transcendental = (int(flops) for flops in program.op_flops[op])
    vector_rate = rate_for(device.rates["vector"], dtype)
    time_of_class = {"matrix": ceil_time(matrix, rate_for(device.rates["matrix"], dtype))}
    if device.rates.get("transcendental"):
        rate = rate_for(device.rates["transcendental"], dtype)
        time_of_class["vector"] = ceil_time(vector, vector_rate)
        time_of_class["transcendental"] = ceil_time(transcendental, rate)
    else:
        flops_each = VECTOR_FLOPS.get(kind, 1)
        flops_per_evaluation = VECTOR_FLOPS.get(kind, OTHER_TRANSCENDENTAL)
        time_of_class["vector"] = ceil_time(vector * flops_each, vector_rate)
        time_of_class["transcendental"] = ceil_time(transcendental * flops_per_evaluation, vector_rate)
    assert set(time_of_class) == set(FLOP_CLASSES)
    return max(sum(time_of_class[name] for name in unit) for unit in device.units)


def access_time(machine: Machine, access: Access) -> int:
    if access.bytes == 0:
        return 0
    memory = machine.memories[access.memory]
    rate = memory.write if access.is_write else memory.read
    return ceil_time(access.bytes, rate) + memory.latency


def memory_time(machine: Machine, accesses: list[Access]) -> int:
    """The time of several accesses, by the machine's port rule."""
    if machine.rules.ports == "serial":
        return sum(access_time(machine, access) for access in accesses)
    time_of_memory = {access.memory: 0 for access in accesses}
    for access in accesses:
        time_of_memory[access.memory] += access_time(machine, access)
    return max(time_of_memory.values(), default=0)


def named_cost(program: Program, machine: Machine, op: int, device: int) -> int | None:
    """What the program's cost table says of an op on a device, or None."""
    if program.costs is None:
        return None
    columns = program.costs.shape[1]
    if columns != len(machine.devices):
        raise BadPlan(
            f"the cost table of program '{program.name}' has {columns} columns and "
            f"machine '{machine.name}' has {len(machine.devices)} devices",
            object=program.name,
            number=columns,
            remedy="give one column per device",
        )
    cost = int(program.costs[op, device])
    if cost == CANNOT_RUN:
        raise BadPlan(
            f"op '{program.op_name[op]}' can't run on device '{machine.devices[device].name}'",
            object=program.op_name[op],
            number=device,
            remedy="put it on a device for which the cost table has a time",
        )
    return None if cost == COMPUTED else cost


def other_accesses(program: Program, machine: Machine, members: list[int], device: int) -> list[Access]:
    """The bytes that the members move beyond their reads and writes: reads of the home."""
    home = machine.home[device]
    return [Access(-1, int(program.op_other_bytes[op]), home, False, False) for op in members]


def step_duration(
    program: Program, machine: Machine, members: list[int], device: int, accesses: list[Access]
) -> int:
    """One run of a step, without its repeat count."""
    costs = [named_cost(program, machine, op, device) for op in members]
    compute = 0
    for op, cost in zip(members, costs, strict=True):
        compute += compute_time(program, machine.devices[device], op) if cost is None else cost
    if all(cost is not None for cost in costs):
        first = machine.reach[device][0]
        away = memory_time(machine, [access for access in accesses if access.memory != first])
        return max(1, compute, away)
    others = other_accesses(program, machine, members, device)
    memory = memory_time(machine, accesses + others)
    overlap = ceil_divide(machine.rules.overlap * min(compute, memory), 10**6)
    return max(1, machine.devices[device].launch + max(compute, memory) + overlap)


def slow_time(
    program: Program, machine: Machine, members: list[int], device: int, accesses: list[Access]
) -> int:
    """How long one run of a step keeps its device's home memory busy."""
    everything = accesses + other_accesses(program, machine, members, device)
    at_home = [access for access in everything if access.memory == machine.home[device]]
    return sum(access_time(machine, access) for access in at_home)
