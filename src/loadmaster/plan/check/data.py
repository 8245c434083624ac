"""Rules `copy`, `data` and `tie`: every read, every copy and every transfer finds the bytes it takes.

A tensor with one residency that nothing moves, or that one copy fetches from its home, is judged by columns, with
all others of its kind. Each other one, and each with a defect, is followed alone, from store to store: what is given,
what its step writes, what transfers and copies bring, what its readers find. Tensors that share one place are read
and written in that place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.plan.check.facts import HOME, Facts, Mask, Overwrite, Report
from loadmaster.plan.plan import NO_OFFSET, WHOLE
from loadmaster.program.program import TieKind

Spot = tuple[int, int]
"""A memory and an offset; the home of a device has no offset."""


def check_ties(facts: Facts, report: Report) -> None:
    """In-place ops, values that a loop carries, and nobody who uses what is gone."""
    for overwrite in facts.overwrites:
        _after_users(facts, overwrite, report)
    members = _loop_members(facts)
    is_placed = facts.residencies_of.counts > 0
    for kind, source, target, at in facts.ties:
        if at < 0 or source == target:
            continue
        if kind == TieKind.INPLACE:
            # Where neither has a residency, the home of one device serves both.
            if facts.step_of[at] >= 0 and (is_placed[source] or is_placed[target]):
                _in_place(facts, source, target, at, report)
        elif is_placed[source] or is_placed[target] or len(facts.devices_used) > 1:
            _carried(facts, source, target, at, members.get(at, []), report)


def _spot(facts: Facts, rank: int, tensor: int) -> Spot:
    """Where a step's access to a tensor takes place."""
    memory, row = facts.serves(rank, tensor)
    return memory, NO_OFFSET if row == HOME else int(facts.res_offset[row])


def _spot_text(facts: Facts, spot: Spot) -> str:
    offset = f" at {spot[1]:,}" if spot[1] != NO_OFFSET else ""
    return facts.memory_text(spot[0]) + offset


def _in_place(facts: Facts, source: int, target: int, op: int, report: Report) -> None:
    """The op finds the source where it leaves the target."""
    rank = int(facts.step_of[op])
    if target in facts.writes[rank]:
        where = _spot(facts, rank, target)
        found = _spot(facts, rank, source) if source in facts.reads[rank] else where
        if found != where:
            report.add(
                "tie",
                f"{facts.op_text(op)} writes {facts.tensor_text(target)} to "
                f"{_spot_text(facts, where)} over {facts.tensor_text(source)} in "
                f"{_spot_text(facts, found)}: use one memory and one offset",
                tensor=target,
                op=op,
                number=where[1],
            )


def _after_users(facts: Facts, overwrite: Overwrite, report: Report) -> None:
    """An op that takes a place comes after all that use what lies there, copies too."""
    tensor, over, op, users = overwrite
    rank = int(facts.step_of[op])
    if facts.in_order:
        for user in users:
            if user > rank:
                late, position = int(facts.step_number[user]), int(facts.step_position[user])
                report.add(
                    "tie",
                    f"{facts.op_text(late)} at position {position} uses "
                    f"{facts.tensor_text(tensor)} after {facts.op_text(op)} has written "
                    f"{facts.tensor_text(over)} over it: run it before",
                    tensor=tensor,
                    op=late,
                    number=position,
                )
    rows = facts.copies_of[tensor]
    if not rows or over not in facts.writes[rank]:
        return
    memory = _spot(facts, rank, over)[0]
    for row in rows:
        if facts.needed[row] > rank and facts.copy_source[row] == memory:
            report.add(
                "tie",
                f"copy {row} takes {facts.tensor_text(tensor)} from {facts.memory_text(memory)} and "
                f"is not needed before {facts.op_text(op)}, which writes {facts.tensor_text(over)} "
                "over it: let that op need it",
                tensor=tensor,
                op=op,
                number=row,
            )


def _loop_members(facts: Facts) -> dict[int, list[int]]:
    """The ranks of the steps inside each loop that carries something, inner loops included."""
    parent = facts.program.loop_parent.tolist()
    carrying = {at for kind, _, _, at in facts.ties if kind == TieKind.CARRIED}
    members: dict[int, list[int]] = {}
    if carrying:
        loops = facts.loop[facts.step_number]
        for rank in np.flatnonzero(loops >= 0).tolist():
            loop = int(loops[rank])
            while loop >= 0:
                if loop in carrying:
                    members.setdefault(loop, []).append(rank)
                loop = parent[loop]
    return members


