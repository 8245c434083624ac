"""Steps, transfers and memory as a CP-SAT model. Every plan that fits is one of its solutions, with
starts of its own, so that the least makespan is a bound of them all; a plan may wait on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.problems.graph import GraphOptimization
from loadmaster.program.hazards import places
from loadmaster.program.program import TensorKind
from loadmaster.solvers.exact.graph_units import UNABLE, Moving, Units

MOST_STEPS_WITH_MEMORY = 60
"""Of larger graphs only what is held for ever counts."""
_PICOSECONDS = 10**12
_LARGEST = 2**42
"""Times above are divided: rounded down, which keeps the bound a bound."""


class GraphModel:
    """Variables and constraints; `most`: a time that some plan is known to keep, or None."""

    def __init__(
        self, cp_model: Any, problem: GraphOptimization, units: Units, most: int | None, memory: bool
    ) -> None:
        self.problem, self.units = problem, units
        self.model = cp_model.CpModel()
        machine = problem.machine
        self.devices = range(problem.devices)
        self.homes = sorted({machine.home[d] for d in self.devices})
        self.transfer_ps = {moving.root: self._transfers(moving) for moving in units.tensors}
        horizon = most if most is not None else self._horizon()
        self.unit = max(1, -(-horizon // _LARGEST))  # nothing may take any time
        self.horizon = horizon // self.unit
        self.end = self.model.new_int_var(0, self.horizon, "end")
        self._choose()
        self._steps()
        self.sent: dict[tuple[int, int, int], tuple[Any, Any, Any]] = {}
        """(root, from home, to home) -> its literal, start and end."""
        self._move()
        self._hold_for_ever()
        if memory and units.steps <= MOST_STEPS_WITH_MEMORY:
            self._hold_results()
        self.model.minimize(self.end)

    def _transfers(self, moving: Moving) -> dict[tuple[int, int], int]:
        """(from, to) -> ps, for pairs of memories with a link."""
        machine, bytes_ = self.problem.machine, int(self.problem.program.storage_bytes[moving.root])
        index = {memory.name: number for number, memory in enumerate(machine.memories)}
        found = {}
        for link in machine.links:
            once = max(1, link.latency - (-bytes_ * _PICOSECONDS // link.bandwidth))
            found[index[link.source], index[link.target]] = once * moving.repeat
        return found

    def _horizon(self) -> int:
        """All steps and all transfers one after another, on the slowest."""
        able = np.where(self.units.cost < UNABLE, self.units.cost, 0).max(axis=1)
        total = sum(int(cost) for cost in able)
        for of in self.transfer_ps.values():
            total += max(of.values(), default=0) * len(self.homes)
        return total

    def _choose(self) -> None:
        """Where each choice is: a literal for every device, and for every memory."""
        model, machine = self.model, self.problem.machine
        self.on: list[list[Any]] = []
        self.at: list[dict[int, Any]] = []
        for given in self.units.device:
            row = [model.new_bool_var("") for _ in self.devices]
            model.add_exactly_one(row)
            if given >= 0:
                model.add(row[given] == 1)
            self.on.append(row)
            memories: dict[int, Any] = {}
            for home in self.homes:
                near = [row[d] for d in self.devices if machine.home[d] == home]
                memories[home] = near[0] if len(near) == 1 else sum(near)
            self.at.append(memories)

    def _steps(self) -> None:
        model, units = self.model, self.units
        self.start, self.stop = [], []
        by_device: list[list[Any]] = [[] for _ in self.devices]
        work: list[list[Any]] = [[] for _ in self.devices]
        for step in range(units.steps):
            start = model.new_int_var(0, self.horizon, "")
            stop = model.new_int_var(0, self.horizon, "")
            model.add(stop <= self.end)
            on, lengths = self.on[units.choice[step]], []
            for d in self.devices:
                cost = int(units.cost[step, d])
                if cost >= UNABLE:
                    model.add(on[d] == 0)
                    continue
                length = cost // self.unit
                lengths.append(length * on[d])
                work[d].append(length * on[d])
                by_device[d].append(model.new_optional_fixed_size_interval_var(start, length, on[d], ""))
            model.add(stop == start + sum(lengths))
            self.start.append(start)
            self.stop.append(stop)
        for user, writer in units.waits:
            model.add(self.start[writer] >= self.stop[user])
        for d in self.devices:
            model.add_no_overlap(by_device[d])
            if work[d]:
                model.add(sum(work[d]) <= self.end)

    def _move(self) -> None:
        """A tensor is sent once to each memory from which somebody else reads it."""
        model, units, machine = self.model, self.units, self.problem.machine
        engines: dict[str, list[Any]] = {}
        index = {memory.name: number for number, memory in enumerate(machine.memories)}
        held = {(index[link.source], index[link.target]): link.engines for link in machine.links}
        for moving in units.tensors:
            if moving.writer >= 0:
                for reader in moving.readers:
                    model.add(self.start[reader] >= self.stop[moving.writer])
            away = sorted({units.choice[r] for r in moving.readers} - {moving.home})
            if moving.home < 0 or not away:
                continue
            for to in self.homes:
                for source in self.homes:
                    if source == to:
                        continue
                    here = self.at[moving.home][source]
                    length = self.transfer_ps[moving.root].get((source, to))
                    if length is None:  # no way: not both
                        for choice in away:
                            model.add(here + self.at[choice][to] <= 1)
                        continue
                    length //= self.unit
                    sent = model.new_bool_var("")
                    start = model.new_int_var(0, self.horizon, "")
                    for choice in away:
                        model.add(sent >= here + self.at[choice][to] - 1)
                    model.add(sent <= here)
                    interval = model.new_optional_fixed_size_interval_var(start, length, sent, "")
                    for engine in held[source, to]:
                        engines.setdefault(engine, []).append(interval)
                    if moving.writer >= 0:
                        model.add(start >= self.stop[moving.writer]).only_enforce_if(sent)
                    self.sent[moving.root, source, to] = (sent, start, start + length)
                    for reader in moving.readers:
                        if units.choice[reader] != moving.home:
                            self._when(
                                sent, self.at[units.choice[reader]][to], self.start[reader] >= start + length
                            )
        for intervals in engines.values():
            model.add_no_overlap(intervals)

    def _when(self, a: Any, b: Any, constraint: Any) -> None:
        """If both: `b` may be a sum of literals, of which at most one is true."""
        both = self.model.new_bool_var("")
        self.model.add(both >= a + b - 1)
        self.model.add(constraint).only_enforce_if(both)

    def _hold_for_ever(self) -> None:
        machine = self.problem.machine
        for home in self.homes:
            held = [_aligned(size, machine, home) * self.at[choice][home] for choice, size in self.units.kept]
            if held:
                self.model.add(sum(held) <= machine.memories[home].capacity)

    def _hold_results(self) -> None:
        """Results from the start of their step to the end of their last use, in their own memory
        and as copies in others. Tensors that share a place, and inputs, are left out."""
        model, units, program = self.model, self.units, self.problem.program
        machine, place = self.problem.machine, places(program)
        alone = (
            np.bincount(
                place[program.tensor_alias == np.arange(program.n_tensors)], minlength=program.n_tensors
            )
            == 1
        )
        rooms: dict[int, list[tuple[Any, int]]] = {home: [] for home in self.homes}
        for choice, size in units.kept:
            for home in self.homes:
                whole = model.new_optional_fixed_size_interval_var(
                    0, self.horizon, self._literal(self.at[choice][home]), ""
                )
                rooms[home].append((whole, _aligned(size, machine, home)))
        for moving in units.tensors:
            if not alone[moving.root] or moving.writer < 0 or moving.home < 0:
                continue
            size = int(program.storage_bytes[moving.root])
            kept = program.tensor_kind[moving.root] == TensorKind.OUTPUT
            for home in self.homes:
                here = self._literal(self.at[moving.home][home])
                last = model.new_int_var(0, self.horizon, "")
                model.add(last >= self.stop[moving.writer])
                if kept:
                    model.add(last >= self.end).only_enforce_if(here)
                for reader in moving.readers:
                    self._when(here, self.at[units.choice[reader]][home], last >= self.stop[reader])
                for to in self.homes:
                    if (moving.root, home, to) in self.sent:
                        sent, _, end = self.sent[moving.root, home, to]
                        model.add(last >= end).only_enforce_if(sent)
                        copy = self._copy(moving, sent, home, to)
                        rooms[to].append((copy, _aligned(size, machine, to)))
                span = self._span(self.start[moving.writer], last, here)
                rooms[home].append((span, _aligned(size, machine, home)))
        for home, held in rooms.items():
            room = machine.memories[home].capacity
            model.add_cumulative([span for span, _ in held], [size for _, size in held], room)

    def _copy(self, moving: Moving, sent: Any, home: int, to: int) -> Any:
        _, start, end = self.sent[moving.root, home, to]
        last = self.model.new_int_var(0, self.horizon, "")
        self.model.add(last >= end).only_enforce_if(sent)
        for reader in moving.readers:
            self._when(sent, self.at[self.units.choice[reader]][to], last >= self.stop[reader])
        return self._span(start, last, sent)

    def _span(self, start: Any, last: Any, present: Any) -> Any:
        length = self.model.new_int_var(0, self.horizon, "")
        return self.model.new_optional_interval_var(start, length, last, present, "")

    def _literal(self, of: Any) -> Any:
        """A sum of literals of which at most one is true, as a literal."""
        literal = self.model.new_bool_var("")
        self.model.add(literal == of)
        return literal


def _aligned(size: int, machine: Machine, home: int) -> int:
    alignment = machine.memories[home].alignment
    return -(-size // alignment) * alignment
