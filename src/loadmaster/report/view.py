"""One plan as the page shows it over time: its columns, and what is said about each memory."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.plan.check.facts import Facts
from loadmaster.problems.allocation import Allocation
from loadmaster.problems.order.problem import PeakOrder
from loadmaster.report.columns import Columns
from loadmaster.report.holdings import Boxes, duration, find_boxes
from loadmaster.report.lanes import Bars, Moves, find_bars, find_moves
from loadmaster.report.places import tensor_memories
from loadmaster.report.profile import Profile, profiles
from loadmaster.report.subject import Subject
from loadmaster.units import UNLIMITED

Int64 = npt.NDArray[np.int64]
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
