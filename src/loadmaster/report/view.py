"""One plan as the page shows it over time: its columns, and what is said about each memory."""

from __future__ import annotations

import base64
import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.problem import Allocation
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.check.facts import Facts
from loadmaster.plan.plan import BEFORE, WHOLE
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.report.holdings import Boxes, duration, find_boxes
from loadmaster.report.subject import Subject
from loadmaster.simulate import Timeline
from loadmaster.units import UNLIMITED

# ----------------------------------------------------------------------------
# Columns for the page: little-endian typed arrays in one gzip stream, and where each begins.

_KINDS = {"i1": "Int8Array", "u1": "Uint8Array", "i4": "Int32Array", "f8": "Float64Array"}


class Columns:
    """Collects arrays by name. Whole numbers take the smallest type that holds them; what is above
    32 bits becomes a float, exact up to 2^53."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self.table: dict[str, list[Any]] = {}
        """Name -> [type in JavaScript, byte offset, length]."""

    def add(self, name: str, values: npt.ArrayLike) -> None:
        array = np.asarray(values)
        kind = _smallest(array)
        data = np.ascontiguousarray(array.astype(f"<{kind}")).tobytes()
        self._pad()
        self.table[name] = [_KINDS[kind], self._length, array.size]
        self._parts.append(data)
        self._length += len(data)

    def add_texts(self, name: str, texts: tuple[str, ...] | list[str]) -> None:
        """Texts as one UTF-8 stream and their ends: any character survives."""
        # Lone surrogates come from names that were no text; they are shown as '?'.
        encoded = [text.encode("utf-8", "replace") for text in texts]
        self.add(f"{name}.ends", np.cumsum([len(text) for text in encoded], dtype=np.int64))
        self._pad()
        data = b"".join(encoded)
        self.table[name] = ["text", self._length, len(data)]
        self._parts.append(data)
        self._length += len(data)

    def packed(self) -> str:
        """Everything, as base64."""
        data = gzip.compress(b"".join(self._parts), compresslevel=6, mtime=0)
        return base64.b64encode(data).decode("ascii")

    def _pad(self) -> None:
        # Typed arrays must begin at a multiple of their element size.
        gap = -self._length % 8
        self._parts.append(bytes(gap))
        self._length += gap


def _smallest(array: npt.NDArray[Any]) -> str:
    if array.dtype.kind == "f":
        return "f8"
    if array.dtype.kind == "b":
        return "u1"
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for kind, least, most in (("u1", 0, 255), ("i1", -128, 127), ("i4", -(2**31), 2**31 - 1)):
        if least <= low and high <= most:
            return kind
    return "f8"


# ----------------------------------------------------------------------------
# Where tensors live, before and after: the transition matrix and the strip along the program.

Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
NOWHERE = -1


@dataclass(frozen=True)
class Transitions:
    """Tensors by their memory before (rows) and after (columns)."""

    memories: list[int]
    """The machine's numbers, in the order of rows and columns."""
    bytes: Int64
    count: Int64


def tensor_memories(facts: Facts) -> Int64:
    """[T] the memory that serves most of the accesses to a root; NOWHERE: nobody uses it."""
    found = np.full(facts.n_tensors, NOWHERE, dtype=np.int64)
    home = facts.machine.home
    for tensor in facts.roots:
        users = list(facts.readers[tensor])
        writer = facts.writer[tensor]
        if writer >= 0 and tensor in facts.steps[writer].writes:
            users.append(writer)
        if not users:
            continue
        if tensor not in facts.residencies_of:
            found[tensor] = home[facts.home_device[tensor]]
            continue
        served = Counter(facts.serves(rank, tensor)[0] for rank in users)
        found[tensor] = max(served, key=lambda memory: (served[memory], -memory))
    return found


def transitions(program: Program, old: Int64, new: Int64) -> Transitions | None:
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
    program: Program, op: npt.NDArray[np.int32], tensor: npt.NDArray[np.int32], wanted: npt.NDArray[np.bool_]
) -> Int64:
    found = np.full(program.n_ops, NOWHERE, dtype=np.int64)
    kept = np.flatnonzero(~program.op_view[op] & wanted[tensor])
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


