"""`torch.cuda` without a GPU: streams and events that only keep count, and a witness of every access.

Work is done at once, in the order of the calls, on CPU memory, which is reused as soon as it is
free, just as a device's caching allocator does. The streams keep vector clocks. Two accesses to one
address from different streams, one of them a write, must be ordered by them; else it is a race.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loadmaster.execute.devices import CudaBackend
from loadmaster.program.importers.torch.captured import Captured, capture


class Access(NamedTuple):
    stream: int
    time: int
    seen: dict[int, int]
    low: int
    high: int
    write: bool
    what: str


class Stream:
    def __init__(self, cuda: FakeCuda) -> None:
        self.number = len(cuda.streams)
        self.seen = {self.number: 1}
        cuda.streams.append(self)

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)

    def wait_event(self, event: Event) -> None:
        assert event.seen is not None, "waited for an event that was never recorded"
        for stream, time in event.seen.items():
            self.seen[stream] = max(self.seen.get(stream, 0), time)


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.seen: dict[int, int] | None = None

    def record(self, stream: Stream) -> None:
        self.seen = dict(stream.seen)
        stream.seen[stream.number] += 1

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 1.0


class FakeCuda:
    """Takes the place of the parts of `torch.cuda` that the executor uses."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self._first, self._of_thread = Stream(self), threading.local()
        self.fractions: list[float] = []
        self.waits = 0
        """How often somebody waited for the device."""

    @property
    def current(self) -> Stream:
        """The stream of this thread."""
        return getattr(self._of_thread, "stream", self._first)

    @current.setter
    def current(self, stream: Stream) -> None:
        self._of_thread.stream = stream

    def install(self, patch: Any) -> None:
        properties = SimpleNamespace(total_memory=2**30)
        for name, value in {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "Event": Event,
            "Stream": lambda device: Stream(self),
            "current_stream": lambda device: self.current,
            "stream": self.stream,
            "set_stream": lambda stream: setattr(self, "current", stream),
            "set_device": lambda device: None,
            "synchronize": self.synchronize,
            "empty_cache": lambda: None,
            "memory_allocated": lambda device: 1000,
            "memory_reserved": lambda device: 2000,
            "max_memory_allocated": lambda device: 5000,
            "max_memory_reserved": lambda device: 7000,
            "reset_peak_memory_stats": lambda device: None,
            "set_per_process_memory_fraction": lambda share, device: self.fractions.append(share),
            "get_device_properties": lambda device: properties,
        }.items():
            patch.setattr(torch.cuda, name, value)
        for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
            # Optimizers would look whether the real device captures a graph, where PyTorch is built for one.
            patch.setattr(torch.optim.Optimizer, name, lambda optimizer: None, raising=False)
        real = CudaBackend.__init__

        def on_cpu(backend: Any, device: Any) -> None:
            real(backend, device)
            backend.device, backend.pinned = torch.device("cpu"), False

        patch.setattr(CudaBackend, "__init__", on_cpu)

    @contextmanager
    def stream(self, stream: Stream) -> Any:
        before, self.current = self.current, stream
        yield
        self.current = before

    def synchronize(self, device: Any = None) -> None:
        self.waits += 1
        for stream in self.streams:
            event = Event()
            event.record(stream)
            for other in self.streams:
                other.wait_event(event)


class Witness(TorchDispatchMode):
    """Notes who reads and writes which addresses."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self.cuda, self.accesses = cuda, []  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        results = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        known = {t.untyped_storage().data_ptr() for t in given}
        if func._schema.is_mutable:
            reads, writes = given[1:], given[:1]
        elif "empty" in str(func) or any(t.untyped_storage().data_ptr() in known for t in results):
            return made  # room or a view: nothing is touched
        else:
            reads, writes = given, results
        for tensors, write in ((reads, False), (writes, True)):
            for tensor in tensors:
                self.note(tensor, write, str(func))
        return made

    def note(self, tensor: Any, write: bool, what: str) -> None:
        spread = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        low, stream = tensor.data_ptr(), self.cuda.current
        if tensor.numel():
            high = low + (spread + 1) * tensor.element_size()
            self.accesses.append(
                Access(stream.number, stream.seen[stream.number], dict(stream.seen), low, high, write, what)
            )

    def races(self) -> list[tuple[Access, Access]]:
        found = []
        for index, later in enumerate(self.accesses):
            for earlier in self.accesses[:index]:
                meets = earlier.low < later.high and later.low < earlier.high
                apart = earlier.stream != later.stream and (earlier.write or later.write)
                if meets and apart and later.seen.get(earlier.stream, 0) < earlier.time:
                    found.append((earlier, later))
        return found


class _Turning(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        first = x
        for layer in self.layers:
            x = torch.tanh(layer(x)).t() + first.t()
        return x, first.t() * 2


def turning(layers: int) -> tuple[Any, Captured]:
    """A model with views of its input and of its results."""
    torch.manual_seed(0)
    module = _Turning(layers).eval()
    return module, capture(module, (torch.zeros(64, 64),), name="net")
