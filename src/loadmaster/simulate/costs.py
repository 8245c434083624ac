"""What an op costs on a device, before memories come in (docs/simulation.md, section 3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.errors import BadProgram
from loadmaster.machine.machine import Device, Machine
from loadmaster.program.op_costs import OTHER_TRANSCENDENTAL, VECTOR_FLOPS
from loadmaster.program.program import CANNOT_RUN, COMPUTED, FLOP_CLASSES, Program

Int64 = npt.NDArray[np.int64]
_MOST = 2**62 - 1
"""Times stick to it; the sum of two still fits an int64."""


def compute_times(program: Program, machine: Machine) -> tuple[Int64, npt.NDArray[np.int8]]:
    """([n, devices] picoseconds of compute, [n, devices] 1: given by the cost table, 2: can't run)."""
    times = np.empty((program.n_ops, len(machine.devices)), dtype=np.int64)
    columns: dict[int, Int64] = {}
    for number, device in enumerate(machine.devices):
        same = next((i for i in columns if _alike(machine.devices[i], device)), None)
        columns[number] = _on_device(program, device) if same is None else columns[same]
        times[:, number] = columns[number]
    named = np.zeros(times.shape, dtype=np.int8)
    if program.costs is not None:
        if program.costs.shape[1] != len(machine.devices):
            raise BadProgram(
                f"the cost table of '{program.name}' has {program.costs.shape[1]} columns and machine "
                f"'{machine.name}' has {len(machine.devices)} devices",
                object=program.name,
                number=program.costs.shape[1],
                remedy="use the machine it was made for",
            )
        named[program.costs != COMPUTED] = 1
        named[program.costs == CANNOT_RUN] = 2
        times = np.where(named > 0, np.minimum(program.costs, _MOST), times)
    return np.ascontiguousarray(times), named


def _alike(a: Device, b: Device) -> bool:
    return a.rates == b.rates and a.units == b.units


def _on_device(program: Program, device: Device) -> Int64:
    flops = dict(zip(FLOP_CLASSES, program.op_flops.T, strict=True))
    if "transcendental" not in device.rates:
        # Such a device does transcendentals, and divisions, in several vector flops each.
        vector = np.array([VECTOR_FLOPS.get(kind, 1) for kind in program.op_kind.values], dtype=np.int64)
        other = [VECTOR_FLOPS.get(kind, OTHER_TRANSCENDENTAL) for kind in program.op_kind.values]
        code = program.op_kind.codes
        flops["vector"] = _product(flops["vector"], vector[code])
        flops["transcendental"] = _product(flops["transcendental"], np.array(other, dtype=np.int64)[code])
    total = np.zeros(program.n_ops, dtype=np.int64)
    for unit in device.units:
        busy = np.zeros(program.n_ops, dtype=np.int64)
        for kind in unit:
            rates = device.rates.get(kind, device.rates["vector"])
            by_type = [rates.get(t, rates.get("*", min(rates.values()))) for t in program.op_dtype.values]
            rate = np.array(by_type, dtype=np.int64)[program.op_dtype.codes]
            amount = np.ascontiguousarray(flops[kind])
            busy = np.minimum(busy + _core.ceil_times(amount, rate), _MOST)
        total = np.maximum(total, busy)
    return total


def _product(flops: Int64, weight: Int64) -> Int64:
    limit = _MOST // max(1, int(weight.max(initial=1)))
    return np.minimum(flops, limit) * weight
