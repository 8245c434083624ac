"""From ops to steps, transfers and copies (docs/simulation.md, sections 1, 2 and 4).

Part of the slow reference: everything that is known before time starts to run.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, WHOLE, Plan, Residency
from loadmaster.program.program import PERSISTENT, Program, TensorKind, TieKind
from reference.simulate.check import check_plan
from reference.simulate.costs import Access, ceil_time, slow_time, step_duration


@dataclass(frozen=True)
class Step:
    """Ops that run as one."""

    number: int
    """Its smallest op."""
    members: list[int]
    device: int
    position: int
    loop: int
    repeat: int
    reads: list[Access]
    writes: list[Access]
    duration: int
    """Of one run."""
    slow: int
    """Time of the accesses served by the home."""

    @property
    def run_time(self) -> int:
        return self.repeat * self.duration


@dataclass(frozen=True)
class TransferWork:
    """A tensor must go to a device that is not near the one that made it."""

    tensor: int
    device: int
    link: int
    duration: int
    link_bytes: int


@dataclass(frozen=True)
class CopyWork:
    """A copy of the plan. Steps are named by their numbers."""

    row: int
    tensor: int
    source: int
    target: int
    issued_by: int | None
    """None: at time 0."""
    needed_by: int | None
    """None: by the end."""
    bytes: int
    link: int
    factor: int
    """How often its bytes cross the link; under the rule 'free' its time is multiplied too."""


class Scene:
    """A program, a machine and a plan as lists and dicts, checked."""

    def __init__(self, program: Program, machine: Machine, plan: Plan) -> None:
        self.program, self.machine, self.plan = program, machine, plan
        self.n_ops = program.n_ops
        check_plan(program, machine, plan)

        self.root = [int(root) for root in program.tensor_alias]
        self.size = [int(size) for size in program.storage_bytes]
        self.roots = [tensor for tensor in range(program.n_tensors) if self.root[tensor] == tensor]
        self.kind = [TensorKind(int(kind)) for kind in program.tensor_kind]
        self.output_roots = {
            self.root[tensor] for tensor in range(program.n_tensors) if self.kind[tensor] == TensorKind.OUTPUT
        }
        self.ops = [op for op in range(self.n_ops) if not program.op_view[op]]
        self.device_of_op = [0] * self.n_ops if plan.device is None else plan.device.tolist()
        order = list(range(self.n_ops)) if plan.order is None else plan.order.tolist()
        self.pos = [0] * self.n_ops
        for position, op in enumerate(order):
            self.pos[op] = position
        self.op_reads = [_rows(program, op, "read", self.root) for op in range(self.n_ops)]
        self.op_writes = [_rows(program, op, "write", self.root) for op in range(self.n_ops)]

        self.residencies = [row._replace(tensor=self.root[row.tensor]) for row in plan.residency_rows]
        self.has_before_residency = {r.tensor for r in self.residencies if r.first == BEFORE}

        self.steps: dict[int, Step] = {}
        self.step_of_op: dict[int, int] = {}
        self._make_steps()
        self.in_order = sorted(self.steps.values(), key=lambda step: step.position)

        self.writer: dict[int, int] = {}
        for op in self.ops:
            for tensor, _ in self.op_writes[op]:
                self.writer[tensor] = self.step_of_op[op]
        self.home_device = {tensor: self._home_device(tensor) for tensor in self.roots}
        self.near_device = [machine.home.index(home) for home in machine.home]
        """The first device with the same home: they have the same data there."""

        self.transfers: dict[tuple[int, int], TransferWork] = {}
        self._find_transfers()
        self.copies = [self._copy_work(row) for row in range(len(plan.copy_rows))]
        self.place = self._places()

    # --- steps -------------------------------------------------------------------------------

    def _make_steps(self) -> None:
        fusion = [-1] * self.n_ops if self.plan.fusion is None else self.plan.fusion.tolist()
        members_of: dict[int, list[int]] = {}
        number_of_group: dict[int, int] = {}
        for op in self.ops:
            number = op if fusion[op] < 0 else number_of_group.setdefault(fusion[op], op)
            members_of.setdefault(number, []).append(op)
        for number, members in members_of.items():
            for op in members:
                self.step_of_op[op] = number
            self._check_members(members)
        for number, members in members_of.items():
            self.steps[number] = self._make_step(number, members)

    def _check_members(self, members: list[int]) -> None:
        for op in members[1:]:
            for what, of_op in (("device", self.device_of_op), ("loop", self.program.op_loop)):
                if of_op[op] != of_op[members[0]]:
                    name = self.program.op_name
                    raise BadPlan(
                        f"op '{name[op]}' is fused with op '{name[members[0]]}' and is on {what} "
                        f"{int(of_op[op])}, not {int(of_op[members[0]])}",
                        object=name[op],
                        number=int(of_op[op]),
                        remedy=f"fuse ops of one {what}",
                    )

    def _make_step(self, number: int, members: list[int]) -> Step:
        device = self.device_of_op[number]
        position = min(self.pos[op] for op in members)
        if len(members) == 1:
            read_rows, write_rows = self.op_reads[number], self.op_writes[number]
        else:
            read_rows, write_rows = self._fused_rows(members)
        reads = [self._access(t, size, device, position, False) for t, size in read_rows]
        writes = [self._access(t, size, device, position, True) for t, size in write_rows]
        program, machine = self.program, self.machine
        return Step(
            number=number,
            members=members,
            device=device,
            position=position,
            loop=int(program.op_loop[number]),
            repeat=int(program.op_repeat[number]),
            reads=reads,
            writes=writes,
            duration=step_duration(program, machine, members, device, reads + writes),
            slow=slow_time(program, machine, members, device, reads + writes),
        )

    def _fused_rows(self, members: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        written = {tensor for op in members for tensor, _ in self.op_writes[op]}
        bytes_read: dict[int, int] = {}
        for op in members:
            for tensor, size in self.op_reads[op]:
                if tensor not in written:
                    bytes_read[tensor] = bytes_read.get(tensor, 0) + size
        reads = [(tensor, min(size, self.size[tensor])) for tensor, size in bytes_read.items()]
        writes = [
            (tensor, size)
            for op in members
            for tensor, size in self.op_writes[op]
            if self._leaves(tensor, members)
        ]
        return reads, writes

    def _leaves(self, tensor: int, members: list[int]) -> bool:
        if tensor in self.output_roots:
            return True
        for op in self.ops:
            if op not in members and tensor in [read for read, _ in self.op_reads[op]]:
                return True
        program = self.program
        for kind, target in zip(program.tie_kind, program.tie_target, strict=True):
            shares = int(kind) in (TieKind.INPLACE, TieKind.CARRIED)
            if shares and self.root[int(target)] == tensor:
                return True
        return False

    # --- where an access is served -----------------------------------------------------------

    def _access(self, tensor: int, size: int, device: int, position: int, write: bool) -> Access:
        for memory in self.machine.reach[device]:  # fastest first
            for residency in self.residencies:
                here = residency.tensor == tensor and residency.memory == memory
                if here and self._covers(residency, position):
                    return Access(tensor, size, memory, True, write)
        return Access(tensor, size, self.machine.home[device], False, write)

    def _covers(self, residency: Residency, position: int) -> bool:
        if position > self.pos[residency.last]:
            return False
        return residency.first == BEFORE or self._serves_from(residency) <= position

    def _serves_from(self, residency: Residency) -> int:
        """A residency that copies fill serves when the last of them is there, not before."""
        begin = self.pos[residency.first]
        serves_from = begin
        for copy in self.plan.copy_rows:
            if self.root[copy.tensor] != residency.tensor or copy.target != residency.memory:
                continue
            issued = -1 if copy.issued_after == BEFORE else self.pos[copy.issued_after]
            if copy.needed_by == self.n_ops or issued < begin - 1:
                continue
            if self.pos[copy.needed_by] <= self.pos[residency.last]:
                needing = self._step_position_at_or_after(self.pos[copy.needed_by])
                serves_from = max(serves_from, needing)
        return serves_from

    def _step_position_at_or_after(self, position: int) -> int:
        later = [op for op in self.ops if self.pos[op] >= position]
        if not later:
            return self.n_ops
        op = min(later, key=lambda op: self.pos[op])
        group = -1 if self.plan.fusion is None else int(self.plan.fusion[op])
        if group < 0:
            return self.pos[op]
        assert self.plan.fusion is not None
        return min(self.pos[other] for other in self.ops if self.plan.fusion[other] == group)

    # --- steps around a position -------------------------------------------------------------

    def step_at_or_before(self, position: int) -> Step | None:
        earlier = [op for op in self.ops if self.pos[op] <= position]
        if not earlier:
            return None
        return self.steps[self.step_of_op[max(earlier, key=lambda op: self.pos[op])]]

    def step_at_or_after(self, position: int) -> Step | None:
        later = [op for op in self.ops if self.pos[op] >= position]
        if not later:
            return None
        return self.steps[self.step_of_op[min(later, key=lambda op: self.pos[op])]]

    # --- tensors -----------------------------------------------------------------------------

    def is_persistent(self, tensor: int) -> bool:
        return self.kind[tensor] in PERSISTENT

    def is_input(self, tensor: int) -> bool:
        return self.kind[tensor] == TensorKind.INPUT

    def _home_device(self, tensor: int) -> int | None:
        """None for an input, which is on every device that reads it."""
        if self.is_input(tensor):
            return None
        if tensor in self.writer:
            return self.steps[self.writer[tensor]].device
        group = int(self.program.tensor_group[tensor])
        if group >= 0:
            for op in self.ops:
                if int(self.program.op_group[op]) == group:
                    return self.device_of_op[op]
        for number in sorted(self.steps):
            if tensor in [access.tensor for access in self.steps[number].reads]:
                return self.steps[number].device
        return 0

    def is_near(self, tensor: int, device: int) -> bool:
        """Whether a tensor's home is the home of the device. An input has no home of its own."""
        home_device = self.home_device[tensor]
        if home_device is None:
            return False
        return self.near_device[home_device] == self.near_device[device]

    # --- places ------------------------------------------------------------------------------

    def _places(self) -> dict[int, int]:
        """The place of each root, named by its smallest root: tied roots share one."""
        program = self.program
        place = {tensor: tensor for tensor in self.roots}
        for kind, source, target in zip(
            program.tie_kind, program.tie_source, program.tie_target, strict=True
        ):
            if int(kind) not in (TieKind.INPLACE, TieKind.CARRIED):
                continue
            one, other = place[self.root[int(source)]], place[self.root[int(target)]]
            for tensor in self.roots:
                if place[tensor] in (one, other):
                    place[tensor] = min(one, other)
        return place

    def users_before(self, step: Step) -> set[int]:
        """The steps, by number, that use what a step writes over: it waits for them."""
        users: set[int] = set()
        for op in step.members:
            for target, _ in self.op_writes[op]:
                for tensor in self.roots:
                    if self._is_next_in_place(target, tensor):
                        users |= {
                            self.step_of_op[other]
                            for other in self.ops
                            if tensor in [t for t, _ in self.op_reads[other] + self.op_writes[other]]
                        }
        return users - {step.number}

    def _is_next_in_place(self, target: int, tensor: int) -> bool:
        """Whether `target` is what is written next, in program order, into the place of `tensor`."""
        if target == tensor or self.place[target] != self.place[tensor]:
            return False
        when = {t: self._written_at(t) for t in self.roots if self.place[t] == self.place[tensor]}
        later = [other for other in when.values() if other > when[tensor]]
        return bool(later) and when[target] == min(later)

    def _written_at(self, tensor: int) -> int:
        """The op that writes a root; -1: it is given."""
        writers = [op for op in self.ops if tensor in [t for t, _ in self.op_writes[op]]]
        return writers[0] if writers else -1

    # --- transfers and copies ----------------------------------------------------------------

    def transfer_for(self, access: Access, device: int) -> tuple[int, int] | None:
        """The (tensor, device) of the transfer by which a step on `device` gets what it reads."""
        if self.is_input(access.tensor) or access.by_residency:
            return None
        if self.is_near(access.tensor, device):
            return None
        return (access.tensor, self.near_device[device])

    def _find_transfers(self) -> None:
        for step in self.steps.values():
            for access in step.reads:
                key = self.transfer_for(access, step.device)
                if key is not None:
                    self.transfers[key] = self._transfer_work(*key)

    def _transfer_work(self, tensor: int, device: int) -> TransferWork:
        home_device = self.home_device[tensor]
        assert home_device is not None
        ends = (self.machine.home[home_device], self.machine.home[device])
        link = self._link(ends, tensor, "goes")
        repeat = self.steps[self.writer[tensor]].repeat if tensor in self.writer else 1
        duration = self._link_time(link, self.size[tensor]) * repeat
        return TransferWork(tensor, device, link, duration, self.size[tensor] * repeat)

    def _link(self, ends: tuple[int, int], tensor: int, verb: str) -> int:
        if ends not in self.machine.link_between:
            name = self.program.tensor_name[tensor]
            source, target = (self.machine.memories[end].name for end in ends)
            raise BadPlan(
                f"tensor '{name}' {verb} from memory '{source}' to '{target}' and machine "
                f"'{self.machine.name}' has no link between them",
                object=name,
                number=tensor,
                remedy=f"add a link from '{source}' to '{target}', or keep it where it is",
            )
        return self.machine.link_between[ends]

    def _link_time(self, link: int, size: int) -> int:
        there = self.machine.links[link]
        return max(1, there.latency + ceil_time(size, there.bandwidth))

    def copy_time(self, copy: CopyWork) -> int:
        """Under the rule 'free'."""
        return self._link_time(copy.link, copy.bytes) * copy.factor

    def _copy_work(self, row: int) -> CopyWork:
        copy = self.plan.copy_rows[row]
        issued_by = needed_by = None
        if copy.issued_after != BEFORE:
            issued_by = self.step_at_or_before(self.pos[copy.issued_after])
        if copy.needed_by != self.n_ops:
            needed_by = self.step_at_or_after(self.pos[copy.needed_by])
        if issued_by is not None and needed_by is not None:
            self._check_issued_first(row, issued_by, needed_by)
        factor = 1
        if issued_by is not None and needed_by is not None and issued_by.loop == needed_by.loop:
            factor = needed_by.repeat
        tensor = self.root[copy.tensor]
        return CopyWork(
            row=row,
            tensor=tensor,
            source=copy.source,
            target=copy.target,
            issued_by=None if issued_by is None else issued_by.number,
            needed_by=None if needed_by is None else needed_by.number,
            bytes=self.size[tensor] if copy.low == WHOLE else copy.high - copy.low,
            link=self._link((copy.source, copy.target), tensor, "is copied"),
            factor=factor,
        )

    def _check_issued_first(self, row: int, issued_by: Step, needed_by: Step) -> None:
        if issued_by.position >= needed_by.position:
            name = self.program.op_name
            raise BadPlan(
                f"copy {row} of tensor '{self._tensor_name_of_copy(row)}' is issued after op "
                f"'{name[issued_by.number]}' and needed by op '{name[needed_by.number]}', "
                "which does not come later",
                object=self._tensor_name_of_copy(row),
                number=row,
                remedy="issue it earlier or need it later",
            )

    def _tensor_name_of_copy(self, row: int) -> str:
        return self.program.tensor_name[self.plan.copy_rows[row].tensor]


def _rows(program: Program, op: int, side: str, root: list[int]) -> list[tuple[int, int]]:
    """(root, bytes) of an op's reads or writes, row by row."""
    start = getattr(program, f"{side}_start")
    tensors, sizes = getattr(program, f"{side}_tensor"), getattr(program, f"{side}_bytes")
    return [(root[int(tensors[row])], int(sizes[row])) for row in range(int(start[op]), int(start[op + 1]))]
