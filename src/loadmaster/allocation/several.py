"""Buffers in several memories or banks, and planning again after a few of them changed.

Fast memories are filled with what saves most. Whether buffers fit together is answered by live bytes
first and by the exact search last, so the answer always has offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.buffers import NONE, Buffers
from loadmaster.allocation.buffers_csv import write_buffers
from loadmaster.allocation.exact import Exact
from loadmaster.allocation.problem import Allocation
from loadmaster.arrays import distinct
from loadmaster.errors import LoadmasterError, Refused
from loadmaster.search.request import BadRequest
from loadmaster.search.solver import Budget, Meter

Int64 = npt.NDArray[np.int64]
NOWHERE = -1
SECONDS = 60.0
"""For one memory, if the user gives no limit."""


@dataclass(frozen=True)
class Assignment:
    """A memory (or bank) and an offset per buffer; NOWHERE where none had room."""

    memory: Int64
    offset: Int64


def subset(buffers: Buffers, chosen: Int64) -> Buffers:
    """Some of the buffers, with the constraints among them."""
    new = {int(old): i for i, old in enumerate(chosen)}
    return Buffers.of(
        buffers.lower[chosen],
        buffers.upper[chosen],
        buffers.size[chosen],
        ids=[buffers.ids[b] for b in chosen],
        alignment=buffers.alignment[chosen],
        pinned=buffers.pinned[chosen],
        hint=buffers.hint[chosen],
        benefit=buffers.benefit[chosen],
        gaps={new[b]: gaps for b, gaps in buffers.gaps.items() if b in new},
        apart=[(new[a], new[b]) for a, b in buffers.apart if a in new and b in new],
    )


def offsets_within(buffers: Buffers, capacity: int, seconds: float, seed: int = 0) -> Int64 | None:
    """Offsets that fit a capacity, or None if none were found."""
    if buffers.max_live > capacity:
        return None
    problem = Allocation(buffers, capacity)
    solution = Exact().run(Meter(problem, Budget(seconds=seconds)), seed, None)
    return None if solution.decision is None else np.asarray(solution.decision, dtype=np.int64)


class _Profile:
    """Live bytes per stretch of time, of the buffers put in so far."""

    def __init__(self, buffers: Buffers) -> None:
        self.times = distinct(np.concatenate([buffers.lower, buffers.upper]))
        self.first = np.searchsorted(self.times, buffers.lower)
        self.last = np.searchsorted(self.times, buffers.upper)
        self.size = buffers.size
        self.live = np.zeros(max(1, len(self.times)), dtype=np.int64)

    def peak_with(self, b: int) -> int:
        return int(self.live[self.first[b] : self.last[b]].max(initial=0) + self.size[b])

    def change(self, b: int, sign: int) -> None:
        self.live[self.first[b] : self.last[b]] += sign * self.size[b]


def spill(buffers: Buffers, capacities: Sequence[int], *, seconds: float = 1.0, seed: int = 0) -> Assignment:
    """Memories in order, fastest first; each takes what gains most per byte and time it occupies.

    A buffer that is pinned stays in the first memory. What fits nowhere is left out (NOWHERE).
    """
    memory = np.full(len(buffers), NOWHERE, dtype=np.int64)
    offset = np.full(len(buffers), NONE, dtype=np.int64)
    life = (buffers.upper - buffers.lower).astype(np.float64)
    density = buffers.benefit / np.maximum(1.0, buffers.size * life)
    ranked = np.lexsort((np.arange(len(buffers)), -density, buffers.pinned == NONE))
    for number, capacity in enumerate(capacities):
        waiting = ranked[memory[ranked] == NOWHERE]
        chosen = _fill(buffers, waiting, capacity)
        while len(chosen):
            part = subset(buffers, np.array(sorted(chosen), dtype=np.int64))
            found = offsets_within(part, capacity, seconds, seed)
            if found is not None:
                memory[sorted(chosen)], offset[sorted(chosen)] = number, found
                break
            # It does not pack: the one that gains least goes. Pins stay, they come first.
            chosen.remove(next(b for b in reversed(waiting.tolist()) if b in chosen))
    return Assignment(memory, offset)


def _fill(buffers: Buffers, waiting: Int64, capacity: int) -> list[int]:
    profile, chosen = _Profile(buffers), []
    for b in waiting.tolist():
        if profile.peak_with(b) <= capacity:
            profile.change(b, +1)
            chosen.append(b)
    return chosen


def banks(
    buffers: Buffers,
    count: int,
    bank_size: int,
    *,
    different: Sequence[tuple[int, int]] = (),
    seconds: float = 1.0,
    seed: int = 0,
) -> Assignment:
    """`count` equal banks; no buffer crosses a bank's end, pairs in `different` lie in different banks.

    Offsets count from the start of the first bank. Largest buffers first, each into the bank where
    the peak stays lowest.
    """
    partners: dict[int, set[int]] = {}
    for a, b in different:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    memory = np.full(len(buffers), NOWHERE, dtype=np.int64)
    profiles = [_Profile(buffers) for _ in range(count)]
    for b in np.lexsort((np.arange(len(buffers)), -buffers.size)).tolist():
        taken = {int(memory[p]) for p in partners.get(b, ())}
        peaks = [(profile.peak_with(b), bank) for bank, profile in enumerate(profiles) if bank not in taken]
        if peaks and min(peaks)[0] <= bank_size:
            memory[b] = min(peaks)[1]
            profiles[int(memory[b])].change(b, +1)
    offset = np.full(len(buffers), NONE, dtype=np.int64)
    for bank in range(count):
        chosen = np.flatnonzero(memory == bank)
        found = offsets_within(subset(buffers, chosen), bank_size, seconds, seed) if len(chosen) else None
        if found is None:
            memory[chosen] = NOWHERE
        else:
            offset[chosen] = bank * bank_size + found
    return Assignment(memory, offset)


@dataclass(frozen=True)
class Replan:
    """New offsets, and which of the buffers that could have stayed had to move."""

    offset: Int64
    moved: Int64
    """Numbers of unchanged buffers whose offset changed."""


def replan(
    buffers: Buffers,
    before: Buffers,
    offset: npt.NDArray[np.int64],
    capacity: int,
    *,
    seconds: float = 5.0,
    seed: int = 0,
) -> Replan | None:
    """Offsets within a capacity that keep unchanged buffers (same id, life and size) where they were.

    First everything unchanged is held; if that leaves no room, those nearest in time to a change are
    let go, twice as many each time, until it fits. None: not even a new plan was found.
    """
    old = _old_offsets(buffers, before, offset)
    unchanged = np.flatnonzero((old != NONE) & (buffers.pinned == NONE) & (old + buffers.size <= capacity))
    fresh = np.setdiff1d(np.arange(len(buffers)), unchanged)
    by_distance = unchanged[np.lexsort((-buffers.size[unchanged], _distance(buffers, unchanged, fresh)))]
    release = 0
    while True:
        held = by_distance[release:]
        pinned = buffers.pinned.copy()
        pinned[held] = old[held]
        hint = np.where(old % buffers.alignment == 0, old, NONE)
        share = seconds if release >= len(by_distance) else seconds / 4
        found = offsets_within(buffers.changed(pinned=pinned, hint=hint), capacity, share, seed)
        if found is not None:
            return Replan(found, unchanged[found[unchanged] != old[unchanged]])
        if release >= len(by_distance):
            return None
        release = min(len(by_distance), max(1, 2 * release))


def _old_offsets(buffers: Buffers, before: Buffers, offset: Int64) -> Int64:
    known = {
        (before.ids[b], int(before.lower[b]), int(before.upper[b]), int(before.size[b])): int(offset[b])
        for b in range(len(before))
    }
    rows = zip(
        buffers.ids, buffers.lower.tolist(), buffers.upper.tolist(), buffers.size.tolist(), strict=True
    )
    old = np.array([known.get(row, NONE) for row in rows], dtype=np.int64)
    return np.where((old != NONE) & (old % buffers.alignment != 0), NONE, old)


def _distance(buffers: Buffers, unchanged: Int64, fresh: Int64) -> Int64:
    """0 where a life overlaps that of a changed buffer, else the time between them."""
    if not len(fresh):
        return np.zeros(len(unchanged), dtype=np.int64)
    lower, upper = buffers.lower[unchanged, None], buffers.upper[unchanged, None]
    gap = np.maximum(buffers.lower[fresh] - upper + 1, lower - buffers.upper[fresh] + 1)
    return np.asarray(np.maximum(0, gap).min(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class Space:
    """A memory, or a bank of one."""

    name: str
    size: int
    start: int = 0
    """Of a bank: where it begins, since offsets go on from one to the next."""


@dataclass(frozen=True)
class SpaceUse:
    """What lies in one space."""

    space: Space
    buffers: int
    used: int
    """Bytes up to the end of the last buffer."""
    benefit: float
    """Of its buffers, together."""


@dataclass(frozen=True, eq=False)
class Filled:
    """Buffers in several spaces."""

    buffers: Buffers
    assignment: Assignment
    spaces: Sequence[Space]

    def uses(self) -> list[SpaceUse]:
        """One for each space."""
        found = []
        for number, space in enumerate(self.spaces):
            chosen = np.flatnonzero(self.assignment.memory == number)
            ends = self.assignment.offset[chosen] - space.start + self.buffers.size[chosen]
            benefit = float(self.buffers.benefit[chosen].sum())
            found.append(SpaceUse(space, len(chosen), int(ends.max(initial=0)), benefit))
        return found

    @property
    def error(self) -> LoadmasterError | None:
        """Set if some have no place."""
        left = np.flatnonzero(self.assignment.memory == NOWHERE)
        if not len(left):
            return None
        first = self.buffers.ids[int(left[np.argmax(self.buffers.size[left])])]
        return Refused(
            f"{len(left):,} of {len(self.buffers):,} buffers have no place, the largest is '{first}'",
            object=first,
            number=len(left),
            remedy="add a memory, or raise a capacity",
        )

    def write(self, path: Path) -> None:
        """The buffers as a CSV file, with offsets and the names of their memories."""
        memory = [self.spaces[number].name for number in self.assignment.memory.tolist()]
        write_buffers(self.buffers, self.assignment.offset, path, memory=memory)


def fill_memories(problem: Allocation, spaces: Sequence[Space], seconds: float | None, seed: int) -> Filled:
    """Memories, fastest first: the fast ones are filled with what gains most."""
    sizes = [space.size for space in spaces]
    found = spill(problem.buffers, sizes, seconds=seconds or SECONDS, seed=seed)
    return Filled(problem.buffers, found, spaces)


def fill_banks(problem: Allocation, count: int, seconds: float | None, seed: int) -> Filled:
    """The capacity in equal banks that no buffer crosses; buffers that are to lie apart lie in different ones."""
    if problem.capacity is None:
        raise BadRequest("--banks needs a capacity", object="--banks", remedy="give --capacity")
    size = problem.capacity // count
    free, different = problem.buffers.changed(apart=()), problem.buffers.apart
    found = banks(free, count, size, different=different, seconds=seconds or SECONDS, seed=seed)
    return Filled(problem.buffers, found, [Space(f"bank{i}", size, i * size) for i in range(count)])
