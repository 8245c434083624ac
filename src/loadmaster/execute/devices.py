"""Devices that runs use: a CPU for tests, and CUDA.

On a CPU ops run at once, and a thread per direction copies. On CUDA ops are on the current stream, copies
on a stream of their own per direction. All memory is taken from and given back to the allocator in the
order of the compute stream. A copy's stream waits for an event of that stream before it touches memory,
and the compute stream waits for the copy's event before memory that it touched is used again; so no
block is ever reused too early, and `record_stream` isn't needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from loadmaster.errors import BadMachine, require
from loadmaster.execute import own_allocator


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

    def join(self) -> None:
        """Ops from now on start when all copies are done; nothing waits for them one by one any more."""
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

    def join(self) -> None:
        for row in range(len(self._copies)):
            self.wait(row)

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


class CudaBackend:
    """One GPU."""

    arena_only = False
    pinned = True

    def __init__(self, device: Any) -> None:
        self._torch = torch = require("torch", "torch")
        if not torch.cuda.is_available():
            raise BadMachine(
                "PyTorch finds no CUDA device here",
                object=str(device),
                remedy="use --device cpu, or a machine with a GPU and its driver",
            )
        chosen = torch.device(device)
        number = torch.cuda.current_device() if chosen.index is None else chosen.index
        self.device = torch.device("cuda", number)
        self._cuda = torch.cuda
        self._streams = {inward: torch.cuda.Stream(self.device) for inward in (True, False)}
        self._done: list[Any] = []
        self._marks: list[Any] = []
        self._marked = 0
        self._issued: set[int] = set()
        """Copies that somebody may have to wait for."""
        self._used: set[bool] = set()
        """Directions whose stream has work that nothing has waited for."""
        self._outside = (0, 0)
        self._own = own_allocator.current()  # with it PyTorch counts nothing

    def open(self) -> None:
        self._cuda.synchronize(self.device)
        if self._own is not None:
            self._own.release()
            self._outside = (self._own.held, self._own.held)
            return
        self._cuda.empty_cache()
        self._outside = (self._cuda.memory_allocated(self.device), self._cuda.memory_reserved(self.device))

    def begin(self, copies: int) -> None:
        while len(self._done) < copies:
            self._done.append(self._cuda.Event())
        self._marked = 0
        self._issued.clear()
        self._used.clear()

    def mark(self, *, inward: bool, outward: bool) -> None:
        if self._marked == len(self._marks):
            self._marks.append(self._cuda.Event())
        event = self._marks[self._marked]
        self._marked += 1
        event.record(self._cuda.current_stream(self.device))
        for direction, used in ((True, inward), (False, outward)):
            if used:
                self._streams[direction].wait_event(event)
                self._used.add(direction)

    def copy(self, row: int, inward: bool, target: Any, source: Any, after: Sequence[int]) -> None:
        stream = self._streams[inward]
        for other in after:
            if other in self._issued:
                stream.wait_event(self._done[other])
        with self._cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        self._done[row].record(stream)
        self._issued.add(row)
        self._used.add(inward)

    def wait(self, row: int) -> None:
        if row in self._issued:
            self._cuda.current_stream(self.device).wait_event(self._done[row])

    def join(self) -> None:
        current = self._cuda.current_stream(self.device)
        for direction in self._used:  # a CUDA graph may not wait for a stream that it has not sent work to
            current.wait_stream(self._streams[direction])
        self._issued.clear()
        self._used.clear()

    def settle(self) -> None:
        self._cuda.synchronize(self.device)

    def reset_peaks(self) -> None:
        """Count from here on."""
        if self._own is not None:
            self._own.reset_most()
        else:
            self._cuda.reset_peak_memory_stats(self.device)

    @contextmanager
    def held_to(self, capacity: int) -> Iterator[None]:
        cuda, device = self._cuda, self.device
        self.reset_peaks()
        if self._own is not None:
            yield  # planned runs have an arena of the budget and nothing else
            return
        total = cuda.get_device_properties(device).total_memory
        limit = min(1.0, (capacity + self._outside[1]) / total)
        cuda.set_per_process_memory_fraction(limit, device)
        try:
            yield
        finally:
            cuda.set_per_process_memory_fraction(1.0, device)

    def peaks(self) -> tuple[int, int]:
        if self._own is not None:
            held = self._own.most - self._outside[0]
            return held, held
        allocated = self._cuda.max_memory_allocated(self.device) - self._outside[0]
        return allocated, self._cuda.max_memory_reserved(self.device) - self._outside[1]

    def now(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self.device))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def close(self) -> None:
        self.settle()
