"""Random plans for a program on a machine; see `generate`."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, NO_OFFSET, WHOLE, Copy, Plan, Residency
from loadmaster.program.program import Program
from reference.simulate import simulate_reference

Rng = np.random.Generator
Item = TypeVar("Item")


def random_plan(rng: Rng, program: Program, machine: Machine, valid_only: bool = False) -> Plan:
    """A plan. `valid_only`: no mistake is made on purpose (a missing link, an op that can't run
    on its device or the machine's own limits may still make it an error)."""
    return _PlanMaker(rng, program, machine, valid_only).make()


class _PlanMaker:
    def __init__(self, rng: Rng, program: Program, machine: Machine, valid_only: bool) -> None:
        self.rng, self.program, self.machine, self.valid_only = rng, program, machine, valid_only
        self.n_ops = program.n_ops
        self.views = [bool(view) for view in program.op_view]
        self.real_ops = [op for op in range(self.n_ops) if not self.views[op]]
        self.root = [int(root) for root in program.tensor_alias]
        self.writer: dict[int, int] = {}
        """Root -> the op that writes it."""
        for op in self.real_ops:
            for tensor in program.writes(op):
                self.writer[self.root[int(tensor)]] = op
        self.sources = [self._sources(op) for op in range(self.n_ops)]
        """The ops whose results an op reads, views seen through."""

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, items: list[Item] | tuple[Item, ...]) -> Item:
        return items[int(self.rng.integers(len(items)))]

    def whole(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def make(self) -> Plan:
        idle = self.machine.rules.copies == "idle"
        self.device = self._devices()
        self.fusion = self._fusion() if self.chance(0.4) else [-1] * self.n_ops
        self.order = self._order() if self.chance(0.7) else list(range(self.n_ops))
        self.pos = [0] * self.n_ops
        for position, op in enumerate(self.order):
            self.pos[op] = position
        queue = "order"
        if not idle and self.chance(0.5):
            queue = self.pick(("ready", "fifo", "priority"))
        with_tables = queue == "order"
        plan = Plan.of(
            device=self.device if self.chance(0.9) or self._moved() else None,
            order=self.order if self.order != sorted(self.order) or self.chance(0.5) else None,
            fusion=self.fusion if max(self.fusion, default=-1) >= 0 else None,
            queue=queue,
            priority=self._keys() if queue == "priority" else None,
            tie=self.pick(("fifo", "critical_path")),
            residencies=self._residencies() if with_tables and self.chance(0.6) else (),
            copies=self._copies() if with_tables and self.chance(0.85 if idle else 0.6) else (),
        )
        if with_tables and not idle and self.chance(0.4):
            plan = self._with_transfers(plan)
        if not self.valid_only and self.chance(0.12):
            plan = self._spoiled(plan)
        return plan

    # --- devices, fusion, order --------------------------------------------------------------

    def _sources(self, op: int) -> set[int]:
        roots = {self.root[int(tensor)] for tensor in self.program.reads(op)}
        return {self.writer[root] for root in roots if root in self.writer} - {op}

    def _moved(self) -> bool:
        return any(device != 0 for device in self.device)

    def _devices(self) -> list[int]:
        n_devices = len(self.machine.devices)
        of_group: dict[int, int] = {}
        devices = []
        for op in range(self.n_ops):
            group = int(self.program.op_group[op])
            device = self.whole(0, n_devices - 1)
            devices.append(device if group < 0 else of_group.setdefault(group, device))
        return devices

    def _keys(self) -> list[float]:
        most = self.pick((0, 0, 2))
        if self.chance(0.7):  # few levels: many ties
            return [float(self.whole(0, most)) for _ in range(self.n_ops)]
        return [float(key) for key in self.rng.random(self.n_ops)]

    def _fusion(self) -> list[int]:
        """Groups of ops of one device and one loop, such that steps don't wait in circles."""
        fusion = [-1] * self.n_ops
        loop = self.program.op_loop
        for group in range(self.whole(1, 4)):
            alone = [op for op in self.real_ops if fusion[op] == -1]
            if not alone:
                break
            members = [self.pick(alone)]
            for _ in range(self.whole(1, 4)):
                near = [op for op in alone if self._near(op, members)]
                pool = near if near and self.chance(0.8) else alone
                op = self.pick(pool)
                fits = self.device[op] == self.device[members[0]] and loop[op] == loop[members[0]]
                if op not in members and fits:
                    members.append(op)
            trial = [group if op in members else fusion[op] for op in range(self.n_ops)]
            if self._step_order(trial) is not None:
                fusion = trial
        return fusion

    def _near(self, op: int, members: list[int]) -> bool:
        if op in members:
            return False
        return any(op in self.sources[other] or other in self.sources[op] for other in members)

    def _step_order(self, fusion: list[int]) -> list[int] | None:
        """Ops in an order in which whole steps can run one after the other, or None."""
        return _topological(self.rng, self.real_ops, self.sources, fusion)

    def _order(self) -> list[int]:
        """Random, such that a step begins after the steps it reads from are complete; members
        of a step may be spread, and views stand anywhere behind what they show."""
        real = _topological(self.rng, self.real_ops, self.sources, self.fusion)
        assert real is not None
        order = list(real)
        for op in range(self.n_ops):
            if self.views[op]:
                after = [order.index(source) for source in self.sources[op]]
                order.insert(self.whole(max(after, default=-1) + 1, len(order)), op)
        return order

    # --- tables ------------------------------------------------------------------------------

    def _residencies(self) -> list[Residency]:
        if not self.program.n_tensors or not self.n_ops:
            return []
        return [self._residency() for _ in range(self.whole(1, 8))]

    def _residency(self) -> Residency:
        tensor = self.whole(0, self.program.n_tensors - 1)
        memory = self.pick(self.pick(self.machine.reach))
        places = self._life(tensor) if self.chance(0.6) else []
        if not places:
            places = [self.whole(0, self.n_ops - 1) for _ in range(2)]
        first, last = min(places), max(places)
        if self.chance(0.04):
            first, last = last, first
        first_op, last_op = self.order[first], self.order[last]
        given = self.root[tensor] not in self.writer
        if self.chance(0.5 if given else 0.05):
            first_op = BEFORE
        offset = self.whole(0, 60) if self.chance(0.4) else NO_OFFSET
        return Residency(tensor, memory, offset, first_op, last_op)

    def _life(self, tensor: int) -> list[int]:
        """Positions of the ops that write or read a tensor's storage."""
        root = self.root[tensor]
        touched = []
        for op in self.real_ops:
            tensors = [*self.program.reads(op), *self.program.writes(op)]
            if root in [self.root[int(t)] for t in tensors]:
                touched.append(self.pos[op])
        return touched

    def _copies(self) -> list[Copy]:
        if not self.program.n_tensors or not self.machine.links:
            return []
        copies = [self._copy() for _ in range(self.whole(1, self.pick((4, 8, 24))))]
        return [copy for copy in copies if copy is not None]

    def _copy(self) -> Copy | None:
        pairs = list(self.machine.link_between)
        if self.machine.rules.copies == "idle":
            pairs = [pair for pair in pairs if self.machine.home[0] in pair]
        if not pairs:
            return None
        source, target = self.pick(pairs)
        tensor = self.whole(0, self.program.n_tensors - 1)
        issued, needed = self.whole(-1, self.n_ops - 1), self.whole(0, self.n_ops)
        if self.chance(0.3):
            needed = self.n_ops
        if not self._in_order(issued, needed):
            return None
        low = high = WHOLE
        size = int(self.program.storage_bytes[tensor])
        if self.chance(0.3):
            low = self.whole(0, size)
            high = self.whole(low, size)
        issued_after = BEFORE if issued == -1 else self.order[issued]
        needed_by = self.n_ops if needed == self.n_ops else self.order[needed]
        return Copy(tensor, source, target, issued_after, needed_by, low, high)

    def _in_order(self, issued: int, needed: int) -> bool:
        """Whether the step at or before one position comes before the step at or after another."""
        real = [op for op in self.order if not self.views[op]]
        before = [op for op in real if self.pos[op] <= issued]
        after = [op for op in real if self.pos[op] >= needed]
        if not before or not after:
            return True
        return self._step_position(before[-1]) < self._step_position(after[0])

    def _step_position(self, op: int) -> int:
        if self.fusion[op] < 0:
            return self.pos[op]
        members = [other for other in self.real_ops if self.fusion[other] == self.fusion[op]]
        return min(self.pos[other] for other in members)

    def _with_transfers(self, plan: Plan) -> Plan:
        """List the transfers in the order of a run without a list, or nearly so."""
        try:
            booked = simulate_reference(self.program, self.machine, plan).transfers[:, :2]
        except BadPlan:
            return plan
        rows = [tuple(row) for row in booked.tolist()]
        if len(rows) > 1 and self.chance(0.6):  # may wait in a circle
            for _ in range(self.whole(1, 3)):
                i = self.whole(0, len(rows) - 2)
                rows[i], rows[i + 1] = rows[i + 1], rows[i]
        return plan.changed(transfers=np.array(rows, dtype=np.int64).reshape(len(rows), 2))

    # --- mistakes ----------------------------------------------------------------------------

    def _spoiled(self, plan: Plan) -> Plan:
        """The plan with one mistake."""
        n_ops, rows = self.n_ops, plan.copy_rows
        mistakes = ["queue", "tie", "transfers", "copy", "residency", "any fusion", "any order"]
        mistake = self.pick(mistakes)
        if mistake == "queue":
            return plan.changed(queue=self.pick(("fifo", "ready", "nonsense")))
        if mistake == "tie":
            return plan.changed(tie="nonsense")
        if mistake == "transfers":
            extra = [(self.whole(0, self.program.n_tensors), self.whole(0, 3))]
            known = [] if plan.transfers is None else plan.transfers.tolist()[1:]
            return plan.changed(transfers=np.array(known + extra, dtype=np.int64))
        if mistake == "copy" and self.program.n_tensors:
            n_memories = len(self.machine.memories)
            copy = Copy(
                self.whole(-1, self.program.n_tensors),
                self.whole(0, n_memories),
                self.whole(0, n_memories),
                self.whole(-2, n_ops),
                self.whole(-1, n_ops + 1),
                *self.pick(((-1, -1), (0, 10**6), (2, 1), (0, 0))),
            )
            return plan.changed(copies=np.array([*rows, copy], dtype=np.int64))
        if mistake == "residency" and n_ops and self.program.n_tensors:
            bad = list(self._residency())
            bad[self.pick((0, 1, 3, 4))] = self.pick((-2, n_ops, 10**6))
            return plan.changed(residencies=np.array([bad], dtype=np.int64))
        if mistake == "any fusion" and n_ops:
            groups = self.rng.integers(-1, 3, n_ops).astype(np.int32)
            return plan.changed(fusion=groups)
        if mistake == "any order" and n_ops:
            order = self.rng.permutation(n_ops).astype(np.int32)
            if self.chance(0.3):
                order[0] = order[-1]
            return plan.changed(order=order)
        return plan


def _topological(rng: Rng, ops: list[int], sources: list[set[int]], fusion: list[int]) -> list[int] | None:
    """A random order in which no step begins before those it reads from are complete."""
    step = {op: (op, -1) if fusion[op] < 0 else (-1, fusion[op]) for op in ops}
    members: dict[tuple[int, int], set[int]] = {}
    for op in ops:
        members.setdefault(step[op], set()).add(op)
    needs = {
        name: {source for op in inside for source in sources[op]} - inside for name, inside in members.items()
    }
    for name, outside in needs.items():
        needs[name] = {op for source in outside for op in members[step[source]]}
    order: list[int] = []
    placed: set[int] = set()
    while len(order) < len(ops):
        can = [
            op
            for op in ops
            if op not in placed and needs[step[op]] <= placed and sources[op] & members[step[op]] <= placed
        ]
        if not can:
            return None
        order.append(can[int(rng.integers(len(can)))])
        placed.add(order[-1])
    return order