def _carried(facts: Facts, source: int, target: int, loop: int, ranks: list[int], report: Report) -> None:
    """One spot for the whole loop: what an iteration leaves, the next one finds."""
    expected: Spot | None = None
    for rank in ranks:
        number = int(facts.step_number[rank])
        for tensor in facts.uses[rank]:
            if tensor not in (source, target):
                continue
            spot = _spot(facts, rank, tensor)
            expected = expected or spot
            if spot != expected:
                report.add(
                    "tie",
                    f"{facts.op_text(number)} accesses {facts.tensor_text(tensor)} "
                    f"in {_spot_text(facts, spot)}, and loop {loop} carries it in "
                    f"{_spot_text(facts, expected)}: use one memory and one offset",
                    tensor=tensor,
                    op=number,
                    number=spot[1],
                )
    rows = facts.residencies_of[source] + facts.residencies_of[target]
    in_spot = [row for row in rows if facts.residency(row)[1:3] == expected]
    if expected is None or not in_spot:
        return  # the home of a device is there all the time
    covered = ranks[0]
    for first, last in sorted(facts.window(row) for row in in_spot):
        if first <= covered:
            covered = max(covered, last + 1)
    if covered <= ranks[-1]:
        op = facts.op_at(covered)
        report.add(
            "tie",
            f"loop {loop} carries {facts.tensor_text(source)} in "
            f"{_spot_text(facts, expected)}, and it does not stay there at {facts.op_text(op)} "
            f"(position {facts.step_position[covered]}): let it cover the whole loop",
            tensor=source,
            op=op,
            number=facts.step_position[covered],
        )


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
    for row in facts.residencies_of[tensor]:
        first, last = facts.window(row)
        if first <= last:
            residency = facts.residency(row)
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


Relies = list[tuple[int, int]]
"""(rank of a step, row of a copy): the step reads what the copy brought."""


def check_data(facts: Facts, report: Report) -> Relies:
    """Follow every tensor that has residencies or copies.

    One that has none lives in the home where it is made, and moves by transfers alone: there the
    order of writers and readers says it all.
    """
    sent_to: dict[int, list[int]] = {}
    for row, tensor in enumerate(facts.transfers.tensor.tolist()):
        sent_to.setdefault(tensor, []).append(row)
    is_fetched, relies = _is_fetched_and_found(facts)
    concerned = (facts.residencies_of.counts > 0) | (facts.copies_of.counts > 0)
    for tensor in np.flatnonzero(concerned & ~_stays_and_is_found(facts) & ~is_fetched).tolist():
        if facts.is_root[tensor]:
            trace = _Trace(facts, report, tensor)
            trace.begin()
            trace.transfer(sent_to.get(tensor, []))
            trace.copy()
            relies += trace.read()
            trace.end()
        else:
            for row in facts.copies_of[tensor]:
                owner = facts.tensor_text(facts.root[tensor])
                report.add(
                    "copy",
                    f"copy {row} moves {facts.tensor_text(tensor)}, a view of {owner}: copy that one",
                    tensor=tensor,
                    number=row,
                )
    return relies


_NEVER = 2**62


def _stays_and_is_found(facts: Facts) -> Mask:
    """[tensors] whether nothing moves a tensor, it has one residency, and all that read it find it.

    Moments are those of `Store`: its bytes are in its residency from one on, and in its home from another.
    """
    sound: Mask = facts.is_root & (facts.residencies_of.counts == 1) & (facts.copies_of.counts == 0)
    sound[facts.transfers.tensor] = False
    tensor = np.flatnonzero(sound)
    row = facts.residencies_of.entry[facts.residencies_of.start[tensor]]
    first, last = facts.windows[0][row], facts.windows[1][row]
    memory, writer = facts.res_memory[row], facts.writer[tensor]
    home = facts.home[facts.home_device[tensor]]
    is_input = facts.is_input[tensor]

    given = facts.is_given[tensor] | (writer < 0)
    written = ~given & facts.is_written[tensor]
    by = np.full(len(tensor), HOME, dtype=np.int64)
    by[written] = facts.serve(writer[written], tensor[written])[1]
    covered = (first <= writer) & (writer <= last)
    there = np.full(facts.n_tensors, _NEVER)
    at_home = np.where(is_input, np.isin(memory, facts.home), memory == home)
    starts = (first <= last) & ((first < 0) | (given & (first <= 0) & at_home))
    into_it = written & (by != HOME) & covered
    there[tensor] = np.where(starts, -1, np.where(into_it, 2 * writer + 1, _NEVER))
    in_home = np.full(facts.n_tensors, _NEVER)
    in_home[tensor] = np.where(given, -1, np.where(written & (by == HOME), 2 * writer + 1, _NEVER))

    wrong = written & (by != HOME) & ~covered
    kept = there[tensor] < _NEVER
    output = facts.is_output[tensor] & (facts.size[tensor] > 0)
    wrong |= output & ~(kept & (last >= facts.n_steps - 1)) & (in_home[tensor] == _NEVER)
    sound[tensor[wrong]] = False

    read, rank = facts.readers.keys, facts.readers.entry
    mine = sound[read] & (rank != facts.writer[read]) & (facts.size[read] > 0)
    read, rank, served = read[mine], rank[mine], facts.served_readers[1][mine]
    serving = facts.served_readers[0][mine]
    of = facts.residencies_of.entry[facts.residencies_of.start[read]]
    held = (facts.windows[0][of] <= rank) & (rank <= facts.windows[1][of])
    own_home = facts.is_input[read] | (serving == facts.home[facts.home_device[read]])
    found = np.where(served == HOME, own_home & (in_home[read] <= 2 * rank), held & (there[read] <= 2 * rank))
    sound[read[~found]] = False
    return sound


