"""Where stays lie in fast memory: wherever the device's allocator puts them, or at their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from loadmaster.errors import BadMachine, Refused, require
from loadmaster.execute.layout import Layout, flat, layout_of, shaped
from loadmaster.execute.script import Stay
from loadmaster.plan.plan import NO_OFFSET

PLACEMENTS = ("planned", "arena", "allocator")


class Placement(Protocol):
    """Rooms for stays."""

    stream: Any
    """The stream that runs must use; None: any."""

    def running(self) -> AbstractContextManager[None]:
        """Runs happen within."""
        ...

    def at(self, rank: int) -> None:
        """The step of a rank begins; -1: the run is over."""
        ...

    def room(self, stay: int, layout: Layout) -> Any:
        """An empty tensor for a stay."""
        ...

    def put(self, stays: Sequence[int], results: list[Any]) -> list[Any]:
        """An op's results, in the rooms of their stays."""
        ...

    def row(self, stay: int, value: Any, layout: Layout) -> Any:
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

    def room(self, stay: int, layout: Layout) -> Any:
        torch = self._torch
        row = torch.empty(layout.bytes, dtype=torch.uint8, device=self._device)
        return shaped(row, layout)

    def put(self, stays: Sequence[int], results: list[Any]) -> list[Any]:
        return results

    def row(self, stay: int, value: Any, layout: Layout) -> Any:
        return flat(value, layout)

    def peaks(self) -> tuple[int, int] | None:
        return None


class Arena:
    """One block of memory; every stay lies at its offset, so a wrong plan gives wrong numbers. `whole`: all
    of the capacity is taken, and `edge` bytes before it."""

    stream: Any = None

    def __init__(
        self, stays: Sequence[Stay], capacity: int, device: Any, *, whole: bool = False, edge: int = 0
    ) -> None:
        torch = require("torch", "torch")
        self._bytes = [stay.bytes for stay in stays]
        self.offsets = placed(stays, capacity)
        tops = zip(self.offsets, stays, strict=True)
        self.bytes = max((offset + stay.bytes for offset, stay in tops), default=0)
        if self.bytes > capacity:
            raise BadMachine(
                f"the plan's offsets reach {self.bytes:,} bytes and {capacity:,} are there",
                object="capacity",
                number=self.bytes - capacity,
                remedy="plan for a smaller capacity",
            )
        taken = edge + (capacity if whole else self.bytes)
        self._block = torch.empty(taken, dtype=torch.uint8, device=device)[edge:]

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def at(self, rank: int) -> None: ...

    def room(self, stay: int, layout: Layout) -> Any:
        low = self.offsets[stay]
        return shaped(self._block[low : low + self._bytes[stay]], layout)

    def put(self, stays: Sequence[int], results: list[Any]) -> list[Any]:
        return [self._moved(stay, result) for stay, result in zip(stays, results, strict=True)]

    def _moved(self, stay: int, result: Any) -> Any:
        """A result, copied into its room."""
        layout = layout_of(result)
        if stay < 0 or not layout.bytes:
            return result
        self.row(stay, result, layout).copy_(flat(result, layout))
        return self.room(stay, layout)

    def row(self, stay: int, value: Any, layout: Layout) -> Any:
        low = self.offsets[stay]
        return self._block[low : low + layout.bytes]

    def peaks(self) -> tuple[int, int] | None:
        return None


def placed(stays: Sequence[Stay], capacity: int) -> list[int]:
    """The offset of each stay; those without one get the lowest that is free all their life."""
    offsets = [stay.offset for stay in stays]
    known = [number for number, offset in enumerate(offsets) if offset != NO_OFFSET]
    open_ = [number for number, offset in enumerate(offsets) if offset == NO_OFFSET]
    for number in sorted(open_, key=lambda number: (stays[number].first, -stays[number].bytes)):
        stay, low = stays[number], 0
        for other in sorted(known, key=offsets.__getitem__):
            meets = stays[other].first <= stay.last and stay.first <= stays[other].last
            if meets and offsets[other] < low + stay.bytes:
                low = max(low, offsets[other] + stays[other].bytes)
        if low + stay.bytes > capacity:
            raise Refused(
                f"no {stay.bytes:,} bytes in one piece for tensor {stay.tensor} within {capacity:,}",
                object=f"tensor {stay.tensor}",
                number=stay.bytes,
                remedy="give the plan offsets, or more capacity",
            )
        offsets[number] = low
        known.append(number)
    return offsets
