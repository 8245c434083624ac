"""`Allocation`: an offset for every buffer; fit a capacity, or find the least height.

A decision is int64[n]: the offset of each buffer. Its value is the height, the largest
offset + size; with a capacity, anything above it is not legal.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.allocation.buffers import Buffers, buffers_as_program, pinned_buffers, program_as_buffers
from loadmaster.allocation.buffers_csv import format_buffers, parse_buffers
from loadmaster.machine import load_machine, read_machine
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import Violation, check_offsets
from loadmaster.plan.live_ranges import find_live_ranges, place_weights, resident_bytes
from loadmaster.plan.plan import NO_OFFSET, Plan, Residency
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Bound, Decision, Problem, decided_elsewhere, refuse_first_alone
from loadmaster.simulate.simulator import simulate
from loadmaster.units import UNLIMITED

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class Allocation(Problem):
    """The offset problem over plain buffers. The program has one op per stretch of time in which
    the same buffers are alive, and one tensor per piece of a buffer."""

    kind = "allocation"
    unit = "bytes"

    def __init__(self, buffers: Buffers, capacity: int | None = None, name: str = "buffers") -> None:
        self.buffers = buffers
        self.capacity = capacity
        self.name = name

    @cached_property
    def program(self) -> Program:  # type: ignore[override]  # made when it is needed first
        return buffers_as_program(self.buffers, self.name)

    @cached_property
    def machine(self) -> Machine:  # type: ignore[override]
        return load_machine(f"arena:{UNLIMITED if self.capacity is None else max(1, self.capacity)}")

    @cached_property
    def native(self) -> _core.Buffers:
        """The buffers as the native core holds them."""
        b = self.buffers
        gaps = [(buffer, *gap) for buffer, rows in sorted(b.gaps.items()) for gap in rows]
        return _core.Buffers(
            b.lower,
            b.upper,
            b.size,
            b.alignment,
            b.pinned,
            b.hint,
            np.array(gaps, dtype=np.int64).reshape(len(gaps), 5),
            np.array(b.apart, dtype=np.int32).reshape(len(b.apart), 2),
        )

    def options(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "buffers": self.buffers.hash}

    def evaluate(self, decision: Decision) -> int | None:
        """The height; None if buffers collide, rules are broken, or it exceeds the capacity."""
        offsets = np.ascontiguousarray(decision, dtype=np.int64)
        if offsets.shape != (len(self.buffers),):
            return None
        height = self.native.height(offsets)  # negative: not legal
        legal = height >= 0 and (self.capacity is None or height <= self.capacity)
        return int(height) if legal else None

    def plan(self, decision: Decision) -> Plan:
        pieces, memory = self.buffers.pieces, self.machine.memory("arena")
        _, first, last = self.buffers.stretches
        offset = np.asarray(decision, dtype=np.int64)[pieces.buffer] + pieces.low
        kept = np.flatnonzero(pieces.high > pieces.low)
        columns = [kept, np.full(len(kept), memory), offset[kept], first[kept], last[kept]]
        return Plan(residencies=np.stack(columns, axis=1).astype(np.int64) if len(kept) else None)

    def decision(self, plan: Plan) -> Decision:
        offsets = np.zeros(len(self.buffers), dtype=np.int64)
        pieces = self.buffers.pieces
        if plan.residencies is not None:
            tensor, _, offset, _, _ = plan.residencies.T
            offsets[pieces.buffer[tensor]] = offset - pieces.low[tensor]
        empty = (self.buffers.size == 0) & (self.buffers.pinned > 0)
        offsets[empty] = self.buffers.pinned[empty]  # an empty buffer has no residency
        return offsets

    def adapt(self, plan: Plan) -> Decision:
        """The plan's own offsets, or the buffers in the order of these, each as low as it goes."""
        own = self.decision(plan)
        placed = self.native.place(np.argsort(own, kind="stable").astype(np.int32))
        heights = [height for height in map(self.evaluate, (own, placed)) if height is not None]
        return own if self.evaluate(own) == min(heights, default=None) else placed

    def outside(self, plan: Plan) -> list[Violation]:
        """Anything but one offset for the life of each buffer, by the buffers' own rules."""
        decision = self.decision(plan)
        again = self.plan(decision)
        wrong = decided_elsewhere(plan, self.kind, ("residencies", "order"))
        if not _same_rows(plan, again):
            wrong.append(
                Violation(
                    self.kind,
                    f"the plan's {len(_rows(plan)):,} residencies are not the lives of "
                    f"{len(self.buffers):,} buffers, each at one offset: decide offsets alone",
                    number=len(_rows(plan)),
                )
            )
        if (plan.order is None) != (again.order is None) or not np.array_equal(
            plan.order if plan.order is not None else (), again.order if again.order is not None else ()
        ):
            wrong.append(Violation(self.kind, "the order is not the one whose lives these are"))
        return self.offset_violations(decision) + wrong

    def offset_violations(self, decision: Decision) -> list[Violation]:
        """The buffers' own rules alone: a plain sweep that a million buffers can afford."""
        b = self.buffers
        return check_offsets(
            b.ids,
            b.pieces,
            b.size,
            np.asarray(decision, dtype=np.int64),
            alignment=b.alignment,
            pinned=b.pinned,
            apart=b.apart,
            capacity=self.capacity,
        )

    def bound(self) -> Bound:
        return Bound(self.buffers.max_live, "bytes alive at one time")

    def save(self, folder: Path) -> None:
        (folder / "buffers.csv").write_text(format_buffers(self.buffers), encoding="utf-8")
        about = {"name": self.name, "capacity": self.capacity, "apart": self.buffers.apart}
        (folder / "problem.json").write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Allocation:
        """What `save` wrote."""
        about = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
        if about.get("of") == "program":
            order = about.get("order")
            return ProgramAllocation(
                load(folder / "program.npz"),
                read_machine(folder / "machine.toml"),
                order=None if order is None else np.array(order, dtype=np.int32),
                pins=Pins.of_json(about.get("pins")),
            )
        buffers = parse_buffers((folder / "buffers.csv").read_text(encoding="utf-8"), "buffers.csv")
        apart = tuple((int(a), int(b)) for a, b in about["apart"])
        return cls(buffers.changed(apart=apart), about["capacity"], about["name"])


