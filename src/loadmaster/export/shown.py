"""A checked plan with its times: what all files for viewers are made from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from loadmaster.errors import Refused
from loadmaster.export.rules import Asked
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import check
from loadmaster.plan.check.facts import Facts, Report
from loadmaster.plan.check.memory import holds
from loadmaster.plan.check.timeline import Times
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Plan
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.simulate import Timeline, simulate


@dataclass(frozen=True)
class Stay:
    """A tensor in a memory from op `first` to op `last`; BEFORE: before the program starts."""

    tensor: int
    memory: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class Shown:
    program: Program
    machine: Machine
    plan: Plan
    timeline: Timeline

    @classmethod
    def of(cls, asked: Asked) -> Shown:
        """Time the plan and check it, times included; a plan with violations is refused."""
        timeline = simulate(asked.program, asked.machine, asked.plan)
        violations = check(asked.program, asked.machine, asked.plan, timeline)
        if violations:
            raise Refused(
                f"the checker refuses the plan: {violations[0].message}",
                object=asked.program.name,
                number=len(violations),
                remedy="give a plan that 'loadmaster check' accepts",
            )
        return cls(asked.program, asked.machine, asked.plan, timeline)

    @cached_property
    def facts(self) -> Facts:
        return Facts(self.program, self.machine, self.plan)

    @cached_property
    def memory_names(self) -> list[str]:
        return [memory.name for memory in self.machine.memories]

    def device(self, op: int) -> int:
        return 0 if self.plan.device is None else int(self.plan.device[op])

    @cached_property
    def position(self) -> list[int]:
        """[ops] when it is its turn."""
        order = range(self.program.n_ops) if self.plan.order is None else self.plan.order.tolist()
        turn = [0] * self.program.n_ops
        for position, op in enumerate(order):
            turn[op] = position
        return turn

    @cached_property
    def stays(self) -> list[Stay]:
        """Every root's residencies; what the plan leaves open is at home for its whole life."""
        program = self.program
        decided: dict[int, list[Stay]] = {}
        for row in self.plan.residency_rows:
            decided.setdefault(row.tensor, []).append(Stay(*row))
        users: dict[int, list[int]] = {}
        for tensors, ops in (
            (program.write_tensor, program.write_op),
            (program.read_tensor, program.read_op),
        ):
            for tensor, op in zip(program.tensor_alias[tensors].tolist(), ops.tolist(), strict=True):
                users.setdefault(tensor, []).append(op)
        found = []
        for tensor in range(program.n_tensors):
            if program.tensor_alias[tensor] != tensor:
                continue
            if tensor in decided:
                found += decided[tensor]
                continue
            home = self.machine.home[self.facts.home_device[tensor]]
            used = sorted(users.get(tensor, []), key=lambda op: self.position[op])
            given = program.producer[tensor] < 0
            if used:
                last = program.n_ops - 1 if program.tensor_kind[tensor] in PERSISTENT else used[-1]
                found.append(Stay(tensor, home, NO_OFFSET, BEFORE if given else used[0], last))
        return found

    def written_to(self, op: int, tensor: int) -> Stay | None:
        """Where an op's result is put, or None if nobody holds it."""
        root = int(self.program.tensor_alias[tensor])
        turn = self.position[op]
        for stay in self._stays_of.get(root, []):
            begins = -1 if stay.first == BEFORE else self.position[stay.first]
            if begins <= turn <= self.position[stay.last]:
                return stay
        return next(iter(self._stays_of.get(root, [])), None)

    @cached_property
    def _stays_of(self) -> dict[int, list[Stay]]:
        found: dict[int, list[Stay]] = {}
        for stay in self.stays:
            found.setdefault(stay.tensor, []).append(stay)
        return found

    def bytes_held(self) -> dict[int, list[tuple[int, int]]]:
        """Memory -> (moment in picoseconds, bytes held from then on), ascending."""
        facts = self.facts
        times = Times(facts, self.timeline, Report())
        for tensor, device, start, end in self.timeline.transfers.tolist():
            times.transfer_times[tensor, device] = (start, end)
        spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for hold in holds(facts, times):
            key = (hold.memory, facts.place[hold.tensor])
            spans.setdefault(key, []).append((hold.begin, hold.end))
        size: dict[tuple[int, int], int] = {}
        for tensor, place in enumerate(facts.place):
            for memory in range(len(self.machine.memories)):
                if (memory, place) in spans:
                    held = facts.aligned(facts.size[tensor], memory)
                    size[memory, place] = max(size.get((memory, place), 0), held)
        changes: dict[int, dict[int, int]] = {}
        for (memory, place), rows in spans.items():
            for begin, end in _joined(rows):
                change = changes.setdefault(memory, {})
                change[begin] = change.get(begin, 0) + size[memory, place]
                if end <= self.timeline.total_ps:  # else it is there for good
                    change[end] = change.get(end, 0) - size[memory, place]
        held_by: dict[int, list[tuple[int, int]]] = {}
        for memory, change in sorted(changes.items()):
            held = 0
            for moment, difference in sorted(change.items()):
                held += difference
                held_by.setdefault(memory, []).append((moment, held))
        return held_by


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches that meet or overlap, as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def file_name(text: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:80].lstrip(".") or "plan"
