"""What a device does for a run: copies beside the ops, waits, time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Backend(Protocol):
    """A device with a line of copies for each direction. Copies of one direction run one by one, in
    the order in which they are issued."""

    device: Any
    pinned: bool
    """Host memory must be pinned."""
    arena_only: bool
    """Its own allocator can't be held to a budget."""

    def open(self) -> None:
        """What is allocated now belongs to others."""
        ...

    def begin(self, copies: int) -> None:
        """A run with so many copies begins."""
        ...

    def mark(self, *, inward: bool, outward: bool) -> None:
        """Copies of these directions that are issued from now on start after the ops so far."""
        ...

    def copy(self, row: int, inward: bool, target: Any, source: Any, after: Sequence[int]) -> None:
        """Issue a copy, which also waits for the copies `after`."""
        ...

    def wait(self, row: int) -> None:
        """Ops from now on start when this copy is done."""
        ...

    def settle(self) -> None:
        """Wait here until nothing runs any more."""
        ...

    def held_to(self, capacity: int) -> AbstractContextManager[None]:
        """Fast memory is limited meanwhile, beside what others had before; peaks start anew."""
        ...

    def peaks(self) -> tuple[int, int]:
        """Most bytes (allocated, reserved) since `held_to`, without what others had before."""
        ...

    def now(self) -> Any:
        """A moment in the order of the ops."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """The time between two moments, once nothing runs any more."""
        ...

    def close(self) -> None: ...
