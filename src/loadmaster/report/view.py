"""One plan as the page shows it over time: its columns, and what is said about each memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.problem import Allocation
from loadmaster.machine.machine import Machine
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.occupancy import Occupancy
from loadmaster.plan.plan import BEFORE, WHOLE
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.report.memory_map import (
    Profile,
    Residencies,
    compute_duration,
    find_profiles,
    find_residencies,
)
from loadmaster.report.page import Columns
from loadmaster.report.subject import Subject
from loadmaster.simulate import Timeline
from loadmaster.units import UNLIMITED

Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
NOWHERE = -1
MOST_RESIDENCIES = 500_000
"""More are not drawn: the largest are."""
_MOST_ROWS = 6
"""Copies of one link that wait side by side; more are drawn over one another."""


@dataclass(frozen=True)
class Transitions:
    """Tensors by their memory before (rows) and after (columns)."""

    memories: list[int]
    """The machine's numbers, in the order of rows and columns."""
    bytes: Int64
    count: Int64


def tensor_memories(occupancy: Occupancy) -> Int64:
    """[T] the memory that serves most of the accesses to a root; NOWHERE: nobody uses it."""
    steps, memories = occupancy.steps, len(occupancy.machine.memories)
    own = steps.writer[steps.write_tensor] == steps.write_step
    tensor = np.concatenate([steps.read_tensor, steps.write_tensor[own]])
    memory = np.concatenate([occupancy.reads[0], occupancy.writes[0][own]])
    found = np.full(occupancy.program.n_tensors, NOWHERE, dtype=np.int64)
    key, count = np.unique(tensor * memories + memory, return_counts=True)
    order = np.lexsort((-key, count, key // memories))
    found[key[order] // memories] = key[order] % memories  # the most often used comes last and stays
    open_ = found != NOWHERE
    if occupancy.plan.residencies is not None:
        open_[occupancy.plan.residencies[:, 0]] = False
    return np.where(open_, occupancy.home[occupancy.home_device], found)


def count_transitions(program: Program, old: Int64, new: Int64) -> Transitions | None:
    """None where all tensors share one memory, before and after."""
    both = np.flatnonzero((old != NOWHERE) & (new != NOWHERE))
    memories = np.unique(np.concatenate([old[both], new[both]])).tolist()
    if len(memories) < 2:
        return None
    at = {memory: number for number, memory in enumerate(memories)}
    rows = np.array([at[memory] for memory in old[both].tolist()])
    columns = np.array([at[memory] for memory in new[both].tolist()])
    size = np.zeros((len(memories), len(memories)), dtype=np.int64)
    count = np.zeros_like(size)
    np.add.at(size, (rows, columns), program.storage_bytes[both])
    np.add.at(count, (rows, columns), 1)
    return Transitions(memories, size, count)


def strip_tensors(program: Program) -> tuple[Int64, Int64]:
    """([n] the largest result of each op, [n] the largest weight or state that it reads), as roots;
    NOWHERE: none. Views have neither."""
    kept = np.isin(program.tensor_kind[program.tensor_alias], [int(kind) for kind in PERSISTENT])
    results = _largest(program, program.write_op, program.write_tensor, ~kept)
    weights = _largest(program, program.read_op, program.read_tensor, kept)
    return results, weights


def _largest(
    program: Program, op: npt.NDArray[np.int32], tensor: npt.NDArray[np.int32], chosen: npt.NDArray[np.bool_]
) -> Int64:
    found = np.full(program.n_ops, NOWHERE, dtype=np.int64)
    kept = np.flatnonzero(~program.op_view[op] & chosen[tensor])
    root = program.tensor_alias[tensor[kept]]
    order = np.argsort(program.storage_bytes[root], kind="stable")
    found[op[kept][order]] = root[order]  # the largest comes last and stays
    return found


def strip_rows(tensors: tuple[Int64, Int64], memories: Int64) -> list[Int8]:
    """The memory of each of them, NOWHERE where there is none."""
    rows = []
    for row in tensors:
        where = np.where(row == NOWHERE, NOWHERE, memories[row])
        rows.append(where.astype(np.int8))
    return rows


@dataclass(frozen=True)
class Bars:
    """Steps of devices, by start. A fused group is one step."""

    op: Int64
    """The step's number: its smallest op."""
    members: Int64
    device: Int64
    start: Int64
    end: Int64
    stall: Int64
    work: Int64
    """The class of most of its flops, as in `FLOP_CLASSES`; 3: it has none."""


@dataclass(frozen=True)
class Moves:
    """Copies and transfers, by start."""

    tensor: Int64
    link: Int64
    start: Int64
    end: Int64
    bytes: Int64
    issued_after: Int64
    """An op, or BEFORE."""
    needed_by: Int64
    """An op, or the number of ops: the end."""
    row: Int64
    """Of the lane of its link."""
    stalls: npt.NDArray[np.bool_]
    """Whether an op waits for it."""
    planned: npt.NDArray[np.bool_]
    """Whether it is a copy of the plan, not a transfer between devices that follows from it."""


def find_bars(occupancy: Occupancy, timeline: Timeline) -> Bars:
    """All steps."""
    steps = occupancy.steps
    flops = np.zeros((len(steps), 3), dtype=np.int64)
    real = steps.of_op >= 0
    np.add.at(flops, steps.of_op[real], occupancy.program.op_flops[real])
    work = np.where(flops.any(axis=1), flops.argmax(axis=1), 3) if len(steps) else steps.op
    start, end = timeline.op_start[steps.op], timeline.op_end[steps.op]
    order = np.lexsort((steps.op, start))
    columns = (steps.op, steps.members, steps.device, start, end, timeline.op_stall[steps.op], work)
    return Bars(*(column[order] for column in columns))


def find_moves(occupancy: Occupancy, timeline: Timeline) -> Moves:
    """All copies and transfers."""
    table = np.concatenate([_copies(occupancy, timeline), _transfers(occupancy, timeline)])
    table = table[np.argsort(table[:, 2], kind="stable")]
    tensor, link, start, end, size, issued, needed, stalls, planned = table.T
    lane = _lanes(link, start, end)
    return Moves(tensor, link, start, end, size, issued, needed, lane, stalls > 0, planned > 0)


def _links(machine: Machine) -> Int64:
    """[memories, memories] the link from one to another, or -1"""
    found = np.full((len(machine.memories),) * 2, -1, dtype=np.int64)
    for (source, target), link in machine.link_between.items():
        found[source, target] = link
    return found


def _copies(occupancy: Occupancy, timeline: Timeline) -> Int64:
    """[copies, 9] tensor, link, start, end, bytes, issued after, needed by, whether an op waits, 1"""
    if occupancy.plan.copies is None:
        return np.zeros((0, 9), dtype=np.int64)
    tensor, source, target, issued, needed_by, low, high = occupancy.plan.copies.T
    size = np.where(low == WHOLE, occupancy.program.storage_bytes[tensor], high - low)
    op = np.append(occupancy.steps.op, -1)[occupancy.copy_ranks[1]]
    stall, start = (np.append(column, -1)[op] for column in (timeline.op_stall, timeline.op_start))
    waits = (op >= 0) & (stall > 0) & (start == timeline.copy_end)
    link = _links(occupancy.machine)[source, target]
    times = (timeline.copy_start, timeline.copy_end)
    return np.stack([tensor, link, *times, size, issued, needed_by, waits, np.ones_like(tensor)], axis=1)


def _transfers(occupancy: Occupancy, timeline: Timeline) -> Int64:
    """[transfers, 9] as the copies' columns; they are issued by the step that makes the tensor"""
    tensor, device, start, end = timeline.transfers.astype(np.int64).reshape(-1, 4).T
    home, devices, known = occupancy.home, len(occupancy.machine.devices), occupancy.transfers
    link = _links(occupancy.machine)[home[occupancy.home_device[tensor]], home[device]]
    made = np.append(occupancy.steps.op, BEFORE)[occupancy.steps.writer[tensor]]
    key, own = known.tensor * devices + known.device, tensor * devices + device
    at = np.searchsorted(key, own)
    expected = np.append(key, -1)[at] == own
    needed_by = np.where(expected, np.append(known.needed_by, 0)[at], occupancy.program.n_ops)
    none = np.zeros_like(tensor)
    size = occupancy.program.storage_bytes[tensor]
    return np.stack([tensor, link, start, end, size, made, needed_by, none, none], axis=1)


def _lanes(link: Int64, start: Int64, end: Int64) -> Int64:
    """[moves] the first row of its lane that is free; the last where none is."""
    free: dict[int, list[int]] = {}
    lane = np.zeros(len(link), dtype=np.int64)
    for i, (k, s, e) in enumerate(zip(link.tolist(), start.tolist(), end.tolist(), strict=True)):
        rows = free.setdefault(k, [])
        spot = next((row for row, until in enumerate(rows) if until <= s), len(rows))
        spot = min(spot, _MOST_ROWS - 1)
        if spot == len(rows):
            rows.append(e)
        rows[spot] = max(rows[spot], e)
        lane[i] = spot
    return lane


@dataclass
class View:
    """A subject, looked at from all sides."""

    subject: Subject
    role: str
    """'after' or 'before'"""

    @cached_property
    def occupancy(self) -> Occupancy:
        subject = self.subject
        return Occupancy(subject.program, subject.machine, subject.plan, subject.timeline)

    @cached_property
    def residencies(self) -> Residencies:
        return find_residencies(self.occupancy, compute_duration(self.subject.timeline))

    @cached_property
    def profiles(self) -> list[Profile]:
        return find_profiles(self.occupancy, self.residencies, compute_duration(self.subject.timeline))

    @cached_property
    def devices(self) -> list[int]:
        """Those that run something."""
        return [int(number) for number in np.unique(self.occupancy.steps.device)]

    @cached_property
    def bars(self) -> Bars:
        return find_bars(self.occupancy, self.subject.timeline)

    @cached_property
    def moves(self) -> Moves:
        return find_moves(self.occupancy, self.subject.timeline)

    @cached_property
    def memories(self) -> Int64:
        """[T] where each tensor is used."""
        return tensor_memories(self.occupancy)

    def write(self, columns: Columns, prefix: str) -> dict[str, Any]:
        """Add the columns; returns what the page has to know beside them."""
        residencies, left_out = _largest_residencies(self.residencies)
        for part, table in (("box", residencies), ("bar", self.bars), ("move", self.moves)):
            for field in fields(table):
                columns.add(f"{prefix}.{part}.{field.name}", getattr(table, field.name))
        when, ops, numbered = self._warp()
        columns.add(f"{prefix}.warp.when", when)
        columns.add(f"{prefix}.warp.op", ops)
        for profile in self.profiles:
            columns.add(f"{prefix}.profile{profile.memory}.when", profile.when)
            columns.add(f"{prefix}.profile{profile.memory}.bytes", profile.bytes)
        machine, timeline = self.subject.machine, self.subject.timeline
        memories = [self._memory(profile) for profile in self.profiles]
        links = sorted(set(self.moves.link.tolist()))
        return {
            "name": self.subject.name,
            "role": self.role,
            "prefix": prefix,
            "total": compute_duration(timeline),
            "numbered": numbered,
            "left_out": left_out,
            "memories": memories,
            "devices": [
                {
                    "number": number,
                    "name": machine.devices[number].name,
                    "busy": int(timeline.device_busy[number]),
                }
                for number in self.devices
            ],
            "links": [
                {
                    "number": number,
                    "bytes": int(timeline.link_bytes[number]),
                    "name": f"{machine.links[number].source} → {machine.links[number].target}",
                    "rows": int(self.moves.row[self.moves.link == number].max()) + 1,
                }
                for number in links
            ],
        }

    def peak_op(self, profile: Profile) -> int | None:
        """The op that runs at the peak; the first of them if several do."""
        running = (self.bars.start <= profile.peak_at) & (self.bars.end > profile.peak_at)
        rows = np.flatnonzero(running)
        return int(self.bars.op[rows[0]]) if len(rows) else None

    def _memory(self, profile: Profile) -> dict[str, Any]:
        memory = self.subject.machine.memories[profile.memory]
        here = self.residencies.memory == profile.memory
        return {
            "number": profile.memory,
            "name": memory.name,
            "peak": profile.peak,
            "capacity": None if memory.capacity >= UNLIMITED else memory.capacity,
            "peak_at": profile.peak_at,
            "alive": profile.alive,
            "floor": self._floor(profile),
            "top": int((self.residencies.address + self.residencies.size)[here].max(initial=0)),
            "decided": int(self.residencies.decided[here].sum()),
            "boxes": int(here.sum()),
        }

    def _floor(self, profile: Profile) -> int | None:
        """Bytes below which no plan stays, where the problem is about this memory's bytes."""
        subject = self.subject
        if not isinstance(subject.problem, Allocation | PeakOrder) or not subject.bound:
            return None
        if profile.memory != subject.machine.home[0]:
            return None
        kept = subject.problem.resident if isinstance(subject.problem, PeakOrder) else 0
        return subject.bound + kept

    def _warp(self) -> tuple[Int64, Int64, bool]:
        """(moments, op axis there, whether that axis counts places in the plan's order): so that
        every op takes equal room. Ops of several devices overlap and are counted by their start."""
        starts, bars = self.bars.start, self.bars
        steps = self.occupancy.steps
        position = steps.position[steps.of_op[bars.op]]
        numbered = bool((np.diff(position) > 0).all())
        along = position if numbered else np.arange(len(starts), dtype=np.int64)
        when, first = np.unique(starts, return_index=True)
        end = max(1, self.subject.program.n_ops if numbered else len(starts))
        total = compute_duration(self.subject.timeline)
        if not len(when) or when[0] > 0:
            when, first = np.concatenate([[0], when]), np.concatenate([[0], first])
        ops = along[first] if len(along) else np.zeros(1, dtype=np.int64)
        ops[0] = 0
        return np.append(when, max(total, int(when[-1]) + 1)), np.append(ops, end), numbered


def _largest_residencies(table: Residencies) -> tuple[Residencies, int]:
    """The largest, should there be too many to draw, and how many were left out."""
    if len(table) <= MOST_RESIDENCIES:
        return table, 0
    area = (table.end - table.begin).astype(np.float64) * table.size
    rows = np.sort(np.argsort(-area, kind="stable")[:MOST_RESIDENCIES])
    kept = Residencies(*(getattr(table, field.name)[rows] for field in fields(table)))
    return kept, len(table) - MOST_RESIDENCIES
