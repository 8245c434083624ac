"""Where residencies lie in fast memory: wherever the device's allocator puts them, or at their offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.errors import BadMachine, Refused, require
from loadmaster.execute import own_allocator
from loadmaster.execute.pinned import Layout, flat, layout_of, shaped
from loadmaster.execute.script import FastResidency, Script
from loadmaster.plan.plan import NO_OFFSET
from loadmaster.units import show_bytes

Int64 = npt.NDArray[np.int64]


def room_columns(
    script: Script, offsets: Sequence[int], sizes: Sequence[int], capacity: int
) -> tuple[dict[str, Int64], dict[int, int]]:
    """Columns of `_core.rooms` by name, and the number of the result that begins a residency. `offsets`
    by residency, `sizes` (bytes of the storage) by tensor."""
    residencies, start = script.residencies, [0]
    number: dict[int, int] = {}
    results: list[tuple[int, int, int]] = []
    for step in script.steps:
        for residency in step.residencies:
            if residency >= 0 and residency not in number:
                number[residency] = len(results)
                results.append(
                    (sizes[residencies[residency].tensor], residencies[residency].bytes, offsets[residency])
                )
        start.append(len(results))
    table = np.array(results, dtype=np.int64).reshape(-1, 3)
    free = free_ranges(script, offsets, capacity)
    columns = {
        "result_start": np.array(start, dtype=np.int64),
        "result_bytes": table[:, 0].copy(),
        "result_room": table[:, 1].copy(),
        "result_offset": table[:, 2].copy(),
    }
    columns["free_start"] = np.cumsum([0, *(len(each) for each in free)]).astype(np.int64)
    every = np.concatenate([*free, np.zeros((0, 2), dtype=np.int64)])
    return columns | {"free_low": every[:, 0].copy(), "free_high": every[:, 1].copy()}, number


def free_ranges(script: Script, offsets: Sequence[int], capacity: int) -> list[Int64]:
    """[steps] of rows (low, high), ascending: what no residency has while the step runs."""
    rows = [
        (max(0, residency.first), residency.last, offset, offset + residency.bytes)
        for residency, offset in zip(script.residencies, offsets, strict=True)
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    table = table[np.lexsort((table[:, 3], table[:, 2]))]
    found = []
    for step in range(len(script.steps)):
        there = table[(table[:, 0] <= step) & (step <= table[:, 1])]
        low = np.concatenate([[0], np.maximum.accumulate(there[:, 3])])
        high = np.concatenate([there[:, 2], [capacity]])
        gaps = np.stack([low, high], axis=1)
        found.append(gaps[high > low])
    return found


def held_bytes(script: Script) -> Int64:
    """[steps] bytes of the residencies that are there."""
    change = np.zeros(len(script.steps) + 1, dtype=np.int64)
    for residency in script.residencies:
        change[max(0, residency.first)] += residency.bytes
        change[residency.last + 1] -= residency.bytes
    held: Int64 = np.cumsum(change)[:-1]
    return held


PLACEMENTS = ("planned", "arena", "allocator")


class Placement(Protocol):
    """Rooms for residencies."""

    stream: Any
    """The stream that runs must use; None: any."""

    def running(self) -> AbstractContextManager[None]:
        """Runs happen within."""
        ...

    def at(self, rank: int) -> None:
        """The step of a rank begins; -1: the run is over."""
        ...

    def room(self, residency: int, layout: Layout) -> Any:
        """An empty tensor for a residency."""
        ...

    def put(self, residencies: Sequence[int], results: list[Any]) -> list[Any]:
        """An op's results, in the rooms of their residencies."""
        ...

    def row(self, residency: int, value: Any, layout: Layout) -> Any:
        """The bytes of what lies in a room."""
        ...

    def peaks(self) -> tuple[int, int] | None:
        """Bytes (used, held) at the most, where the device does not count them itself."""
        ...


class Allocator:
    """PyTorch's own allocator: results stay where their kernels put them."""

    stream: Any = None

    def __init__(self, device: Any) -> None:
        self._torch, self._device = require("torch", "torch"), device

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def at(self, rank: int) -> None: ...

    def room(self, residency: int, layout: Layout) -> Any:
        torch = self._torch
        row = torch.empty(layout.bytes, dtype=torch.uint8, device=self._device)
        return shaped(row, layout)

    def put(self, residencies: Sequence[int], results: list[Any]) -> list[Any]:
        return results

    def row(self, residency: int, value: Any, layout: Layout) -> Any:
        return flat(value, layout)

    def peaks(self) -> tuple[int, int] | None:
        return None


