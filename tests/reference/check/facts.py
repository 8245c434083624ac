"""Violations, and what a plan says about steps, memories and devices, looked up from every side.

Follows sections 1, 2, 4 and 6 of docs/simulation.md: who runs together and when, which memory serves an
access, when residencies and copies are, home devices, transfers, places, and the stores of a tensor.
"Tensor" means a root wherever nothing else is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from loadmaster.machine.machine import Machine
from loadmaster.plan.check import MOST_PER_RULE, Violation
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.program.program import GIVEN, PERSISTENT, Program, TensorKind, TieKind


class Report:
    """Collects violations: at most `MOST_PER_RULE` of a rule, the others are counted."""

    def __init__(self) -> None:
        self._kept: list[Violation] = []
        self._count: dict[str, int] = {}

    def add(
        self,
        rule: str,
        message: str,
        *,
        tensor: int | None = None,
        op: int | None = None,
        number: int | None = None,
    ) -> None:
        """Note one violation."""
        self._count[rule] = self._count.get(rule, 0) + 1
        if self._count[rule] <= MOST_PER_RULE:
            self._kept.append(Violation(rule, message, tensor, op, number))

    def count(self, rule: str) -> int:
        """How often a rule was broken so far."""
        return self._count.get(rule, 0)

    def is_full(self, rule: str) -> bool:
        """Whether further violations of a rule would only be counted."""
        return self.count(rule) >= MOST_PER_RULE

    def violations(self) -> list[Violation]:
        """All that was found, in the order of the rules' checks."""
        more = [
            Violation(rule, f"and {count - MOST_PER_RULE:,} more", number=count - MOST_PER_RULE)
            for rule, count in self._count.items()
            if count > MOST_PER_RULE
        ]
        return self._kept + more