def _is_fetched_and_found(facts: Facts) -> tuple[Mask, Relies]:
    """[tensors] whether a tensor that is given has one residency, one copy of all of it fills that from its home, and
    all that read it find it; and which of these reads rely on the copy."""
    counts = facts.residencies_of.counts, facts.copies_of.counts
    sound: Mask = facts.is_root & (facts.writer < 0) & (facts.size > 0) & (counts[0] == 1) & (counts[1] == 1)
    sound[facts.transfers.tensor] = False
    tensor = np.flatnonzero(sound)
    row = facts.residencies_of.entry[facts.residencies_of.start[tensor]]
    copy = facts.copies_of.entry[facts.copies_of.start[tensor]]
    source, target = facts.copy_source[copy], facts.copy_target[copy]
    issued, needed = facts.issued[copy], facts.needed[copy]
    first, last = facts.windows[0][row], facts.windows[1][row]
    own_home = facts.home[facts.home_device[tensor]]
    is_home = np.where(facts.is_input[tensor], np.isin(source, facts.home), source == own_home)

    right = is_home & (target == facts.res_memory[row]) & ~np.isin(target, facts.home)
    right &= facts.linked[source, target]
    if facts.machine.rules.copies == "idle":
        right &= source == facts.home[0]
    right &= (facts.copy_columns[5][copy] == WHOLE) & (facts.copy_columns[6][copy] == WHOLE)
    right &= (issued < needed) & (first >= 0) & (first <= last)
    right &= (first <= issued + 1) & (last >= np.minimum(needed, facts.n_steps - 1))
    sound[tensor[~right]] = False

    there = np.full(facts.n_tensors, _NEVER)
    there[tensor] = needed
    brought = np.full(facts.n_tensors, NO_COPY)
    brought[tensor] = copy
    mine = sound[facts.readers.keys]
    read, rank = facts.readers.keys[mine], facts.readers.entry[mine]
    memory, served = facts.served_readers[0][mine], facts.served_readers[1][mine]
    of = facts.residencies_of.entry[facts.residencies_of.start[read]]
    held = (facts.windows[0][of] <= rank) & (rank <= facts.windows[1][of]) & (there[read] <= rank)
    at_home = facts.is_input[read] | (memory == facts.home[facts.home_device[read]])
    sound[read[~np.where(served == HOME, at_home, held)]] = False
    relying = (served != HOME) & sound[read]
    return sound, list(zip(rank[relying].tolist(), brought[read[relying]].tolist(), strict=True))


