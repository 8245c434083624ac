"""A plan as actions around each step: what is awaited, copied, dropped, and when.

Around a step: wait for the copies it needs, run it, issue copies out, drop what ends, issue copies
in. Room that is dropped while a copy still reads it is only given to copies that wait for that copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from loadmaster.errors import BadMachine, BadPlan, Refused
from loadmaster.execute.script import Calls, FastResidency, Leaf, Move, Script, Step
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import check
from loadmaster.plan.occupancy import Occupancy
from loadmaster.plan.plan import WHOLE, Plan
from loadmaster.program.importers.torch.captured import Captured, Result
from loadmaster.program.program import GIVEN, Program, TieKind
from loadmaster.units import show_bytes


def bind(captured: Captured, plan: Plan, machine: Machine, device: object, *, checked: bool = True) -> Script:
    """The script of a plan; refuses one that can't be followed. `checked=False` trusts the plan."""
    occupancy = refuse_plan(captured.program, plan, machine, checked=checked)
    return _Binder(captured, occupancy, device).script()


@dataclass
class _Around:
    """What happens around one rank."""

    waits: list[int] = field(default_factory=list)
    sends: list[Move] = field(default_factory=list)
    fetches: list[Move] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Residencies whose last rank it is."""


class _Binder:
    def __init__(self, captured: Captured, occupancy: Occupancy, device: object) -> None:
        self.captured, self.program = captured, occupancy.program
        self.calls = Calls(captured, device)
        self.fast = occupancy.machine.reach[0][0]
        self.op: list[int] = occupancy.steps.op.tolist()
        self.count = len(self.op)
        self.copies = occupancy.plan.copy_rows
        self.issued, self.needed = (column.tolist() for column in occupancy.copy_ranks)
        self.residencies = fast_residencies(occupancy, self.fast)
        self.residencies_of: dict[int, list[int]] = {}
        for number, residency in enumerate(self.residencies):
            self.residencies_of.setdefault(residency.tensor, []).append(number)
        # One per rank, then the end, and last (so -1 finds it) what comes before the first.
        self.around = [_Around() for _ in range(self.count + 2)]
        self.opened = {number for number, residency in enumerate(self.residencies) if residency.first < 0}
        self.writes = self._writes(occupancy)

    def _writes(self, occupancy: Occupancy) -> list[dict[int, int]]:
        """[steps] tensor -> the residency that a step's result begins"""
        found: list[dict[int, int]] = [{} for _ in range(self.count)]
        steps = occupancy.steps
        for rank, tensor in zip(steps.write_step.tolist(), steps.write_tensor.tolist(), strict=True):
            for number in self.residencies_of.get(tensor, []):
                if self.residencies[number].first <= rank <= self.residencies[number].last:
                    found[rank][tensor] = number
                    self.opened.add(number)
        return found

    def script(self) -> Script:
        self._add_moves()
        for number, residency in enumerate(self.residencies):
            if 0 <= residency.last < self.count - 1 and residency.first >= 0:
                self.around[residency.last].ends.append(number)
        self._hold_back()
        steps = tuple(self._step(rank) for rank in range(self.count))
        out = {copy.tensor for copy in self.copies if copy.source == self.fast}
        return Script(
            tuple(self.around[-1].fetches),
            steps,
            tuple(self.around[self.count].waits),
            tuple(self.residencies),
            tuple(self._leaf(result, out) for result in self.captured.results),
            len(self.copies),
            tuple(sorted(out)),
            peak_of(self.residencies, self.count),
        )

    def _add_moves(self) -> None:
        """Copies in the order in which they are issued; a later one of a direction ends later, so
        only the last of those that a step needs is awaited."""
        place: dict[int, tuple[bool, int]] = {}
        by_issue = sorted(range(len(self.copies)), key=lambda row: (self.issued[row], row))
        for turn, row in enumerate(by_issue):
            move = self._move(row)
            place[row] = (move.inward, turn)
            around = self.around[self.issued[row]]
            (around.fetches if move.inward else around.sends).append(move)
        needed = sorted(by_issue, key=self.needed.__getitem__)
        reached = {True: -1, False: -1}
        for rank in range(self.count + 1):
            last: dict[bool, int] = {}
            while needed and (self.needed[needed[0]] == rank or rank == self.count):
                row = needed.pop(0)
                inward, turn = place[row]
                if turn > reached[inward]:
                    reached[inward], last[inward] = turn, row
            self.around[rank].waits += last.values()

    def _move(self, row: int) -> Move:
        copy = self.copies[row]
        issued, needed = self.issued[row], min(self.needed[row], self.count - 1)
        inward = copy.target == self.fast
        holds = needed if inward else self.needed[row] - 1
        starts = issued + 1 if inward else issued
        residency = next(
            number
            for number in self.residencies_of[copy.tensor]
            if self.residencies[number].first <= starts and self.residencies[number].last >= holds
        )
        opens = inward and residency not in self.opened
        self.opened.add(residency)
        whole = (0, int(self.program.storage_bytes[copy.tensor]))
        low, high = whole if copy.low == WHOLE else (copy.low, copy.high)
        return Move(row, copy.tensor, inward, low, high, residency, opens)

    def _hold_back(self) -> None:
        """Copies in wait for copies out that still read the room dropped just before them."""
        sources: dict[int, list[int]] = {}
        for around in self.around:
            for move in around.sends:
                sources.setdefault(move.residency, []).append(move.row)
        for rank, around in enumerate(self.around[: self.count]):
            pending = tuple(
                row
                for residency in around.ends
                for row in sources.get(residency, [])
                if self.needed[row] > rank
            )
            if pending:
                around.fetches = [replace(move, after=pending) for move in around.fetches]

    def _step(self, rank: int) -> Step:
        around, op = self.around[rank], self.op[rank]
        call = self.calls.call(op)
        views = self.calls.views_for(call)
        drops = [
            slot for residency in around.ends for slot in self.calls.drop(self.residencies[residency].tensor)
        ]
        begins = tuple(self.writes[rank].get(slot, -1) for _, slot in call.results)
        return Step(
            tuple(around.waits), views, call, begins, tuple(around.sends), tuple(drops), tuple(around.fetches)
        )

    def _leaf(self, result: Result, out: set[int]) -> Leaf:
        slot = result.tensor
        root = int(self.program.tensor_alias[slot]) if slot >= 0 else -1
        views = self.calls.path(slot) if slot >= 0 else ()
        at_host = root < 0 or root in out or self.program.tensor_kind[root] in GIVEN
        return Leaf(result.what, result.name, slot, root, views, at_host, result.node)