# ----------------------------------------------------------------------------
# What devices and links do over time: bars for steps, copies and transfers.

_MOST_ROWS = 6
"""Copies of one link that wait side by side; more are drawn over one another."""


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


def find_bars(facts: Facts, timeline: Timeline) -> Bars:
    """All steps."""
    number = np.array([step.number for step in facts.steps], dtype=np.int64)
    members = np.array([len(step.members) for step in facts.steps], dtype=np.int64)
    device = np.array([step.device for step in facts.steps], dtype=np.int64)
    flops = np.zeros((len(number), 3), dtype=np.int64)
    step_of = np.array(facts.step_of, dtype=np.int64)
    real = step_of >= 0
    np.add.at(flops, step_of[real], facts.program.op_flops[real])
    work = np.where(flops.any(axis=1), flops.argmax(axis=1), 3) if len(number) else number
    start, end = timeline.op_start[number], timeline.op_end[number]
    order = np.lexsort((number, start))
    columns = (number, members, device, start, end, timeline.op_stall[number], work)
    return Bars(*(column[order] for column in columns))


def find_moves(facts: Facts, timeline: Timeline) -> Moves:
    """All copies and transfers."""
    rows = [*_copies(facts, timeline), *_transfers(facts, timeline)]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 9)
    table = table[np.argsort(table[:, 2], kind="stable")]
    tensor, link, start, end, size, issued, needed, stalls, planned = table.T
    lane = _lanes(link, start, end)
    return Moves(tensor, link, start, end, size, issued, needed, lane, stalls > 0, planned > 0)


def _copies(facts: Facts, timeline: Timeline) -> Iterator[tuple[int, ...]]:
    for row, copy in enumerate(facts.copies):
        link = facts.machine.link_between[copy.source, copy.target]
        size = facts.size[copy.tensor] if copy.low == WHOLE else copy.high - copy.low
        start, end = int(timeline.copy_start[row]), int(timeline.copy_end[row])
        needed = facts.needed(row)
        waits = needed < len(facts.steps) and _waits(facts, timeline, needed, end)
        yield copy.tensor, link, start, end, size, copy.issued_after, copy.needed_by, waits, 1


def _transfers(facts: Facts, timeline: Timeline) -> Iterator[tuple[int, ...]]:
    home = facts.machine.home
    for tensor, device, start, end in timeline.transfers.tolist():
        link = facts.machine.link_between[home[facts.home_device[tensor]], home[device]]
        writer = facts.writer[tensor]
        made = facts.steps[writer].number if writer >= 0 else BEFORE
        ranks = facts.transfers.get((tensor, device), [])
        needed_by = min((facts.steps[rank].number for rank in ranks), default=facts.n_ops)
        yield tensor, link, start, end, facts.size[tensor], made, needed_by, 0, 0


def _waits(facts: Facts, timeline: Timeline, rank: int, end: int) -> int:
    number = facts.steps[rank].number
    return int(timeline.op_stall[number] > 0 and timeline.op_start[number] == end)


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


# ----------------------------------------------------------------------------
# Bytes in use per memory over time, and the moment at which they are most.

_LARGEST = 10


@dataclass(frozen=True)
class Profile:
    """A memory's bytes: `bytes[i]` from `when[i]` on. The peak is that of the timeline."""

    memory: int
    when: Int64
    bytes: Int64
    peak: int
    peak_at: int
    """The first moment at which it is reached, picoseconds."""
    largest: list[int]
    """The largest tensors there then, largest first."""
    alive: int
    """How many tensors are there then."""


def profiles(boxes: Boxes) -> list[Profile]:
    """Of every memory that holds anything."""
    return [_profile(boxes, memory, span) for memory, span in sorted(boxes.spans.items())]


