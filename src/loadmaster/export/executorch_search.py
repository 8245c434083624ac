"""A placement for an ExecuTorch program: one memory for every tensor that its planner sees.

The mapping problem decides the results of an op together; here each is decided alone, and the
bytes of all arenas together can be limited, for example to what ExecuTorch's default takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from loadmaster.clock import now
from loadmaster.export.executorch_plans import packed, placement, planned_tensors
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan, lifetimes
from loadmaster.program.importers.executorch.lower import ALIGNMENT
from loadmaster.program.program import Program
from loadmaster.simulate.simulator import simulator

Int64 = npt.NDArray[np.int64]
KEPT = 8
"""Best maps that are kept until offsets are found for one of them."""


def improved(
    program: Program,
    machine: Machine,
    starts: list[Plan],
    *,
    most_bytes: int | None = None,
    seconds: float = 10.0,
    kicks: int | None = None,
    seed: int = 0,
) -> Plan | None:
    """The best plan that a local search finds from plans in program order; None if none fits.

    Steepest descent over moves of one tensor, then a kick: a tensor is put into a faster memory and
    whoever is in its way there is put out. Every plan keeps to the capacities and to `most_bytes`.
    It ends after so many seconds, or so many kicks of each search.
    """
    random = np.random.default_rng(seed)
    search = _Search(program, machine, None, random)
    maps = [search.memories(start) for start in starts]
    if most_bytes is None:
        search.run(maps, seconds, kicks)
    else:  # what is best without the limit often keeps to it, or nearly
        search.run(maps, seconds / 2, kicks)
        maps = [memory for _, memory in search.best] + maps
        search = _Search(program, machine, most_bytes, random)
        search.run(maps, seconds / 2, kicks)
    order = list(range(program.n_ops))
    for _, memory in search.best:
        offset = packed(program, machine, memory, order)
        if offset is None:
            continue
        plan = placement(program, memory, offset, order)
        if most_bytes is None or search.bytes_of(plan) <= most_bytes:
            return plan
    return None


class _Search:
    def __init__(
        self, program: Program, machine: Machine, most_bytes: int | None, random: np.random.Generator
    ) -> None:
        self.program, self.random, self._most = program, random, most_bytes
        self._simulator = simulator(program, machine)
        self._reach = list(machine.reach[0])
        self._home = machine.home[0]
        order = list(range(program.n_ops))
        self._tensors = np.flatnonzero(planned_tensors(program, order))
        self._first, self._last = lifetimes(program)
        size = program.storage_bytes
        align = {m: machine.memories[m].alignment for m in self._reach}
        self._size = {m: -(-size // align[m]) * align[m] for m in self._reach}
        fixed = int(program.storage_bytes[program.tensor_kind <= 1].sum())
        room = {m: machine.memories[m].capacity for m in self._reach}
        self._room = {**room, self._home: room[self._home] - fixed}
        self.best: list[tuple[int, Int64]] = []

    def run(self, starts: list[Int64], seconds: float, kicks: int | None) -> None:
        """Descend from every start, then kick and descend until the time, or the kicks, are over."""
        end = now() + seconds
        for start in starts:
            self.descend(self.fitted(start), end)
        for _ in itertools.count() if kicks is None else range(kicks):
            if not self.best or now() >= end:
                break
            _, memory = self.best[int(self.random.integers(min(2, len(self.best))))]
            self.descend(self.kicked(memory), end)

    def memories(self, plan: Plan) -> Int64:
        """[T] the memory of every tensor in a plan, the slowest where nothing is said."""
        memory = np.full(self.program.n_tensors, -1, dtype=np.int64)
        memory[self._tensors] = self._home
        for row in plan.residency_rows:
            memory[row.tensor] = row.memory if memory[row.tensor] >= 0 else -1
        return memory

    def bytes_of(self, plan: Plan) -> int:
        tops: dict[int, int] = {}
        for row in plan.residency_rows:
            size = -(-int(self.program.storage_bytes[row.tensor]) // ALIGNMENT) * ALIGNMENT
            tops[row.memory] = max(tops.get(row.memory, 0), row.offset + size)
        return sum(tops.values())

    def fitted(self, memory: Int64) -> Int64:
        """The map with tensors sent to the slowest memory, largest first, until it fits."""
        memory = memory.copy()
        fast = [t for t in self._tensors.tolist() if memory[t] != self._home]
        for tensor in sorted(fast, key=lambda t: -int(self._size[self._home][t])):
            if self._fits(self._live(memory)):
                break
            memory[tensor] = self._home
        return memory

    def descend(self, memory: Int64, end: float) -> None:
        """Take the best move of one tensor again and again, and keep what it ends at."""
        live = self._live(memory)
        value = int(self._times(memory[None])[0])
        if not self._fits(live):
            return
        while now() < end:
            moves = list(self._moves(memory, live))
            if not moves:
                break
            batch = np.repeat(memory[None], len(moves), axis=0)
            for row, (tensor, target) in enumerate(moves):
                batch[row, tensor] = target
            times = self._times(batch)
            best = int(np.argmin(times))
            if times[best] >= value:
                break
            value, memory = int(times[best]), batch[best]
            live = self._live(memory)
        self._keep(value, memory)

    def kicked(self, memory: Int64) -> Int64:
        """The map with some tensors put into a faster memory and what is in their way put out."""
        memory = memory.copy()
        for tensor in self.random.choice(self._tensors, size=min(3, len(self._tensors))).tolist():
            target = self._reach[int(self.random.integers(len(self._reach)))]
            before, memory[tensor] = memory.copy(), target
            there = np.flatnonzero(
                (memory == target) & (self._last >= self._first[tensor]) & (self._first <= self._last[tensor])
            )
            for other in self.random.permutation(there[there != tensor]).tolist():
                if self._fits(self._live(memory)):
                    break
                memory[other] = self._home
            if not self._fits(self._live(memory)):
                memory = before
        return memory

    def _moves(self, memory: Int64, live: dict[int, Int64]) -> Iterator[tuple[int, int]]:
        tops = {m: int(profile.max(initial=0)) for m, profile in live.items()}
        for tensor in self._tensors.tolist():
            source, life = int(memory[tensor]), slice(self._first[tensor], self._last[tensor] + 1)
            for target in self._reach:
                if target == source:
                    continue
                grown = max(tops[target], int(live[target][life].max()) + int(self._size[target][tensor]))
                if grown > self._room[target]:
                    continue
                if self._most is not None and sum(tops.values()) - tops[target] + grown > self._most:
                    # It may still do: what it leaves may shrink.
                    left = live[source].copy()
                    left[life] -= self._size[source][tensor]
                    others = sum(tops.values()) - tops[target] - tops[source]
                    if others + grown + int(left.max(initial=0)) > self._most:
                        continue
                yield tensor, target

    def _live(self, memory: Int64) -> dict[int, Int64]:
        """[ops] bytes alive in each memory."""
        profiles = {}
        for number in self._reach:
            change = np.zeros(self.program.n_ops + 1, dtype=np.int64)
            held = self._tensors[memory[self._tensors] == number]
            np.add.at(change, self._first[held], self._size[number][held])
            np.subtract.at(change, self._last[held] + 1, self._size[number][held])
            profiles[number] = np.cumsum(change[:-1])
        return profiles

    def _fits(self, live: dict[int, Int64]) -> bool:
        tops = {m: int(profile.max(initial=0)) for m, profile in live.items()}
        inside = all(top <= self._room[m] for m, top in tops.items())
        return inside and (self._most is None or sum(tops.values()) <= self._most)

    def _times(self, memories: Int64) -> Int64:
        return self._simulator.run_static(memories.astype(np.int8))[0]

    def _keep(self, value: int, memory: Int64) -> None:
        if all(not np.array_equal(memory, other) for _, other in self.best):
            self.best.append((value, memory))
            self.best.sort(key=lambda item: item[0])
            del self.best[KEPT:]