def _rows(plan: Plan) -> Int64:
    """[r, 5] the residencies."""
    return np.empty((0, 5), dtype=np.int64) if plan.residencies is None else plan.residencies


def _same_rows(plan: Plan, other: Plan) -> bool:
    """Whether two plans have the same residencies, in whatever order."""
    one, two = _rows(plan), _rows(other)
    if np.array_equal(one, two):
        return True
    return np.array_equal(one[np.lexsort(one.T[::-1])], two[np.lexsort(two.T[::-1])])


class ProgramAllocation(Allocation):
    """The offset problem of a program in the home memory of the machine's device, in its own order
    or in `order` (all ops, views too). `pins` may fix offsets.

    Weights and state are not decided: they lie in the first other memory, if there is one and they
    need not stay at home.
    """

    def __init__(
        self, program: Program, machine: Machine, *, order: Int32 | None = None, pins: Pins | None = None
    ) -> None:
        refuse_first_alone(machine, self.kind)
        if program.costs is not None:  # an op that the device can't run
            simulate(program, machine)
        self._memory, self.order, self.pins = machine.home[0], order, pins or Pins()
        buffers, self._roots = program_as_buffers(program, machine, self._memory, order)
        if self.pins:
            buffers = pinned_buffers(buffers, self._roots, program, machine, self.pins)
        home = machine.memories[self._memory]
        self.resident = resident_bytes(program, home.alignment, self._weights(program, machine))
        """Bytes of the weights and state that stay at home: no buffer has their room."""
        room = max(0, home.capacity - self.resident)
        super().__init__(buffers, room if home.capacity < UNLIMITED else None, program.name)
        self.__dict__["program"], self.__dict__["machine"] = program, machine

    def _weights(self, program: Program, machine: Machine) -> list[Residency]:
        """Where weights and state lie, if not at home."""
        others = [memory for memory in machine.reach[0] if memory != self._memory]
        return list(place_weights(program, others[0], self.order)) if others else []

    def options(self) -> dict[str, Any]:
        order = {} if self.order is None else {"order": self.order.tolist()}
        return super().options() | order | ({"pins": self.pins.as_json()} if self.pins else {})

    def plan(self, decision: Decision) -> Plan:
        rows = self._lives.copy()
        rows[: len(self._buffer), 2] = np.asarray(decision, dtype=np.int64)[self._buffer]
        order = None if self.order is None else np.array(self.order, dtype=np.int32)
        return Plan(residencies=rows if len(rows) else None, order=order)

    @cached_property
    def _buffer(self) -> Int64:
        """[roots] the buffer of each, buffer by buffer."""
        return np.repeat(np.arange(len(self._roots)), [len(group) for group in self._roots])

    @cached_property
    def _lives(self) -> Int64:
        """The residencies of all plans: roots of buffers, at offsets that a decision gives, and weights elsewhere."""
        first, last = find_live_ranges(self.program, self.order)
        root = np.array([root for group in self._roots for root in group], dtype=np.int64)
        memory = np.full(len(root), self._memory)
        own = np.stack([root, memory, np.full(len(root), NO_OFFSET), first[root], last[root]], axis=1)
        weights = np.array(self._weights(self.program, self.machine), dtype=np.int64).reshape(-1, 5)
        return np.concatenate([own, weights])

    def decision(self, plan: Plan) -> Decision:
        of_root = np.zeros(self.program.n_tensors, dtype=np.int64)
        if plan.residencies is not None:
            of_root[plan.residencies[:, 0]] = plan.residencies[:, 2]
        return of_root[np.array([group[0] for group in self._roots], dtype=np.int64)]

    def save(self, folder: Path) -> None:
        about = {
            "of": "program",
            "order": None if self.order is None else self.order.tolist(),
            "pins": self.pins.as_json(),
        }
        (folder / "problem.json").write_text(json.dumps(about), encoding="utf-8")
