"""No plan without fusion is faster than this: work that has to be done, whatever is decided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.machine.machine import Machine
from loadmaster.program.program import Program
from loadmaster.simulate.costs import compute_times

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimeBounds:
    """Picoseconds. Each is a lower bound of the time of every plan that fuses nothing."""

    compute: int
    """All flops, on all devices at once."""
    traffic: int
    """All reads and writes, each in the fastest memory of its device, capacity left out."""
    launch: int
    """Starting every op."""
    together: int
    """Op by op, the larger of compute and traffic, plus its launch."""


def time_bounds(program: Program, machine: Machine) -> TimeBounds:
    """Each op on the device that suits it best, all devices always busy, no transfer awaited."""
    compute, named = compute_times(program, machine)
    real = ~program.op_view
    parts = np.empty((4, program.n_ops, len(machine.devices)), dtype=object)
    for number, device in enumerate(machine.devices):
        flops = compute[:, number].astype(object)
        # An op of the cost table has its whole time there: no launch, and no wait for memory.
        computed = named[:, number] == 0
        memory = np.where(computed, _memory_times(program, machine, number), 0)
        launch = np.where(computed, device.launch, 0)
        small, large = np.minimum(flops, memory), np.maximum(flops, memory)
        body = large + -((-small * machine.rules.overlap) // 10**6)
        parts[:, :, number] = flops, memory, launch, np.maximum(1, launch + body)
    best = parts.min(axis=2) * program.op_repeat.astype(object) * real
    sums = [-(-int(total) // len(machine.devices)) for total in best.sum(axis=1)]
    return TimeBounds(*sums)


def _memory_times(program: Program, machine: Machine, device: int) -> npt.NDArray[np.object_]:
    """[n] how long each op's accesses take at best on a device."""
    reach = [machine.memories[number] for number in machine.reach[device]]
    home, total = reach[-1], np.zeros(program.n_ops, dtype=object)
    sides = ((program.read_op, program.read_bytes, "read"), (program.write_op, program.write_bytes, "write"))
    if machine.rules.ports == "parallel":
        # At best all memories share the bytes of an op and finish together.
        speed = sum(max(memory.read, memory.write) for memory in reach)
        moved = program.op_other_bytes.copy()
        for op, size, _ in sides:
            np.add.at(moved, op, size)
        return _times(moved, speed).astype(object)
    for op, size, side in sides:
        latency = min(memory.latency for memory in reach)
        rate = max(getattr(memory, side) for memory in reach)
        np.add.at(total, op, np.where(size > 0, _times(size, rate).astype(object) + latency, 0))
    other = program.op_other_bytes
    return total + np.where(other > 0, _times(other, home.read).astype(object) + home.latency, 0)


def _times(amount: Int64, rate: int) -> Int64:
    return _core.ceil_times(np.ascontiguousarray(amount), np.full(len(amount), rate, dtype=np.int64))
