"""A CPU as the device: ops run at once, copies by a thread per direction. For tests without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from loadmaster.errors import require


class CpuBackend:
    """`delay` gives seconds that a copy sleeps before it starts, so that mistakes in order show."""

    arena_only = True
    pinned = False

    def __init__(self, delay: Callable[[], float] | None = None) -> None:
        self._torch = require("torch", "torch")
        self.device = self._torch.device("cpu")
        self._delay = delay
        self._lines = {inward: ThreadPoolExecutor(1) for inward in (True, False)}
        self._copies: list[Future[None] | None] = []

    def open(self) -> None:
        """An arena is nobody else's."""

    def begin(self, copies: int) -> None:
        self._copies = [None] * copies

    def mark(self, *, inward: bool, outward: bool) -> None:
        """Ops are done when their calls return."""

    def copy(self, row: int, inward: bool, target: Any, source: Any, after: Sequence[int]) -> None:
        before = [self._copies[other] for other in after]
        self._copies[row] = self._lines[inward].submit(self._move, target, source, before)

    def _move(self, target: Any, source: Any, before: list[Future[None] | None]) -> None:
        for other in before:
            if other is not None:
                other.result()
        if self._delay is not None:
            time.sleep(self._delay())
        with self._torch.inference_mode():
            target.copy_(source)

    def wait(self, row: int) -> None:
        copy = self._copies[row]
        if copy is not None:
            copy.result()

    def settle(self) -> None:
        for copy in self._copies:
            if copy is not None:
                copy.exception()

    @contextmanager
    def held_to(self, capacity: int) -> Iterator[None]:
        yield  # the arena has its size

    def peaks(self) -> tuple[int, int]:
        return 0, 0

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def close(self) -> None:
        for line in self._lines.values():
            line.shutdown()
