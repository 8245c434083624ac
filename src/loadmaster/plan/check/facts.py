"""What a plan says about memories and devices, looked up from every side.

Follows sections 2, 4 and 6 of docs/simulation.md: which memory serves an access, when residencies and
copies are, home devices, transfers and places.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from loadmaster.machine.machine import Machine
from loadmaster.plan.check.steps import Steps
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.program.program import Program

HOME = -1
"""In place of a residency's row: the access is served by the home of the device."""


class Overwrite(NamedTuple):
    """An op leaves one tensor in the place of another: it comes after all that use the old one."""

    tensor: int
    over: int
    """What takes its place,"""
    op: int
    """and the op that writes it."""
    users: list[int]
    """The ranks of the other steps that read or write the old one."""


class Facts(Steps):
    """Look-ups on one plan for one program on one machine."""

    def __init__(self, program: Program, machine: Machine, plan: Plan) -> None:
        super().__init__(program, machine, plan)
        self.residencies = plan.residency_rows
        self.copies = plan.copy_rows
        self.residencies_of: dict[int, list[int]] = {}
        for row, residency in enumerate(self.residencies):
            self.residencies_of.setdefault(residency.tensor, []).append(row)
        self.copies_of: dict[int, list[int]] = {}
        for row, copy in enumerate(self.copies):
            self.copies_of.setdefault(copy.tensor, []).append(row)

    # -- residencies and copies -------------------------------------------------------------

    def window(self, row: int) -> tuple[int, int]:
        """The first and the last rank during which a residency holds its bytes.

        First above last: it holds nothing. BEFORE: from -1 to the last step.
        """
        residency = self.residencies[row]
        if residency.first == BEFORE:
            return -1, len(self.steps) - 1
        first = self.step_at_or_after[self.position[residency.first]]
        return first, self.step_at_or_before[self.position[residency.last]]

    def issued(self, row: int) -> int:
        """The rank of the step whose end issues a copy; -1: before the program."""
        op = self.copies[row].issued_after
        return -1 if op == BEFORE else self.step_at_or_before[self.position[op]]

    def needed(self, row: int) -> int:
        """The rank of the step that waits for a copy; the number of steps: the end."""
        op = self.copies[row].needed_by
        return len(self.steps) if op == self.n_ops else self.step_at_or_after[self.position[op]]

    def serves(self, rank: int, tensor: int) -> tuple[int, int]:
        """(memory, row of the residency or HOME) that serves a step's access to a tensor."""
        step = self.steps[rank]
        rows = self.residencies_of.get(tensor)
        if rows:
            for memory in self.machine.reach[step.device]:
                for row in rows:
                    residency = self.residencies[row]
                    over = step.position > self.position[residency.last]
                    if residency.memory == memory and not over and self.serves_from[row] <= step.position:
                        return memory, row
        return self.machine.home[step.device], HOME

    @cached_property
    def serves_from(self) -> list[int]:
        """[residencies] the position from which it serves: one that copies fill, when all are there."""
        return [self._serves_from(row) for row in range(len(self.residencies))]

    def _serves_from(self, row: int) -> int:
        tensor, memory, _, first, last = self.residencies[row]
        if first == BEFORE:
            return BEFORE
        ready = self.position[first]
        for copy_row in self.copies_of.get(tensor, []):
            copy = self.copies[copy_row]
            if copy.target != memory or copy.needed_by == self.n_ops:
                continue
            issued = -1 if copy.issued_after == BEFORE else self.position[copy.issued_after]
            if issued >= self.position[first] - 1 and self.position[copy.needed_by] <= self.position[last]:
                needed = self.needed(copy_row)
                late = self.n_ops if needed == len(self.steps) else self.steps[needed].position
                ready = max(ready, late)
        return ready

    def is_at_home(self, rank: int, tensor: int) -> bool:
        """Whether the home serves an access, and no residency (not even one in the home)."""
        return self.serves(rank, tensor)[1] == HOME

    # -- devices ----------------------------------------------------------------------------

    @cached_property
    def home_device(self) -> list[int]:
        """[tensors] where a tensor lives; of an input, the device of its first reader."""
        device_of_group: dict[int, int] = {}
        for op, group in enumerate(self.program.op_group.tolist()):
            if group >= 0 and not self.is_view[op]:
                device_of_group.setdefault(group, self.device[op])
        tensor_group = self.program.tensor_group.tolist()
        home = [0] * self.n_tensors
        for tensor in self.roots:
            if self.writer[tensor] >= 0:
                home[tensor] = self.steps[self.writer[tensor]].device
            elif self.is_persistent[tensor] and tensor_group[tensor] in device_of_group:
                home[tensor] = device_of_group[tensor_group[tensor]]
            elif self.readers[tensor]:
                readers = (self.steps[rank] for rank in self.readers[tensor])
                home[tensor] = min(readers, key=lambda step: step.number).device
        return home

    @cached_property
    def near(self) -> list[int]:
        """[devices] the first device with the same home: what is at home for one is so for both."""
        return [self.machine.home.index(memory) for memory in self.machine.home]

    def is_near(self, tensor: int, device: int) -> bool:
        """Whether a tensor lives in the home of a device."""
        return self.near[self.home_device[tensor]] == self.near[device]

    @cached_property
    def transfers(self) -> dict[tuple[int, int], list[int]]:
        """(tensor, first device with that home) of every transfer -> the ranks that wait for it."""
        needed: dict[tuple[int, int], list[int]] = {}
        for tensor in self.roots:
            if self.is_input[tensor]:
                continue
            for rank in self.readers[tensor]:
                device = self.steps[rank].device
                is_away = not self.is_near(tensor, device)
                if is_away and self.is_at_home(rank, tensor):
                    needed.setdefault((tensor, self.near[device]), []).append(rank)
        return dict(sorted(needed.items()))

    @cached_property
    def devices_used(self) -> list[int]:
        """The devices that run a step."""
        return sorted({step.device for step in self.steps})

    # -- memory -----------------------------------------------------------------------------

    @cached_property
    def place(self) -> list[int]:
        """[tensors] the smallest tensor among those that share one place through ties."""
        place = list(range(self.n_tensors))

        def find(tensor: int) -> int:
            while place[tensor] != tensor:
                place[tensor] = place[place[tensor]]
                tensor = place[tensor]
            return tensor

        for _, source, target, _ in self.ties:
            one, other = find(source), find(target)
            place[max(one, other)] = min(one, other)
        return [find(tensor) for tensor in range(self.n_tensors)]

    @cached_property
    def overwrites(self) -> list[Overwrite]:
        """Every tensor whose place another one takes, in program order."""
        written_by = [-1] * self.n_tensors
        users: list[set[int]] = [set() for _ in range(self.n_tensors)]
        for op in range(self.n_ops):
            if self.is_view[op]:
                continue
            for tensor in self.op_reads[op] + self.op_writes[op]:
                users[self.root[tensor]].add(self.step_of[op])
            for tensor in self.op_writes[op]:
                written_by[self.root[tensor]] = op
        shared: dict[int, list[int]] = {}
        for tensor in {end for _, source, target, _ in self.ties for end in (source, target)}:
            shared.setdefault(self.place[tensor], []).append(tensor)
        found = []
        for tensors in shared.values():
            tensors.sort(key=lambda tensor: (written_by[tensor], tensor))
            for tensor, over in pairwise(tensors):
                op = written_by[over]
                if op >= 0:
                    others = sorted(users[tensor] - {self.step_of[op]})
                    found.append(Overwrite(tensor, over, op, others))
        return found

    def aligned(self, size: int, memory: int) -> int:
        """A size rounded up to a memory's alignment."""
        alignment = self.machine.memories[memory].alignment
        return -(-size // alignment) * alignment