class Words:
    """How messages name things."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program, self.machine = program, machine

    def op_text(self, op: int) -> str:
        names = self.program.op_name
        return f"op {op} '{names[op]}'" if 0 <= op < len(names) else "the end"

    def tensor_text(self, tensor: int) -> str:
        return f"tensor '{self.program.tensor_name[tensor]}'"

    def memory_text(self, memory: int) -> str:
        return f"memory '{self.machine.memories[memory].name}'"

    def device_text(self, device: int) -> str:
        return f"device '{self.machine.devices[device].name}'"


class Step(NamedTuple):
    """Ops that run as one. A step is known by its *rank*: 0 is the step with the smallest position, 1 the
    next, and so on."""

    number: int
    """Its smallest op."""
    position: int
    device: int
    members: tuple[int, ...]
    reads: list[int]
    """The tensors it reads from outside (a step of one op: all that it reads)."""
    writes: list[int]
    """The tensors it writes and that leave it (a step of one op: all that it writes)."""


class Steps(Words):
    """The program's columns as lists, and the plan's steps. Its order is a permutation."""

    def __init__(self, program: Program, machine: Machine, plan: Plan) -> None:
        super().__init__(program, machine)
        self.plan = plan
        n_ops, n_tensors = program.n_ops, program.n_tensors
        self.n_ops, self.n_tensors = n_ops, n_tensors
        self.in_order = plan.queue == "order"

        self.root: list[int] = program.tensor_alias.tolist()
        self.roots = [tensor for tensor in range(n_tensors) if self.root[tensor] == tensor]
        self.size: list[int] = program.storage_bytes.tolist()
        kinds = program.tensor_kind.tolist()
        self.is_input = [kind == TensorKind.INPUT for kind in kinds]
        self.is_given = [kind in GIVEN for kind in kinds]
        self.is_persistent = [kind in PERSISTENT for kind in kinds]
        self.is_output = [False] * n_tensors
        for tensor, kind in enumerate(kinds):
            if kind == TensorKind.OUTPUT:
                self.is_output[self.root[tensor]] = True
        self.ties = [
            (kind, self.root[source], self.root[target], at)
            for kind, source, target, at in zip(
                program.tie_kind.tolist(),
                program.tie_source.tolist(),
                program.tie_target.tolist(),
                program.tie_at.tolist(),
                strict=True,
            )
            if kind != TieKind.DONATED
        ]

        self.device: list[int] = [0] * n_ops if plan.device is None else plan.device.tolist()
        self.order: list[int] = list(range(n_ops)) if plan.order is None else plan.order.tolist()
        self.position = [0] * n_ops
        for position, op in enumerate(self.order):
            self.position[op] = position
        self.is_view: list[bool] = program.op_view.tolist()
        self.loop: list[int] = program.op_loop.tolist()

        self.op_reads = _rows(program.read_start.tolist(), program.read_tensor.tolist())
        self.op_writes = _rows(program.write_start.tolist(), program.write_tensor.tolist())

        groups = self._groups()
        self.step_of = [-1] * n_ops
        for rank, members in enumerate(groups):
            for op in members:
                self.step_of[op] = rank
        self.writer = self._writers()
        self.steps = [self._step(members) for members in groups]
        self.readers: list[list[int]] = [[] for _ in range(n_tensors)]
        for rank, step in enumerate(self.steps):
            for tensor in dict.fromkeys(step.reads):
                self.readers[tensor].append(rank)

    def _groups(self) -> list[tuple[int, ...]]:
        """The members of every step, steps by their smallest position."""
        fusion = [-1] * self.n_ops if self.plan.fusion is None else self.plan.fusion.tolist()
        groups: dict[tuple[str, int], list[int]] = {}
        for op in self.order:
            if not self.is_view[op]:
                key = ("fused", fusion[op]) if fusion[op] >= 0 else ("alone", op)
                groups.setdefault(key, []).append(op)
        return [tuple(sorted(members)) for members in groups.values()]

    def _writers(self) -> list[int]:
        """[tensors] the rank of the step that writes each root, or -1."""
        writer = [-1] * self.n_tensors
        for op in range(self.n_ops):
            if not self.is_view[op]:
                for tensor in self.op_writes[op]:
                    root = self.root[tensor]
                    if tensor == root or writer[root] < 0:
                        writer[root] = self.step_of[op]
        return writer

    def _step(self, members: tuple[int, ...]) -> Step:
        reads = [self.root[tensor] for op in members for tensor in self.op_reads[op]]
        writes = [self.root[tensor] for op in members for tensor in self.op_writes[op]]
        if len(members) > 1:
            inside = set(writes)
            reads = [tensor for tensor in dict.fromkeys(reads) if tensor not in inside]
            writes = [tensor for tensor in dict.fromkeys(writes) if self.leaves[tensor]]
        number = members[0]
        position = min(self.position[op] for op in members)
        return Step(number, position, self.device[number], members, reads, writes)

    @cached_property
    def leaves(self) -> list[bool]:
        """[tensors] whether a written tensor is needed outside the step that writes it."""
        leaves = list(self.is_output)
        for _, _, target, _ in self.ties:
            leaves[target] = True
        for op in range(self.n_ops):
            if not self.is_view[op]:
                for tensor in self.op_reads[op]:
                    if self.writer[self.root[tensor]] != self.step_of[op]:
                        leaves[self.root[tensor]] = True
        return leaves

    @cached_property
    def step_at_or_before(self) -> list[int]:
        """[positions] rank of the step of the last op, views left out, up to there; or -1."""
        ranks, last = [], -1
        for op in self.order:
            last = last if self.is_view[op] else self.step_of[op]
            ranks.append(last)
        return ranks

    @cached_property
    def step_at_or_after(self) -> list[int]:
        """[positions] rank of the step of the first op, views left out, from there; or n steps."""
        ranks, following = [], len(self.steps)
        for op in reversed(self.order):
            following = following if self.is_view[op] else self.step_of[op]
            ranks.append(following)
        return ranks[::-1]

    def op_at(self, rank: int) -> int:
        """The number of a step, or of the nearest one if there is none of this rank."""
        rank = max(0, min(rank, len(self.steps) - 1))
        return self.steps[rank].number if self.steps else 0


def _rows(start: list[int], entries: list[int]) -> list[list[int]]:
    """Compressed rows as lists."""
    return [entries[low:high] for low, high in pairwise(start)]


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

    def align(self, size: int, memory: int) -> int:
        """A size rounded up to a memory's alignment."""
        alignment = self.machine.memories[memory].alignment
        return -(-size // alignment) * alignment


NO_COPY = -1


@dataclass
class Store:
    """A place for one tensor, and the bytes [low, high) that are there from a moment on.

    It is the home of devices, or a *strand*: a run of residencies in one memory at one offset whose
    windows touch, so bytes put into one are still there in the next. Moments: step k starts at 2k and
    ends at 2k + 1; -1 is before the program.
    """

    memory: int
    first: int
    last: int
    """The ranks between which its bytes are kept."""
    offset: int = HOME
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(moment, low, high, the copy that brought them or NO_COPY)"""

    def put(self, moment: int, low: int, high: int, copy: int = NO_COPY) -> None:
        self.entries.append((moment, low, high, copy))

    def missing(self, moment: int, low: int, high: int) -> int:
        """How many of the bytes [low, high) are not there at a moment."""
        count, reached = 0, low
        for since, begin, end, _ in sorted(self.entries, key=lambda entry: entry[1]):
            if since <= moment and end > reached and reached < high:
                count += max(0, min(begin, high) - reached)
                reached = max(reached, end)
        return count + max(0, high - reached)


def strands_of(facts: Facts, tensor: int) -> tuple[list[Store], dict[int, Store]]:
    """The strands of a tensor, and the strand of each residency that holds anything."""
    windows = []
    for row in facts.residencies_of.get(tensor, []):
        first, last = facts.window(row)
        if first <= last:
            residency = facts.residencies[row]
            windows.append((residency.memory, residency.offset, first, last, row))
    strands: list[Store] = []
    strand_of: dict[int, Store] = {}
    for memory, offset, first, last, row in sorted(windows):
        newest = strands[-1] if strands else None
        same = newest is not None and (newest.memory, newest.offset) == (memory, offset)
        if newest is None or not same or first > newest.last + 1:
            newest = Store(memory, first, last, offset)
            strands.append(newest)
        newest.last = max(newest.last, last)
        strand_of[row] = newest
    return strands, strand_of
