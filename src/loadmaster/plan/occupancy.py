"""`Occupancy`: what lies in which memory and when, under a plan. Plain facts; nothing is judged.

    occupancy = Occupancy(program, machine, plan)
    occupancy.at(memory="cmem", op=117)            # -> [Residency(tensor, memory, offset, first, last), …]
    occupancy.peak("cmem")                         # -> Peak(bytes, op)
    occupancy.copies(source="hbm", target="cmem")  # -> [Copy(tensor, source, target, issued_after, …), …]

Beside the residencies that a plan decides, memories hold what it leaves open: weights and state at home,
and home copies of results and inputs from the first that makes them to the last that uses them
(docs/simulation.md, sections 2, 4 and 6). Report, exporters and executor read it from here. The checker
does not: it has a plain way of its own, and tests hold the two together.

Moments are those of a timeline, in picoseconds, where one is given. Without one they only say the order
of things (eight to a step), as if the steps ran one after another; a copy then counts from its issue to
its need, the longest that it can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import distinct
from loadmaster.errors import BadProgram
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Copy, Plan, Residency
from loadmaster.plan.steps import AT_HOME, Accesses
from loadmaster.program.hazards import places
from loadmaster.program.program import Program, TensorKind

if TYPE_CHECKING:
    from loadmaster.plan.check import TimelineLike

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

FOREVER = 2**63 - 1
"""As a moment: it is still there after the end."""


class Peak(NamedTuple):
    """The most bytes that are in a memory at once, and the op that first takes them; BEFORE: they are
    there before the program starts, or it holds nothing."""

    bytes: int
    op: int


class Profile(NamedTuple):
    """Bytes in a memory over time: `bytes[i]` from `when[i]` on."""

    when: Int64
    bytes: Int64


class Spans(NamedTuple):
    """Stretches of time that places (tensors that share their bytes) spend in one memory."""

    begin: Int64
    end: Int64
    bytes: Int64
    """Of the largest tensor of the place, rounded up to the memory's alignment."""


@dataclass(frozen=True)
class Held:
    """One row per stretch of time that a tensor spends in a memory: the plan's residencies by row, then
    what is at home. `tensor` to `last` are as in `Residency`."""

    tensor: Int64
    memory: Int64
    offset: Int64
    first: Int64
    last: Int64
    begin: Int64
    end: Int64
    """Moments; FOREVER: it is there to the end."""
    row: Int64
    """Of the plan's residencies; AT_HOME: the plan leaves it open."""

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: npt.NDArray[np.intp] | Bool) -> Held:
        """Some of the rows."""
        columns = (
            self.tensor,
            self.memory,
            self.offset,
            self.first,
            self.last,
            self.begin,
            self.end,
            self.row,
        )
        return Held(*(column[rows] for column in columns))


@dataclass(frozen=True)
class Clock:
    """When steps, copies and transfers begin and end; the program begins at `start`."""

    start: int
    step: tuple[Int64, Int64]
    copy: tuple[Int64, Int64]
    transfer: tuple[Int64, Int64]


