"""Machines that differ in how fast they are alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.machine.machine import Machine


def other_rates(machine: Machine, rng: np.random.Generator) -> Machine:
    """The same capacities; everything that says how fast is another."""

    def scaled(rate: int) -> int:
        return max(1, int(rate * np.exp(rng.normal())))

    memories = tuple(
        replace(memory, read=scaled(memory.read), write=scaled(memory.write), latency=int(rng.integers(9)))
        for memory in machine.memories
    )
    device = machine.devices[0]
    rates = {
        unit: {kind: scaled(rate) for kind, rate in by_type.items()} for unit, by_type in device.rates.items()
    }
    device = replace(device, rates=rates, launch=int(rng.integers(999)))
    rules = replace(machine.rules, ports=str(rng.choice(["serial", "parallel"])), overlap=333_333)
    return replace(machine, devices=(device,), memories=memories, rules=rules, text="")
