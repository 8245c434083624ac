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
    best: list[_Times] = []
    for number, device in enumerate(machine.devices):
        flops = compute[:, number]
        # An op of the cost table has its whole time there: no launch, and no wait for memory.
        computed = named[:, number] == 0
        memory = np.where(computed, _memory_times(program, machine, number), 0)
        launch = np.where(computed, device.launch, 0)
        if max(int(flops.max(initial=0)), int(memory.max(initial=0)), device.launch) > _SMALL:
            flops = flops.astype(object)  # Python's integers: sums and products may pass 64 bits
        small, large = np.minimum(flops, memory), np.maximum(flops, memory)
        body = large + -((-small * machine.rules.overlap) // 10**6)
        parts = [flops, memory, launch, np.maximum(1, launch + body)]
        best = [np.minimum(*each) for each in zip(best, parts, strict=True)] if best else parts
    repeat = program.op_repeat * real
    sums = [-(-_sum_of_products(times, repeat) // len(machine.devices)) for times in best]
    return TimeBounds(*sums)


_Times = npt.NDArray[np.int64] | npt.NDArray[np.object_]
_SMALL = 2**42
"""Picoseconds, four seconds: times of one op up to it can be added, and multiplied by a share in parts per million."""


def _sum_of_products(times: _Times, repeat: Int64) -> int:
    """Exact; in 64 bits where it fits."""
    most = int(times.max(initial=0)) * int(repeat.max(initial=0))
    if times.dtype == object or most * len(times) >= 2**63:
        return int((times.astype(object) * repeat.astype(object)).sum())
    return int((times * repeat).sum())


def _memory_times(program: Program, machine: Machine, device: int) -> _Times:
    """[n] how long each op's accesses take at best on a device."""
    reach = [machine.memories[number] for number in machine.reach[device]]
    home = reach[-1]
    sides = ((program.read_op, program.read_bytes, "read"), (program.write_op, program.write_bytes, "write"))
    if machine.rules.ports == "parallel":
        # At best all memories share the bytes of an op and finish together.
        speed = sum(max(memory.read, memory.write) for memory in reach)
        moved = program.op_other_bytes.copy()
        for op, size, _ in sides:
            np.add.at(moved, op, size)
        return _times(moved, speed)
    latency, other = min(memory.latency for memory in reach), program.op_other_bytes
    each = [_times(size, max(getattr(memory, side) for memory in reach)) for _, size, side in sides]
    elsewhere = _times(other, home.read)
    longest = max(int(times.max(initial=0)) for times in (*each, elsewhere)) + latency + home.latency
    fits = longest * (len(each[0]) + len(each[1]) + 1) < 2**62
    total = np.zeros(program.n_ops, dtype=np.int64 if fits else object)
    for (op, size, _), times in zip(sides, each, strict=True):
        np.add.at(total, op, np.where(size > 0, times.astype(total.dtype) + latency, 0))
    return total + np.where(other > 0, elsewhere.astype(total.dtype) + home.latency, 0)


def _times(amount: Int64, rate: int) -> Int64:
    return _core.ceil_times(np.ascontiguousarray(amount), np.full(len(amount), rate, dtype=np.int64))