def fast_residencies(occupancy: Occupancy, memory: int) -> list[FastResidency]:
    """The residencies in one memory, by tensor. Those of one tensor at one offset whose ranks touch are
    one: bytes put into the first are still there in the next."""
    first, last = (column.tolist() for column in occupancy.windows)
    size = occupancy.align(occupancy.program.storage_bytes, memory).tolist()
    rows = [
        (each.tensor, each.offset, first[row], last[row])
        for row, each in enumerate(occupancy.plan.residency_rows)
        if each.memory == memory and first[row] <= last[row]
    ]
    found: list[FastResidency] = []
    for tensor, offset, begin, end in sorted(rows):
        newest = found[-1] if found else None
        same = newest is not None and (newest.tensor, newest.offset) == (tensor, offset)
        if newest is not None and same and begin <= newest.last + 1:
            found[-1] = newest._replace(last=max(newest.last, end))
        else:
            found.append(FastResidency(tensor, begin, end, size[tensor], offset))
    return found


def peak_of(residencies: list[FastResidency], steps: int) -> int:
    """The most bytes that residencies hold at one rank."""
    change = [0] * (steps + 1)
    for residency in residencies:
        change[max(0, residency.first)] += residency.bytes
        change[residency.last + 1] -= residency.bytes
    held = peak = 0
    for each in change:
        held += each
        peak = max(peak, held)
    return peak


def refuse_plan(program: Program, plan: Plan, machine: Machine, *, checked: bool = True) -> Occupancy:
    """What lies where under a plan that one device can follow. `checked=False` skips the plan checker."""
    if len(machine.devices) != 1 or len(machine.reach[0]) != 2:
        raise BadPlan(
            f"machine '{machine.name}' has {len(machine.devices)} devices and "
            f"{len(machine.memories)} memories",
            object=machine.name,
            number=len(machine.memories),
            remedy="run on a machine with one device, a fast memory and its home",
        )
    if plan.queue != "order" or (plan.fusion is not None and (plan.fusion >= 0).any()):
        raise BadPlan(
            "a real run takes ops one by one in the plan's order",
            object=plan.queue,
            remedy="use the queue 'order' and no fusion",
        )
    if checked:
        violations = check(program, machine, plan)
        if violations:
            raise Refused(
                f"the plan is not sound ({len(violations)} violations), first: {violations[0]}",
                object="plan",
                number=len(violations),
                remedy="see 'loadmaster check'",
            )
    ties = int((program.tie_kind != TieKind.DONATED).sum())
    if ties:
        raise BadPlan(
            f"{ties} tensors of '{program.name}' are written over others",
            object=program.name,
            number=ties,
            remedy="capture the module again",
        )
    occupancy = Occupancy(program, machine, plan)
    _refuse_slow_accesses(occupancy)
    return occupancy


def _refuse_slow_accesses(occupancy: Occupancy) -> None:
    """An op works in the first memory of its device and nowhere else."""
    program, steps = occupancy.program, occupancy.steps
    fast = occupancy.machine.reach[0][0]
    found = []
    for step, tensor, (memory, _) in (
        (steps.read_step, steps.read_tensor, occupancy.reads),
        (steps.write_step, steps.write_tensor, occupancy.writes),
    ):
        slow = np.flatnonzero((memory != fast) & (program.storage_bytes[tensor] > 0))
        found += [(int(step[row]), int(tensor[row])) for row in slow[:1]]
    if found:
        rank, root = min(found, key=lambda access: access[0])
        op, name, size = int(steps.op[rank]), program.tensor_name[root], int(program.storage_bytes[root])
        raise Refused(
            f"op {op} '{program.op_name[op]}' finds tensor '{name}' ({size:,} bytes) in the home memory and "
            f"works only in memory '{occupancy.machine.memories[fast].name}'",
            object=name,
            number=size,
            remedy="plan with '--problem offload', or copy it in before",
        )


def refuse_capacity(peak: int, beside: int, capacity: int, memory: str, what: str) -> None:
    """A plan that needs more than it may have, with `what` is taken beside it, is not started."""
    need = peak + beside
    if need > capacity:
        more = f", {show_bytes(beside)} are {what}" if beside else ""
        raise BadMachine(
            f"the plan fills {show_bytes(peak)} of '{memory}'{more}, and it may have "
            f"{show_bytes(capacity)}: too many by {need - capacity:,} bytes",
            object=memory,
            number=need - capacity,
            remedy="plan for a smaller capacity",
        )
