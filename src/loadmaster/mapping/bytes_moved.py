"""Bytes moved as an objective: a machine on which only the slowest memory takes time.

A pass takes `MOVED_BYTE_PS` picoseconds for each byte that the slowest memory of its device reads or
writes, and next to nothing else: a plan that is fast there moves few bytes, and a bound of its time
is a bound of the bytes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine, Memory, Rules
from loadmaster.plan.plan import HOME
from loadmaster.program.program import Program
from loadmaster.simulate.costs import compute_times
from loadmaster.units import MOVED_BYTE_PS, PICOSECONDS

Int64 = npt.NDArray[np.int64]
_AT_ONCE = 2**62
BYTES = "/bytes"
"""Behind the name of a machine of `bytes_machine`."""


def bytes_machine(machine: Machine) -> Machine:
    """The same memories and capacities; only the home memory of the first device has a speed."""

    def memory(number: int, given: Memory) -> Memory:
        rate = PICOSECONDS // MOVED_BYTE_PS if number == machine.home[0] else _AT_ONCE
        return replace(given, read=rate, write=rate, latency=0)

    rates = {kind: {"*": _AT_ONCE} for kind in ("matrix", "vector", "transcendental")}
    return replace(
        machine,
        name=f"{machine.name}{BYTES}",
        text="",
        rules=Rules(copies=machine.rules.copies),
        memories=tuple(memory(number, given) for number, given in enumerate(machine.memories)),
        devices=tuple(replace(device, rates=rates, launch=0) for device in machine.devices),
    )


def counts_bytes(machine: Machine) -> bool:
    """Whether it is a machine of `bytes_machine`: times on it stand for bytes."""
    rate = machine.memories[machine.home[0]].read
    at_once = all(
        set(rates.values()) == {_AT_ONCE} for device in machine.devices for rates in device.rates.values()
    )
    return rate == PICOSECONDS // MOVED_BYTE_PS and at_once


def noise_ps(program: Program, machine: Machine) -> int:
    """At most so many picoseconds of a pass on this machine of `bytes_machine` are no bytes: what
    ops compute at its rates, which are high but not infinite, and what is rounded up."""
    compute = compute_times(program, machine)[0].max(axis=1, initial=0) + 2
    noise = int((compute.astype(object) * program.op_repeat).sum())
    for op, size in ((program.read_op, program.read_bytes), (program.write_op, program.write_bytes)):
        noise += int(((1 + size // (_AT_ONCE // PICOSECONDS)) * program.op_repeat[op]).sum())
    return noise


def bound_bytes(program: Program, machine: Machine, picoseconds: int) -> int:
    """No plan moves fewer bytes than this, if none takes less than so many picoseconds on this
    machine of `bytes_machine`."""
    return max(0, -(-(picoseconds - noise_ps(program, machine)) // MOVED_BYTE_PS))


def moved_bytes(program: Program, machine: Machine, memory: Int64) -> int:
    """Bytes that the slowest memory reads and writes if each root is in `memory[T]` for life (HOME: there)."""
    home, moved = machine.home[0], 0
    at_home = (memory == HOME) | (memory == home)
    for op, tensor, size in (
        (program.read_op, program.read_tensor, program.read_bytes),
        (program.write_op, program.write_tensor, program.write_bytes),
    ):
        counts = at_home[program.tensor_alias[tensor]] & ~program.op_view[op]
        moved += int((size * program.op_repeat[op])[counts].sum())
    return moved + int((program.op_other_bytes * program.op_repeat)[~program.op_view].sum())