class Arena:
    """One block of memory; every residency lies at its offset, so a wrong plan gives wrong numbers.
    `whole`: all of the capacity is taken, and `edge` bytes before it. `block`: memory that is there already."""

    stream: Any = None

    def __init__(
        self,
        residencies: Sequence[FastResidency],
        capacity: int,
        device: Any,
        *,
        whole: bool = False,
        edge: int = 0,
        block: Any = None,
    ) -> None:
        torch = require("torch", "torch")
        self._bytes = [residency.bytes for residency in residencies]
        self._residencies = residencies
        self.offsets = placed(residencies, capacity)
        tops = zip(self.offsets, residencies, strict=True)
        self.bytes = max((offset + residency.bytes for offset, residency in tops), default=0)
        if self.bytes > capacity:
            raise BadMachine(
                f"the plan's offsets reach {self.bytes:,} bytes and {capacity:,} are there",
                object="capacity",
                number=self.bytes - capacity,
                remedy="plan for a smaller capacity",
            )
        taken = edge + (capacity if whole else self.bytes)
        if block is None:
            block = torch.empty(taken, dtype=torch.uint8, device=device)
        self._block = block[edge:taken]

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def at(self, rank: int) -> None: ...

    def room(self, residency: int, layout: Layout) -> Any:
        low = self.offsets[residency]
        return shaped(self._block[low : low + self._bytes[residency]], layout)

    def put(self, residencies: Sequence[int], results: list[Any]) -> list[Any]:
        return [
            self._moved(residency, result) for residency, result in zip(residencies, results, strict=True)
        ]

    def bytes_at(self, rank: int) -> list[Any]:
        """The rows of the block that are in use when the step of a rank begins, as one piece where they touch."""
        ends: list[list[int]] = []
        there = [number for number, each in enumerate(self._residencies) if each.first <= rank <= each.last]
        for number in sorted(there, key=self.offsets.__getitem__):
            low, high = self.offsets[number], self.offsets[number] + self._bytes[number]
            if ends and low <= ends[-1][1]:
                ends[-1][1] = max(high, ends[-1][1])
            else:
                ends.append([low, high])
        return [self._block[low:high] for low, high in ends]

    def _moved(self, residency: int, result: Any) -> Any:
        """A result, copied into its room."""
        if residency < 0 or result is None:
            return result
        layout = layout_of(result := self._fitting(residency, result))
        if not layout.bytes:
            return result
        self.row(residency, result, layout).copy_(flat(result, layout))
        return self.room(residency, layout)

    def _fitting(self, residency: int, result: Any) -> Any:
        """A result without holes, if it spans more than its room: some kernels leave others than were traced."""
        return result.contiguous().clone() if layout_of(result).bytes > self._bytes[residency] else result

    def row(self, residency: int, value: Any, layout: Layout) -> Any:
        low = self.offsets[residency]
        return self._block[low : low + layout.bytes]

    def peaks(self) -> tuple[int, int] | None:
        return None


def placed(residencies: Sequence[FastResidency], capacity: int) -> list[int]:
    """The offset of each residency; those without one get the lowest that is free all their life."""
    offsets = [residency.offset for residency in residencies]
    known = [number for number, offset in enumerate(offsets) if offset != NO_OFFSET]
    open_ = [number for number, offset in enumerate(offsets) if offset == NO_OFFSET]
    for number in sorted(open_, key=lambda number: (residencies[number].first, -residencies[number].bytes)):
        residency, low = residencies[number], 0
        for other in sorted(known, key=offsets.__getitem__):
            meets = residencies[other].first <= residency.last and residency.first <= residencies[other].last
            if meets and offsets[other] < low + residency.bytes:
                low = max(low, offsets[other] + residencies[other].bytes)
        if low + residency.bytes > capacity:
            raise Refused(
                f"no {residency.bytes:,} bytes in one piece for tensor {residency.tensor} within {capacity:,}",
                object=f"tensor {residency.tensor}",
                number=residency.bytes,
                remedy="give the plan offsets, or more capacity",
            )
        offsets[number] = low
        known.append(number)
    return offsets


EDGE = 512
"""Bytes before the arena: PyTorch knows memory by its address, so no result may begin where the block does."""


