"""Room: what a compiler leaves on the table as memories grow and shrink. No training is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadmaster.machine.machine import Machine
from loadmaster.problems.mapping import Mapping
from loadmaster.program.program import Program
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, solve

FACTORS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 12.0)


@dataclass(frozen=True)
class Room:
    """One scaled machine; times in picoseconds."""

    factor: float
    compiler_ps: int
    density_ps: int
    best_ps: int
    bound_ps: int

    @property
    def compiler(self) -> float:
        """compiler / bound: the largest speed-up that anybody could show."""
        return self.compiler_ps / self.bound_ps

    @property
    def density(self) -> float:
        return self.density_ps / self.bound_ps

    @property
    def best(self) -> float:
        """1 where the optimum is proven; else the best map and the bound leave this open."""
        return self.best_ps / self.bound_ps


def scaled(machine: Machine, factor: float) -> Machine:
    """The machine with other capacities, but for the slowest memory, which holds everything."""
    for number in machine.reach[0][:-1]:
        memory = machine.memories[number]
        machine = machine.with_capacity(memory.name, max(1, round(memory.capacity * factor)))
    return machine


def room(
    program: Program, machine: Machine, factors: Sequence[float] = FACTORS, seconds: float = 60.0
) -> Iterator[Room]:
    """One row per factor; the exact solver gets so many seconds for each."""
    for factor in factors:
        problem = Mapping(program, scaled(machine, factor))
        density = solve(make_solver("mapping", "density"), problem, Budget())
        exact = solve(make_solver("mapping", "exact"), problem, Budget(seconds=seconds))
        assert density.value is not None  # everything in the slowest memory is always legal
        known = [density.value, problem.compiler_ps, *([] if exact.value is None else [exact.value])]
        yield Room(factor, problem.compiler_ps, density.value, min(known), exact.bound.value)
