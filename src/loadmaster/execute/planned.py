"""`Planned`: kernels write their results straight to the plan's offsets, by an allocator of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from loadmaster import _core
from loadmaster.errors import Refused
from loadmaster.execute import own_allocator
from loadmaster.execute.layout import flat, layout_of
from loadmaster.execute.placement import Arena
from loadmaster.execute.rooms import held_bytes, room_columns
from loadmaster.execute.script import Script
from loadmaster.units import show_bytes

EDGE = 512
"""Bytes before the arena: PyTorch knows memory by its address, so no result may begin where the block does."""


class Planned(Arena):
    """An arena of the whole budget that kernels' temporaries share. Which allocation of an op is its result
    is told by the size; where that was wrong the result is copied, and known in later runs.

    `kept`: what libraries have of the budget. `stream`: of all runs. `name`: of a step, for messages.
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
    ) -> None:
        self._own = own or _core.device_allocator()
        self._script, self._kept, self._name, self.stream = script, kept, name, stream
        room = (capacity - kept - EDGE) // EDGE * EDGE
        super().__init__(script.stays, room, device, whole=True, edge=EDGE)
        self._held = room + EDGE
        self._base = int(self._block.data_ptr())
        self._address = [self._base + offset for offset in self.offsets]
        columns, self._number = room_columns(script, self.offsets, sizes, room)
        self._rooms = _core.rooms(self._base, columns)
        self._rank = -1
        # What outlives the run must not be the allocator's: the next run gives its address away again.
        self._stays_on = {
            number for number, stay in enumerate(script.stays) if stay.last >= len(script.steps) - 1
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

    def put(self, stays: Sequence[int], results: list[Any]) -> list[Any]:
        wrong = [
            at
            for at, (stay, result) in enumerate(zip(stays, results, strict=True))
            if stay >= 0
            and not (result.data_ptr() == self._address[stay] and not result.storage_offset())
            and layout_of(result).bytes
        ]
        if wrong:
            self._bring(wrong, stays, results)
        return [
            self.room(stay, layout_of(result)) if at in wrong or stay in self._stays_on else result
            for at, (stay, result) in enumerate(zip(stays, results, strict=True))
        ]

    def _bring(self, wrong: list[int], stays: Sequence[int], results: list[Any]) -> None:
        """Results that lie elsewhere come to their places; next time they are made there."""
        begins = [int(result.untyped_storage().data_ptr()) for result in results]
        numbers = [self._own.number_of(begin) for begin in begins]
        for at in wrong:
            if numbers[at] >= 0 and numbers.count(numbers[at]) == 1:
                self._rooms.learn(self._number[stays[at]], numbers[at])
        taken = {
            number
            for at in wrong
            for number in self._own.within(self.offsets[stays[at]], self._bytes[stays[at]])
        }
        if taken - set(numbers):
            raise self._kept_by_library(self._rank, self._bytes[stays[wrong[0]]])
        rows = [flat(results[at], layout_of(results[at])) for at in wrong]
        if taken:  # by another result, which is in the way: all step aside
            rows = [row.to("cpu", copy=True) for row in rows]
        for at, row in zip(wrong, rows, strict=True):
            self._block[self.offsets[stays[at]] :][: len(row)].copy_(row)

    def _kept_by_library(self, rank: int, count: int) -> Refused:
        return Refused(
            f"'{self._name(rank)}' keeps {show_bytes(count)} of fast memory for itself, which the plan "
            "gives to others",
            object=self._name(rank),
            number=count,
            remedy="use --placement allocator",
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