class Planned(Arena):
    """An arena of the whole budget that kernels' temporaries share. Which allocation of an op is its result
    is told by the size; where that was wrong the result is copied, and known in later runs.

    `kept`: what libraries have of the budget. `stream`: of all runs. `name`: of a step, for messages.
    `pause`: the rank before which a run may rest while others have the memory.
    """

    def __init__(
        self,
        script: Script,
        sizes: Sequence[int],
        capacity: int,
        device: Any,
        kept: int,
        stream: Any,
        name: Callable[[int], str],
        own: _core.OwnAllocator | None = None,
        block: Any = None,
        pause: int | None = None,
    ) -> None:
        self._own = own or _core.device_allocator()
        self._script, self._kept, self._name, self.stream = script, kept, name, stream
        room = (capacity - kept - EDGE) // EDGE * EDGE
        super().__init__(script.residencies, room, device, whole=True, edge=EDGE, block=block)
        self._held = room + EDGE
        self._base = int(self._block.data_ptr())
        self._address = [self._base + offset for offset in self.offsets]
        columns, self._number = room_columns(script, self.offsets, sizes, room)
        self._rooms = _core.rooms(self._base, columns)
        self._rank = -1
        # What outlives a call must not be the allocator's: another one may give its address away again.
        ends = {len(script.steps), *([] if pause is None else [pause])}
        self._outlives = {
            number
            for number, residency in enumerate(script.residencies)
            if any(residency.first < end <= residency.last + 1 for end in ends)
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        with nullcontext() if self.stream is None else own_allocator.on_compute(self.stream):
            try:
                yield
            finally:
                self._rank = -1
                self._own.at(self._rooms, -1)

    def at(self, rank: int) -> None:
        last, self._rank = self._rank, rank
        left = self._own.at(self._rooms, rank)
        if left and last >= 0:
            raise self._kept_by_library(last, left)

    def put(self, residencies: Sequence[int], results: list[Any]) -> list[Any]:
        if all(map(self._is_there, residencies, results)):
            return results
        results = [
            result if residency < 0 or result is None else self._fitting(residency, result)
            for residency, result in zip(residencies, results, strict=True)
        ]
        wrong = [
            at
            for at, (residency, result) in enumerate(zip(residencies, results, strict=True))
            if residency >= 0
            and result is not None
            and not (result.data_ptr() == self._address[residency] and not result.storage_offset())
            and layout_of(result).bytes
        ]
        if wrong:
            self._bring(wrong, residencies, results)
        return [
            self.room(residency, layout_of(result))
            if result is not None and (at in wrong or residency in self._outlives)
            else result
            for at, (residency, result) in enumerate(zip(residencies, results, strict=True))
        ]

    def _is_there(self, residency: int, result: Any) -> bool:
        """Whether nothing has to be done with a result. It is so with nearly all of them, and this is asked of each."""
        if residency < 0 or result is None:
            return True
        return (
            residency not in self._outlives
            and result.data_ptr() == self._address[residency]
            and not result.storage_offset()
            and result.untyped_storage().nbytes() <= self._bytes[residency]
        )

    def _bring(self, wrong: list[int], residencies: Sequence[int], results: list[Any]) -> None:
        """Results that lie elsewhere come to their places; next time they are made there."""
        begins = [0 if each is None else int(each.untyped_storage().data_ptr()) for each in results]
        numbers = [self._own.number_of(begin) for begin in begins]
        for at in wrong:
            if numbers[at] >= 0 and numbers.count(numbers[at]) == 1:
                self._rooms.learn(self._number[residencies[at]], numbers[at])
        taken = {
            number
            for at in wrong
            for number in self._own.within(self.offsets[residencies[at]], self._bytes[residencies[at]])
        }
        if taken - set(numbers):
            raise self._kept_by_library(self._rank, self._bytes[residencies[wrong[0]]])
        rows = [flat(results[at], layout_of(results[at])) for at in wrong]
        if taken:  # by another result, which is in the way: all step aside
            rows = [row.to("cpu", copy=True) for row in rows]
        for at, row in zip(wrong, rows, strict=True):
            self._block[self.offsets[residencies[at]] :][: len(row)].copy_(row)

    def _kept_by_library(self, rank: int, count: int) -> Refused:
        return Refused(
            f"'{self._name(rank)}' keeps {show_bytes(count)} of fast memory for itself, which the plan "
            "gives to others",
            object=self._name(rank),
            number=count,
            remedy="use --placement allocator; with fit, call torch.cuda.init() before it: PyTorch's allocator stays then",
        )

    def peaks(self) -> tuple[int, int] | None:
        used = held_bytes(self._script) + self._rooms.most
        return self._kept + int(used.max(initial=0)), self._kept + self._held


def own_stream(device: Any) -> tuple[Any, int]:
    """The stream of planned runs and what libraries keep for it; refuses where the allocator isn't ours."""
    if not own_allocator.install():
        raise Refused(
            "PyTorch's allocator was used before: results can't be placed",
            object="placement",
            number="planned",
            remedy="install ours first (own_allocator.install), or use --placement allocator",
        )
    made = own_allocator.compute(device)
    return made.stream, made.kept_bytes
