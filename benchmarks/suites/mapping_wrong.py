"""A machine that is not as described: solvers see the description, values come from the true machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.arrays import Float64, Int8, Int64
from loadmaster.machine import Machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program import Program
from loadmaster.search.problem import Bound


def misdescribe(machine: Machine, deviation: float, seed: int) -> Machine:
    """The machine with every rate and every bandwidth off by a factor of its own, e^N(0, deviation).
    Capacities, latencies and the order of the memories are right."""
    rng = np.random.default_rng([seed, 22])

    def off(rate: int) -> int:
        return max(1, int(rate * np.exp(deviation * rng.normal())))

    devices = tuple(
        replace(
            device,
            rates={
                unit: {kind: off(rate) for kind, rate in by_type.items()}
                for unit, by_type in device.rates.items()
            },
        )
        for device in machine.devices
    )
    memories = tuple(
        replace(memory, read=off(memory.read), write=off(memory.write)) for memory in machine.memories
    )
    return replace(machine, devices=devices, memories=memories, text="")


class Misdescribed(Mapping):
    """A Mapping whose times are those of `truth`, the same program on the machine as it is; without one it
    is itself the truth. What fits is the same in both."""

    def __init__(
        self, program: Program, machine: Machine, *, truth: Mapping | None = None, **options: Any
    ) -> None:
        self.truth = truth
        super().__init__(program, machine, **options)

    def _rectified(self, maps: Int8, threads: int | None = None) -> tuple[Int64, Float64, Int8]:
        total, epsilon, rectified = super()._rectified(maps, threads)
        if self.truth is not None:
            total = self.truth._rectified(rectified, threads)[0]
        return total, epsilon, rectified

    def times(self, decisions: Int8) -> Int64:
        return super().times(decisions) if self.truth is None else self.truth.times(decisions)

    def bound(self) -> Bound:
        return super().bound() if self.truth is None or not self.repeatable else self.truth.bound()
