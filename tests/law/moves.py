"""Random changes of a plan: residencies, copies, order, devices, fusion, queues and transfers.

A move need not lead to a legal plan: who searches asks `check`. Half of the moves know what makes
sense (a stay for a whole life with the copies that it wants, an offset where something ends), so that
a search gets somewhere; the others shift one number, so that it gets everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from generate import Rng, chance, pick, whole
from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import (
    BEFORE,
    NO_OFFSET,
    QUEUES,
    TIES,
    WHOLE,
    Copy,
    Plan,
    Residency,
    lifetimes_in_loops,
)
from loadmaster.program.program import GIVEN, PERSISTENT, Program, TensorKind
from loadmaster.simulate.simulator import get_simulator


@dataclass
class Draft:
    """A plan as lists that can be changed."""

    residencies: list[Residency]
    copies: list[Copy]
    device: list[int] | None
    order: list[int] | None
    fusion: list[int] | None
    queue: str
    priority: list[float] | None
    tie: str
    transfers: list[tuple[int, int]] | None

    @classmethod
    def of(cls, plan: Plan) -> Draft:
        def listed(column: np.ndarray | None) -> list | None:
            return None if column is None else column.tolist()

        transfers = None if plan.transfers is None else [(int(t), int(d)) for t, d in plan.transfers]
        return cls(
            list(plan.residency_rows),
            list(plan.copy_rows),
            listed(plan.device),
            listed(plan.order),
            listed(plan.fusion),
            plan.queue,
            listed(plan.priority),
            plan.tie,
            transfers,
        )

    def plan(self) -> Plan:
        return Plan.of(
            residencies=self.residencies,
            copies=self.copies,
            device=self.device,
            order=self.order,
            fusion=self.fusion,
            queue=self.queue,
            tie=self.tie,
            priority=self.priority,
            transfers=self.transfers,
        )


@dataclass
class Ground:
    """What moves must know of a program on a machine. `devices`: those that ops may be put on."""

    program: Program
    machine: Machine
    devices: int
    together: list[list[int]] = field(default_factory=list)
    """Roots that one decision puts into one memory; by default each has its own."""
    root: list[int] = field(init=False)
    roots: list[int] = field(init=False)
    size: list[int] = field(init=False)
    real: list[int] = field(init=False)
    uses: dict[int, list[int]] = field(init=False)
    """Root -> the ops (no views) that access it."""

    def __post_init__(self) -> None:
        program = self.program
        self.root = program.tensor_alias.tolist()
        self.roots = [t for t, root in enumerate(self.root) if t == root]
        self.size = program.storage_bytes.tolist()
        self.real = np.flatnonzero(~program.op_view).tolist()
        self.uses = {root: [] for root in self.roots}
        for op in self.real:
            for tensor in [*program.reads(op), *program.writes(op)]:
                uses = self.uses[self.root[int(tensor)]]
                if op not in uses[-1:]:
                    uses.append(op)
        kind = program.tensor_kind
        self.given = np.isin(kind, [int(k) for k in GIVEN]).tolist()
        self.persistent = np.isin(kind, [int(k) for k in PERSISTENT]).tolist()
        self.output = {self.root[t] for t in np.flatnonzero(kind == TensorKind.OUTPUT).tolist()}
        self.together = self.together or [[root] for root in self.roots]
        self.first, self.last = (ops.tolist() for ops in lifetimes_in_loops(program))

    def reach(self, rng: Rng) -> tuple[int, ...]:
        return self.machine.reach[whole(rng, 0, self.devices - 1)]


def _op(ground: Ground, rng: Rng) -> int:
    return whole(rng, 0, ground.program.n_ops - 1)


def _offset(ground: Ground, draft: Draft, rng: Rng, tensor: int, memory: int) -> int:
    """Mostly where something ends or begins, aligned; sometimes none, sometimes anything."""
    if chance(rng, 0.2):
        return NO_OFFSET
    about = ground.machine.memories[memory]
    edges = [0]
    for row in draft.residencies:
        if row.memory == memory and row.offset >= 0:
            edges += [row.offset, row.offset + ground.size[row.tensor], row.offset - ground.size[tensor]]
    if chance(rng, 0.1):
        edges = [about.capacity - ground.size[tensor], whole(rng, 0, 80)]
    offset = max(0, pick(rng, edges))
    return offset if chance(rng, 0.05) else -(-offset // about.alignment) * about.alignment


def stay(ground: Ground, draft: Draft, rng: Rng) -> None:
    """A tensor in some memory from a use to a use, with the copies that bring and take it."""
    program, tensor = ground.program, pick(rng, ground.roots)
    memory, home = pick(rng, ground.reach(rng)), ground.machine.home[0]
    uses = ground.uses[tensor] or [_op(ground, rng)]
    begin = 0 if chance(rng, 0.6) else whole(rng, 0, len(uses) - 1)
    end = len(uses) - 1 if chance(rng, 0.6) else whole(rng, begin, len(uses) - 1)
    first, last = uses[begin], uses[end]
    if chance(rng, 0.3) or (tensor in ground.output and chance(rng, 0.7)):
        last = program.n_ops - 1 if chance(rng, 0.7) else whole(rng, last, program.n_ops - 1)
    if chance(rng, 0.3):  # in one step less, room may be found
        draft.residencies = [row for row in draft.residencies if row.tensor != tensor]
        draft.copies = [row for row in draft.copies if row.tensor != tensor]
    offset = _offset(ground, draft, rng, tensor, memory)
    if ground.given[tensor] and chance(rng, 0.4 if ground.persistent[tensor] else 0.1):
        draft.residencies.append(Residency(tensor, memory, offset, BEFORE, program.n_ops - 1))
        return
    comes = (ground.given[tensor] or begin > 0) and memory != home and not chance(rng, 0.1)
    if comes:
        issued = whole(rng, -1, first - 1) if chance(rng, 0.5) else first - 1
        draft.copies.append(Copy(tensor, home, memory, issued, first))
        first = issued + 1
    draft.residencies.append(Residency(tensor, memory, offset, first, last))
    leaves = not ground.given[tensor] and memory != home and chance(rng, 0.35)
    if leaves:
        issued = whole(rng, min(uses[begin], last), last)
        needed = last + 1 if chance(rng, 0.5) else whole(rng, issued + 1, program.n_ops)
        draft.copies.append(Copy(tensor, memory, home, issued, needed))


def settle(ground: Ground, draft: Draft, rng: Rng) -> None:
    """A tensor, or those that go with it, in one memory for its whole life."""
    memory = pick(rng, ground.reach(rng))
    for tensor in pick(rng, ground.together):
        draft.residencies = [row for row in draft.residencies if row.tensor != tensor]
        draft.copies = [row for row in draft.copies if row.tensor != tensor]
        if ground.first[tensor] <= ground.last[tensor]:
            first = BEFORE if ground.persistent[tensor] else ground.first[tensor]
            offset = _offset(ground, draft, rng, tensor, memory)
            draft.residencies.append(Residency(tensor, memory, offset, first, ground.last[tensor]))


def drop_tensor(ground: Ground, draft: Draft, rng: Rng) -> None:
    """All residencies and copies of a tensor."""
    tensor = pick(rng, ground.roots)
    draft.residencies = [row for row in draft.residencies if row.tensor != tensor]
    draft.copies = [row for row in draft.copies if row.tensor != tensor]


def drop_row(ground: Ground, draft: Draft, rng: Rng) -> None:
    rows = pick(rng, [rows for rows in (draft.residencies, draft.copies) if rows] or [[]])
    if rows:
        del rows[whole(rng, 0, len(rows) - 1)]


def shift_residency(ground: Ground, draft: Draft, rng: Rng) -> None:
    """One column of one residency."""
    if not draft.residencies:
        return
    at, n_ops = whole(rng, 0, len(draft.residencies) - 1), ground.program.n_ops
    row = draft.residencies[at]
    match pick(rng, ("first", "last", "last", "offset", "offset", "memory", "tensor", "step")):
        case "first":
            row = row._replace(first=whole(rng, BEFORE, n_ops - 1))
        case "last":
            row = row._replace(last=_op(ground, rng))
        case "offset":
            row = row._replace(offset=_offset(ground, draft, rng, row.tensor, row.memory))
        case "memory":
            row = row._replace(memory=whole(rng, 0, len(ground.machine.memories) - 1))
        case "tensor":
            row = row._replace(tensor=whole(rng, 0, ground.program.n_tensors - 1))
        case "step":
            by = pick(rng, (-1, 1))
            row = row._replace(first=min(max(BEFORE, row.first + by), n_ops - 1))
    draft.residencies[at] = row


def swap_offsets(ground: Ground, draft: Draft, rng: Rng) -> None:
    """Two residencies change places; or all are packed anew, one after another."""
    rows = draft.residencies
    if len(rows) < 2:
        return
    if chance(rng, 0.5):
        i, j = (whole(rng, 0, len(rows) - 1) for _ in range(2))
        rows[i], rows[j] = (rows[i]._replace(offset=rows[j].offset), rows[j]._replace(offset=rows[i].offset))
        return
    placed: list[Residency] = []
    for at in rng.permutation(len(rows)).tolist():
        row, alignment = rows[at], ground.machine.memories[rows[at].memory].alignment
        beside = [
            other
            for other in placed
            if other.memory == row.memory and other.first <= row.last and row.first <= other.last
        ]
        offset = 0
        for other in sorted(beside, key=lambda other: other.offset):
            if offset + ground.size[row.tensor] > other.offset:
                end = max(offset, other.offset + ground.size[other.tensor])
                offset = -(-end // alignment) * alignment
        rows[at] = row._replace(offset=offset)
        placed.append(rows[at])


def add_copy(ground: Ground, draft: Draft, rng: Rng) -> None:
    pairs, n_ops = list(ground.machine.link_between), ground.program.n_ops
    if not pairs:
        return
    source, target = pick(rng, pairs)
    issued = whole(rng, BEFORE, n_ops - 1)
    draft.copies.append(Copy(pick(rng, ground.roots), source, target, issued, whole(rng, issued + 1, n_ops)))


def shift_copy(ground: Ground, draft: Draft, rng: Rng) -> None:
    """Issue, need, range or place in the list of one copy; or it is cut in two."""
    if not draft.copies:
        return
    at, n_ops = whole(rng, 0, len(draft.copies) - 1), ground.program.n_ops
    row = draft.copies[at]
    size = ground.size[row.tensor]
    match pick(rng, ("issued", "issued", "needed", "needed", "range", "cut", "row", "again")):
        case "issued":
            draft.copies[at] = row._replace(issued_after=whole(rng, BEFORE, n_ops - 1))
        case "needed":
            draft.copies[at] = row._replace(needed_by=whole(rng, 0, n_ops))
        case "range":
            low = whole(rng, 0, size)
            draft.copies[at] = row._replace(low=low, high=whole(rng, low, size))
        case "cut" if size > 1:
            middle = whole(rng, 1, size - 1)
            low, high = (0, size) if row.low == WHOLE else (row.low, row.high)
            draft.copies[at] = row._replace(low=low, high=middle)
            draft.copies.append(row._replace(low=middle, high=high))
        case "row":
            draft.copies.insert(whole(rng, 0, len(draft.copies) - 1), draft.copies.pop(at))
        case "again":
            draft.copies.append(row)


def reorder(ground: Ground, draft: Draft, rng: Rng) -> None:
    order = draft.order or list(range(ground.program.n_ops))
    if chance(rng, 0.1):
        draft.order = None
        return
    order.insert(whole(rng, 0, len(order) - 1), order.pop(whole(rng, 0, len(order) - 1)))
    draft.order = order


def place_ops(ground: Ground, draft: Draft, rng: Rng) -> None:
    """One op, one hard group, or all ops to a device."""
    program, device = ground.program, whole(rng, 0, ground.devices - 1)
    devices = draft.device or [0] * program.n_ops
    op, how = _op(ground, rng), rng.random()
    groups = program.op_group.tolist()
    for other in range(program.n_ops):
        same = groups[op] >= 0 and groups[other] == groups[op]
        if other == op or how < 0.1 or same:
            devices[other] = device
    draft.device = None if how > 0.98 else devices


def fuse(ground: Ground, draft: Draft, rng: Rng) -> None:
    """An op joins another, or leaves."""
    fusion = draft.fusion or [-1] * ground.program.n_ops
    op, other = _op(ground, rng), _op(ground, rng)
    if chance(rng, 0.3):
        fusion[op] = -1
    else:
        if fusion[other] < 0:
            fusion[other] = max(fusion) + 1
        fusion[op] = fusion[other]
        if draft.device is not None:
            draft.device[op] = draft.device[other]
    draft.fusion = None if max(fusion) < 0 else fusion


def requeue(ground: Ground, draft: Draft, rng: Rng) -> None:
    draft.queue, draft.tie = pick(rng, QUEUES), pick(rng, TIES)
    draft.priority = None
    if draft.queue == "priority":
        draft.priority = [float(whole(rng, 0, 3)) for _ in range(ground.program.n_ops)]


def list_transfers(ground: Ground, draft: Draft, rng: Rng) -> None:
    """The transfers as they are booked, some of them in another order; or no list."""
    if draft.transfers is not None and chance(rng, 0.3):
        draft.transfers = None
        return
    if draft.transfers is None:
        try:
            made = get_simulator(ground.program, ground.machine).run(draft.plan())
        except BadPlan:
            return
        draft.transfers = [(int(t), int(d)) for t, d in made.transfers[:, :2]]
    rows = draft.transfers
    if len(rows) > 1:
        rows.insert(whole(rng, 0, len(rows) - 1), rows.pop(whole(rng, 0, len(rows) - 1)))


Move = Callable[[Ground, Draft, Rng], None]
MEMORY: dict[Move, float] = {
    stay: 5,
    settle: 1,
    drop_tensor: 1,
    drop_row: 1,
    shift_residency: 4,
    swap_offsets: 1,
    add_copy: 1,
    shift_copy: 3,
}
LIVES: dict[Move, float] = {settle: 6, shift_residency: 1, swap_offsets: 2, drop_tensor: 1}
OFFSETS: dict[Move, float] = {shift_residency: 2, swap_offsets: 5}
WORK: dict[Move, float] = {reorder: 3, place_ops: 4, fuse: 3, requeue: 1, list_transfers: 1}


def changed(ground: Ground, plan: Plan, weights: Mapping[Move, float], rng: Rng) -> Plan:
    """The plan after one to three moves."""
    draft, moves = Draft.of(plan), list(weights)
    share = np.array([weights[move] for move in moves], dtype=np.float64)
    for _ in range(pick(rng, (1, 1, 1, 2, 2, 3))):
        moves[int(rng.choice(len(moves), p=share / share.sum()))](ground, draft, rng)
    return draft.plan()