class Occupancy(Accesses):
    """What lies where, and when, for one program, machine and plan; `timeline`: when things happen.

    Raises `BadPlan` where a plan has numbers that mean nothing. A plan that `check` refuses for other
    reasons is described as it is.
    """

    def __init__(
        self, program: Program, machine: Machine, plan: Plan, timeline: TimelineLike | None = None
    ) -> None:
        super().__init__(program, machine, plan)
        self.timeline = timeline

    # --- questions ---------------------------------------------------------------------------

    def at(self, memory: str | int, op: int) -> list[Residency]:
        """Everything that is in a memory when an op starts; of a view, when the next op does."""
        begins, number = self.clock.step[0], self._number(memory)
        if not 0 <= op < self.program.n_ops:
            raise BadProgram(
                f"program '{self.program.name}' has no op {op}",
                object=self.program.name,
                number=op,
                remedy=f"it has {self.program.n_ops:,}, numbered from 0",
            )
        if not len(begins):
            return []
        rank = min(int(self.steps.at_or_after[self.steps.position_of[op]]), len(begins) - 1)
        held, moment = self.held, int(begins[rank])
        there = (held.memory == number) & (held.begin <= moment) & (moment < held.end)
        columns = (held.tensor, held.memory, held.offset, held.first, held.last)
        return [Residency(*row) for row in np.stack(columns, axis=1)[there].tolist()]

    def peak(self, memory: str | int) -> Peak:
        """The most bytes that a memory holds, and the op that takes them first."""
        number, profile = self._number(memory), self.profile(memory)
        if not len(profile.when):
            return Peak(0, BEFORE)
        top = int(profile.bytes.argmax())
        held = self.held
        row = int(np.flatnonzero((held.memory == number) & (held.begin == profile.when[top]))[-1])
        op = int(held.first[row])
        if held.row[row] != AT_HOME and op != BEFORE:  # it may name a view, which takes nothing
            op = int(self.steps.op[self.windows[0][held.row[row]]])
        return Peak(int(profile.bytes[top]), op)

    def copies(self, source: str | int | None = None, target: str | int | None = None) -> list[Copy]:
        """The plan's copies, then the transfers between devices that follow from it; all of them, or
        those from and to a memory."""
        tensor, device = self.transfers.tensor, self.transfers.device
        made = np.append(self.steps.op, BEFORE)[self.steps.writer[tensor]]
        whole = np.full(len(tensor), -1)
        way = (self.home[self.home_device[tensor]], self.home[device])
        sent = np.stack([tensor, *way, made, self.transfers.needed_by, whole, whole], axis=1)
        rows = np.concatenate([self.copy_table, sent])
        for column, memory in ((1, source), (2, target)):
            if memory is not None:
                rows = rows[rows[:, column] == self._number(memory)]
        return [Copy(*row) for row in rows.tolist()]

    def profile(self, memory: str | int, until: int = FOREVER) -> Profile:
        """The bytes in a memory over time; what is there for ever ends at `until`."""
        begin, end, size = self.spans(memory)
        end = np.minimum(end, until)
        kept = end < FOREVER
        when, at = np.unique(np.concatenate([begin, end[kept]]), return_inverse=True)
        change = np.zeros(len(when), dtype=np.int64)
        np.add.at(change, at, np.concatenate([size, -size[kept]]))
        return Profile(when, np.cumsum(change))

    def spans(self, memory: str | int) -> Spans:
        """When the places of a memory are taken; tensors of one place count once, wherever they lie."""
        number = self._number(memory)
        held = self.held.take(self.held.memory == number)
        place = self.place[held.tensor]
        joined = join_touching(place, held.begin, held.end)
        count = int(joined.max(initial=-1)) + 1
        begin, end, size = np.full(count, FOREVER), np.full(count, -1), np.zeros(count, dtype=np.int64)
        np.minimum.at(begin, joined, held.begin)
        np.maximum.at(end, joined, held.end)
        size[joined] = self.align(self.place_bytes[place], number)
        return Spans(begin, end, size)

    def align(self, size: Int64, memory: int | Int64) -> Int64:
        """Sizes rounded up to the alignment of a memory, or of one memory each."""
        alignment = np.array([each.alignment for each in self.machine.memories], dtype=np.int64)[memory]
        rounded: Int64 = -(-size // alignment) * alignment
        return rounded

    @cached_property
    def place(self) -> Int64:
        """[T] the smallest tensor among those that share their bytes through ties"""
        return places(self.program).astype(np.int64)

    @cached_property
    def place_bytes(self) -> Int64:
        """[T] by place: the bytes of its largest root"""
        size = np.zeros(self.program.n_tensors, dtype=np.int64)
        np.maximum.at(size, self.place[self.is_root], self.program.storage_bytes[self.is_root])
        return size

    # --- moments -----------------------------------------------------------------------------------

    @cached_property
    def clock(self) -> Clock:
        """When things happen: by the timeline, or by the plan's order"""
        return self._clock_of_order() if self.timeline is None else self._clock_of_times(self.timeline)

    def _clock_of_order(self) -> Clock:
        rank, (issued, needed) = np.arange(len(self.steps)), self.copy_ranks
        # Copies in idle time: those issued earlier are awaited before others are pushed.
        early = (self.machine.rules.copies == "idle") & (issued < needed - 1)
        made, read = self.steps.writer[self.transfers.tensor], self.transfers.step
        return Clock(
            -1,
            (8 * rank + 4, 8 * rank + 8),
            (8 * issued + 10, 8 * needed + np.where(early, 1, 3)),
            (8 * made + 10, 8 * read + 3),
        )

    def _clock_of_times(self, times: TimelineLike) -> Clock:
        rows, devices = np.asarray(times.transfers, dtype=np.int64).reshape(-1, 4), len(self.machine.devices)
        key = rows[:, 0] * devices + rows[:, 1]
        order = np.argsort(key)
        own = self.transfers.tensor * devices + self.transfers.device
        spot = np.searchsorted(key[order], own)
        at = np.append(order, -1)[spot]
        known = np.append(key, -1)[at] == own  # not all of a plan that is not sound
        begin, end = (np.where(known, np.append(rows[:, c], 0)[at], times.total_ps) for c in (2, 3))
        op = self.steps.op
        return Clock(
            0, (times.op_start[op], times.op_end[op]), (times.copy_start, times.copy_end), (begin, end)
        )

    # --- what is held ----------------------------------------------------------------------------

    @cached_property
    def held(self) -> Held:
        """Everything that is in a memory for some time"""
        parts = [self._held_by_plan(), self._held_between_runs(), self._held_at_home()]
        columns = (np.concatenate(each) for each in zip(*parts, strict=True))
        held = Held(*columns)
        return held.take(held.begin < held.end)

    @cached_property
    def _kept_elsewhere(self) -> Bool:
        """[T] weights and state with a residency between runs: their home need not keep them"""
        found = np.zeros(self.program.n_tensors, dtype=np.bool_)
        found[self.residency_table[self.residency_table[:, 3] == BEFORE, 0]] = True
        return found & self.is_persistent

    def _held_by_plan(self) -> list[Int64]:
        table, (first, last) = self.residency_table, self.windows
        rows = np.flatnonzero(self.is_root[table[:, 0]] & (first <= last))
        begin, end = (np.append(each, 0) for each in self.clock.step)
        before = table[rows, 3] == BEFORE
        return [
            *table[rows].T,
            np.where(before, self.clock.start, begin[first[rows]]),
            np.where(before, FOREVER, end[last[rows]]),
            rows,
        ]

    def _held_between_runs(self) -> list[Int64]:
        tensor = np.flatnonzero(self.is_root & self.is_persistent & ~self._kept_elsewhere)
        memory = self.home[self.home_device[tensor]]
        constant = (NO_OFFSET, BEFORE, self._op_at(np.array([len(self.steps)]))[0], self.clock.start, FOREVER)
        offset, first, last, begin, end = (np.full(len(tensor), value) for value in constant)
        return [tensor, memory, offset, first, last, begin, end, np.full(len(tensor), AT_HOME)]

    def _held_at_home(self) -> list[Int64]:
        """Home copies: from the first that opens one to the last that uses it."""
        uses, opens = self._home_events()
        devices = len(self.machine.devices)
        used = np.stack([uses.tensor * devices + uses.device, uses.moment, uses.rank])
        key, of_use = np.unique(used[0], return_inverse=True)
        end, last = np.full(len(key), -1), np.full(len(key), -1)
        np.maximum.at(end, of_use, used[1])
        np.maximum.at(last, of_use, used[2])
        opened = opens.tensor * devices + opens.device
        order = np.lexsort((np.arange(len(opened)), opens.moment, opened))
        own, first = np.unique(opened[order], return_index=True)
        row, at = order[first], np.searchsorted(key, own)
        return [
            own // devices,
            self.home[own % devices],
            np.full(len(own), NO_OFFSET),
            opens.rank[row],
            self._op_at(last[at]),
            opens.moment[row],
            end[at],
            np.full(len(own), AT_HOME),
        ]

    def _home_events(self) -> tuple[_Events, _Events]:
        """(uses of home copies: until when, up to which rank; what opens them: when, which op)"""
        kind, clock, elsewhere = self.program.tensor_kind, self.clock, self._kept_elsewhere
        is_input, lives_on = kind == TensorKind.INPUT, self.near[self.home_device]
        parts = (self._step_events(lives_on), self._transfer_events(lives_on), self._copy_events(lives_on))
        uses = [event for each, _ in parts for event in each]
        opens = [event for _, event in parts]

        # What is given is there from the start: inputs wherever they are used, the others at home.
        used = _joined(uses)
        given = is_input[used.tensor] | (elsewhere[used.tensor] & (used.device == lives_on[used.tensor]))
        tensor = used.tensor[given]
        start, before = np.full(len(tensor), clock.start), np.full(len(tensor), BEFORE)
        opens.append(_Events(tensor, used.device[given], start, before))

        outputs = distinct(self.root[kind == TensorKind.OUTPUT])
        outputs = outputs[~is_input[outputs]]
        last = np.full(len(outputs), len(self.steps) - 1)
        uses.append(_Events(outputs, lives_on[outputs], np.full(len(outputs), FOREVER), last))
        opened = _joined(opens)
        anyway = (self.is_persistent & ~elsewhere)[opened.tensor] & (opened.device == lives_on[opened.tensor])
        return _joined(uses), _Events(*(column[~anyway] for column in opened))

    def _step_events(self, lives_on: Int64) -> tuple[list[_Events], _Events]:
        """What steps read and write at home: (uses, what opens); `lives_on`: [T] device."""
        steps, (begin, end) = self.steps, self.clock.step
        own = (self.writes[1] == AT_HOME) & (steps.writer[steps.write_tensor] == steps.write_step)
        step, tensor = steps.write_step[own], steps.write_tensor[own]
        device = lives_on[tensor]
        opens = _Events(tensor, device, begin[step], steps.op[step])
        written = _Events(tensor, device, end[step], step)
        own = (self.reads[1] == AT_HOME) & (steps.writer[steps.read_tensor] != steps.read_step)
        step, tensor = steps.read_step[own], steps.read_tensor[own]
        return [written, _Events(tensor, self.near[steps.device[step]], end[step], step)], opens

    def _transfer_events(self, lives_on: Int64) -> tuple[list[_Events], _Events]:
        """Transfers read one home and open another."""
        sent, (begin, end) = self.transfers, self.clock.transfer
        ends = (sent.device, lives_on[sent.tensor])
        uses = [_Events(sent.tensor, device, end, sent.step - 1) for device in ends]
        return uses, _Events(sent.tensor, sent.device, begin, self.steps.op[sent.step])

    def _copy_events(self, lives_on: Int64) -> tuple[list[_Events], _Events]:
        """Copies open the home of what lives there, and read any home that they come from."""
        (tensor, source, target), (issued, needed) = self.copy_table[:, :3].T, self.copy_ranks
        (begin, end), root = self.clock.copy, self.is_root[tensor]
        given = self.program.tensor_kind[tensor] == TensorKind.INPUT
        rows = np.flatnonzero(root & (target == self.home[lives_on[tensor]]) & ~given)
        device = lives_on[tensor[rows]]
        opens = _Events(tensor[rows], device, begin[rows], self._op_at(issued[rows]))
        brought = _Events(tensor[rows], device, end[rows], needed[rows] - 1)
        device_of = np.full(len(self.machine.memories), -1)
        device_of[self.home[::-1]] = np.arange(len(self.home))[::-1]  # the first with that home
        rows = np.flatnonzero(root & (device_of[source] >= 0))
        taken = _Events(tensor[rows], device_of[source[rows]], end[rows], needed[rows] - 1)
        return [brought, taken], opens

    def _op_at(self, rank: Int64) -> Int64:
        """The op of each rank, or of the nearest one where there is none of it."""
        if not len(self.steps):
            return np.zeros(len(rank), dtype=np.int64)
        found: Int64 = self.steps.op[np.clip(rank, 0, len(self.steps) - 1)]
        return found

    def _number(self, memory: str | int) -> int:
        return self.machine.memory(memory) if isinstance(memory, str) else memory


class _Events(NamedTuple):
    """Something that opens or uses the copy of a tensor in the home of a device."""

    tensor: Int64
    device: Int64
    moment: Int64
    rank: Int64
    """Of a use, the rank up to which it lasts; of what opens, its op."""


def _joined(events: list[_Events]) -> _Events:
    return _Events(*(np.concatenate(column) for column in zip(*events, strict=True)))


def join_touching(group: Int64, begin: Int64, end: Int64) -> Int64:
    """[rows] the number of the stretch that each row is part of: rows of one group that meet or overlap
    in time are one. Numbers rise with the group, then with time."""
    order = np.lexsort((begin, group))
    opens = np.ones(len(order), dtype=np.bool_)
    opens[1:] = np.diff(group[order]) != 0
    number = np.cumsum(opens) - 1
    # The latest end so far in each group: ends by rank, and a new group begins above all of the last.
    ends, rank = np.unique(end[order], return_inverse=True)
    latest = np.maximum.accumulate(number * len(ends) + rank) - number * len(ends)
    opens[1:] |= begin[order][1:] > ends[latest[:-1]]
    joined = np.empty(len(order), dtype=np.int64)
    joined[order] = np.cumsum(opens) - 1
    return joined