def _profile(boxes: Boxes, memory: int, span: Int64) -> Profile:
    begin, end, size = span.T
    moments = np.unique(np.concatenate([begin, end]))
    change = np.zeros(len(moments), dtype=np.int64)
    np.add.at(change, np.searchsorted(moments, begin), size)
    np.subtract.at(change, np.searchsorted(moments, end), size)
    held = np.cumsum(change)
    top = int(held.argmax()) if len(held) else 0
    at = int(moments[top]) if len(held) else 0
    here = (boxes.memory == memory) & (boxes.begin <= at) & (boxes.end > at)
    rows = np.flatnonzero(here)
    ranked = rows[np.lexsort((boxes.tensor[rows], -boxes.size[rows]))]
    tensors = list(dict.fromkeys(boxes.tensor[ranked].tolist()))
    peak = int(held[top]) if len(held) else 0
    return Profile(memory, moments, held, peak, at, tensors[:_LARGEST], len(tensors))


MOST_BOXES = 500_000


@dataclass
class View:
    """A subject, looked at from all sides."""

    subject: Subject
    role: str
    """'after' or 'before'"""

    @cached_property
    def facts(self) -> Facts:
        subject = self.subject
        return Facts(subject.program, subject.machine, subject.plan)

    @cached_property
    def boxes(self) -> Boxes:
        return find_boxes(self.facts, self.subject.timeline)

    @cached_property
    def profiles(self) -> list[Profile]:
        return profiles(self.boxes)

    @cached_property
    def bars(self) -> Bars:
        return find_bars(self.facts, self.subject.timeline)

    @cached_property
    def moves(self) -> Moves:
        return find_moves(self.facts, self.subject.timeline)

    @cached_property
    def memories(self) -> Int64:
        """[T] where each tensor is used."""
        return tensor_memories(self.facts)

    def write(self, columns: Columns, prefix: str) -> dict[str, Any]:
        """Add the columns; returns what the page has to know beside them."""
        boxes, left_out = _kept(self.boxes)
        for part, table in (("box", boxes), ("bar", self.bars), ("move", self.moves)):
            for field in fields(table):
                if field.name != "spans":
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
            "total": duration(timeline),
            "numbered": numbered,
            "left_out": left_out,
            "memories": memories,
            "devices": [
                {
                    "number": number,
                    "name": machine.devices[number].name,
                    "busy": int(timeline.device_busy[number]),
                }
                for number in self.facts.devices_used
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
        here = self.boxes.memory == profile.memory
        return {
            "number": profile.memory,
            "name": memory.name,
            "peak": profile.peak,
            "capacity": None if memory.capacity >= UNLIMITED else memory.capacity,
            "peak_at": profile.peak_at,
            "alive": profile.alive,
            "floor": self._floor(profile),
            "top": int((self.boxes.address + self.boxes.size)[here].max(initial=0)),
            "decided": int(self.boxes.decided[here].sum()),
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
        of_step = {step.number: step.position for step in self.facts.steps}
        position = np.array([of_step[op] for op in bars.op.tolist()], dtype=np.int64)
        numbered = bool((np.diff(position) > 0).all())
        along = position if numbered else np.arange(len(starts), dtype=np.int64)
        when, first = np.unique(starts, return_index=True)
        end = max(1, self.subject.program.n_ops if numbered else len(starts))
        total = duration(self.subject.timeline)
        if not len(when) or when[0] > 0:
            when, first = np.concatenate([[0], when]), np.concatenate([[0], first])
        ops = along[first] if len(along) else np.zeros(1, dtype=np.int64)
        ops[0] = 0
        return np.append(when, max(total, int(when[-1]) + 1)), np.append(ops, end), numbered


def _kept(boxes: Boxes) -> tuple[Boxes, int]:
    """The largest boxes, should there be too many to draw, and how many were left out."""
    if len(boxes) <= MOST_BOXES:
        return boxes, 0
    area = (boxes.end - boxes.begin).astype(np.float64) * boxes.size
    rows = np.sort(np.argsort(-area, kind="stable")[:MOST_BOXES])
    columns = {
        field.name: getattr(boxes, field.name)[rows] for field in fields(boxes) if field.name != "spans"
    }
    return replace(boxes, **columns), len(boxes) - MOST_BOXES