class _Trace:
    """Where the bytes of one tensor are."""

    def __init__(self, facts: Facts, report: Report, tensor: int) -> None:
        self.facts, self.report, self.tensor = facts, report, tensor
        self.size = int(facts.size[tensor])
        self.last_rank = facts.n_steps - 1
        self.homes = {memory: Store(memory, -1, self.last_rank) for memory in facts.machine.home}
        self.own_home = facts.machine.home[facts.home_device[tensor]]
        self.strands, self.strand_of = strands_of(facts, tensor)

    def _is_home(self, memory: int) -> bool:
        """Whether the tensor has a place in this memory without a residency."""
        if self.facts.is_input[self.tensor]:
            return memory in self.homes
        return bool(memory == self.own_home)

    def begin(self) -> None:
        """What is there from the start, and what the tensor's own step writes."""
        facts, tensor = self.facts, self.tensor
        writer = int(facts.writer[tensor])
        for strand in self.strands:
            if strand.first < 0:
                strand.put(-1, 0, self.size)
        if facts.is_given[tensor] or writer < 0:
            for memory, store in self.homes.items():
                if self._is_home(memory):
                    store.put(-1, 0, self.size)
            for strand in self.strands:
                # A residency in its home that begins with the program says where it is given.
                if strand.first <= 0 and self._is_home(strand.memory):
                    strand.put(-1, 0, self.size)
        elif tensor in facts.writes[writer]:
            memory, row = facts.serves(writer, tensor)
            place = self.homes[memory] if row == HOME else self.strand_of.get(row)
            if place is None or not place.first <= writer <= place.last:
                op = int(facts.step_number[writer])
                self._data(
                    f"{facts.op_text(op)} writes {facts.tensor_text(tensor)} to residency {row} "
                    f"in {facts.memory_text(memory)}, which does not hold its {self.size:,} "
                    "bytes then: let it cover the whole fused step",
                    op,
                    self.size,
                )
            if place is not None:
                place.put(2 * writer + 1, 0, self.size)

    def transfer(self, sent_to: list[int]) -> None:
        """A transfer leaves the home when the tensor is made, and is there when a reader starts."""
        facts = self.facts
        made = 2 * int(facts.writer[self.tensor]) + 1  # no writer: -1
        for row in sent_to:
            device, first = int(facts.transfers.device[row]), facts.transfers.readers[row][0]
            missing = self.homes[self.own_home].missing(made, 0, self.size)
            if missing:
                op = int(facts.step_number[first])
                home = facts.memory_text(self.own_home)
                self._data(
                    f"{facts.op_text(op)} on {facts.device_text(device)} reads "
                    f"{facts.tensor_text(self.tensor)}, and {missing:,} of its bytes are not in "
                    f"{home} when it is sent: let it be written there",
                    op,
                    missing,
                )
            self.homes[facts.machine.home[device]].put(2 * first, 0, self.size)

    def copy(self) -> None:
        """Copies in order of issue: one that feeds another is done before that is issued."""
        facts = self.facts
        rows = facts.copies_of[self.tensor]
        for row in sorted(rows, key=lambda row: (facts.issued[row], row)):
            source, target = int(facts.copy_source[row]), int(facts.copy_target[row])
            issued, needed = int(facts.issued[row]), int(facts.needed[row])
            low, high = self._range(row)
            if source == target:
                self._copy(row, f"{self._what(row)} stays in {facts.memory_text(source)}: remove it")
            elif (source, target) not in facts.machine.link_between:
                self._copy(
                    row,
                    f"{self._what(row)}: there is no link from {facts.memory_text(source)} to "
                    f"{facts.memory_text(target)}",
                )
            if facts.machine.rules.copies == "idle":
                home = facts.machine.home[0]
                if (source == home) == (target == home):
                    self._copy(
                        row,
                        f"{self._what(row)}: in idle time one of its ends must be {facts.memory_text(home)}",
                    )
            if issued >= needed:
                self._copy(
                    row,
                    f"{self._what(row)} is issued after {facts.op_text(facts.op_at(issued))} and "
                    f"needed by {facts.op_text(facts.op_at(needed))}: issue it before",
                )
            elif source != target:
                self._source(row, low, high)
                self._target(row)
            # A copy that was reported still delivers, so that one defect is reported once.
            for store in self._stores_for(target, issued, needed):
                store.put(2 * needed, low, high, row)

    def _what(self, row: int) -> str:
        return f"copy {row} of {self.facts.tensor_text(self.tensor)}"

    def _range(self, row: int) -> tuple[int, int]:
        low, high = self.facts.copy(row)[5:]
        if low == WHOLE and high == WHOLE:
            return 0, self.size
        if not 0 <= low < high <= self.size:
            self._copy(
                row,
                f"{self._what(row)} has the bytes {low:,} to {high:,} of {self.size:,}: give a range "
                "inside the tensor that is not empty",
            )
            return 0, self.size
        return low, high

    def _source(self, row: int, low: int, high: int) -> None:
        """The source has the bytes when the copy is issued, and keeps them until it is done."""
        facts = self.facts
        memory, issued, needed = (int(c[row]) for c in (facts.copy_source, facts.issued, facts.needed))
        stores = [strand for strand in self.strands if strand.memory == memory]
        stores += [self.homes[memory]] if memory in self.homes else []
        least, leaves = high - low, -1
        for store in stores:
            missing = store.missing(2 * issued + 1, low, high)
            if store.first <= issued and not missing:
                if store.last >= needed - 1:
                    return
                leaves = max(leaves, store.last)
            least = min(least, missing)
        where = facts.memory_text(memory)
        after = facts.op_text(facts.op_at(issued)) if issued >= 0 else "the start"
        if leaves >= issued:
            self._copy(
                row,
                f"{self._what(row)} takes it from {where} until {facts.op_text(facts.op_at(needed))}, "
                f"and it leaves after {facts.op_text(facts.op_at(leaves))}: let it stay",
            )
        else:
            self._copy(
                row,
                f"{self._what(row)} takes it from {where} after {after}, where {max(least, 1):,} of "
                "its bytes are not: issue it later, or from another memory",
            )

    def _target(self, row: int) -> None:
        """The target keeps room from the issue to the need."""
        facts = self.facts
        memory, issued, needed = (int(c[row]) for c in (facts.copy_target, facts.issued, facts.needed))
        strands = [strand for strand in self.strands if strand.memory == memory]
        has_room = any(self._covers(strand, issued, needed) for strand in strands)
        if not has_room and not self._is_home(memory):
            self._copy(
                row,
                f"{self._what(row)} has no place in {facts.memory_text(memory)} from after its issue "
                f"to {facts.op_text(facts.op_at(needed))}: add a residency",
            )

    def _stores_for(self, memory: int, issued: int, needed: int) -> list[Store]:
        """Where a copy to a memory arrives: the home, and strands that are there meanwhile."""
        strands = [strand for strand in self.strands if strand.memory == memory]
        end = min(needed, self.last_rank)
        touched = [strand for strand in strands if strand.first <= needed and strand.last >= end]
        covering = [strand for strand in touched if self._covers(strand, issued, needed)]
        at_home = [self.homes[memory]] if self._is_home(memory) else []
        return (covering or touched) + at_home

    def _covers(self, strand: Store, issued: int, needed: int) -> bool:
        """Whether a strand is there from after the issue to the need."""
        return strand.first <= issued + 1 and strand.last >= min(needed, self.last_rank)

    def read(self) -> Relies:
        """Every read is served by a store that has the whole tensor."""
        facts, tensor = self.facts, self.tensor
        relies: Relies = []
        served = slice(facts.readers.start[tensor], facts.readers.start[tensor + 1])
        sources = zip(*(column[served].tolist() for column in facts.served_readers), strict=True)
        for rank, (memory, row) in zip(facts.readers[tensor], sources, strict=True):
            number = int(facts.step_number[rank])
            if rank == facts.writer[tensor]:
                continue  # scratch: it reads what it has just written
            store = self.homes[memory] if row == HOME else self.strand_of.get(row)
            kept = store is not None and store.first <= rank <= store.last
            missing = store.missing(2 * rank, 0, self.size) if store and kept else self.size
            if missing:
                by = f"residency {row} in " if row != HOME else ""
                self._data(
                    f"{facts.op_text(number)} reads {facts.tensor_text(tensor)} from {by}"
                    f"{facts.memory_text(memory)}, where {missing:,} of its {self.size:,} bytes "
                    "are not: write or copy it there before",
                    number,
                    missing,
                )
            elif store is not None:
                came = [entry for entry in store.entries if entry[0] <= 2 * rank]
                if all(entry[3] != NO_COPY for entry in came):
                    relies += [(rank, entry[3]) for entry in came]
        return relies

    def end(self) -> None:
        """An output is somewhere at the end."""
        if not self.facts.is_output[self.tensor]:
            return
        stores = [strand for strand in self.strands if strand.last >= self.last_rank]
        stores.append(self.homes[self.own_home])
        least = min(store.missing(2 * self.last_rank + 2, 0, self.size) for store in stores)
        if least:
            self._data(
                f"output {self.facts.tensor_text(self.tensor)} is nowhere at the end: {least:,} "
                f"of its {self.size:,} bytes are missing after "
                f"{self.facts.op_text(self.facts.op_at(self.last_rank))}: write it back, or keep "
                "it to the end",
                self.facts.op_at(self.last_rank),
                least,
            )

    def _data(self, message: str, op: int, number: int) -> None:
        self.report.add("data", message, tensor=self.tensor, op=op, number=number)

    def _copy(self, row: int, message: str) -> None:
        op = self.facts.op_at(int(self.facts.needed[row]))
        self.report.add("copy", message, tensor=self.tensor, op=op, number=row)
