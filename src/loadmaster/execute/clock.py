"""Seconds that work takes on a device: by its own events on CUDA, by the host's clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from loadmaster.errors import LoadmasterError, require

_SLEEP_HZ = 2.0e9
"""Cycles per second that a sleeping GPU counts, at most."""
_LONGEST_SLEEP = 2.0


def checked_device(name: str) -> Any:
    """A torch device that is there, or an error that says what is missing."""
    torch = require("torch", "torch")
    kind = name.partition(":")[0]
    if kind not in ("cuda", "cpu"):
        raise LoadmasterError(
            f"there is no device '{name}' to run on", object="--device", number=name, remedy="use cuda or cpu"
        )
    if kind == "cuda" and not torch.cuda.is_available():
        raise LoadmasterError(
            "this computer has no CUDA device that PyTorch can use",
            object=name,
            remedy="use --device cpu, or run where an NVIDIA GPU is",
        )
    return torch.device(kind, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


class Clock:
    """Measures on one device."""

    def __init__(self, device: Any) -> None:
        self.torch = require("torch", "torch")
        self.device = device
        self.is_cuda = device.type == "cuda"

    def wait(self) -> None:
        """Until everything that was asked of the device is done."""
        if self.is_cuda:
            self.torch.cuda.synchronize(self.device)

    def seconds(
        self, work: Callable[[], object], *, repeats: int = 5, warmups: int = 2, ahead: bool = False
    ) -> list[float]:
        """Each repeat's seconds. `ahead`: the device is kept waiting until the host has asked for
        (nearly) everything, so that what the host needs for asking does not count."""
        asking = 0.0
        for _ in range(warmups):
            self.wait()
            began = time.perf_counter()
            work()
            asking = time.perf_counter() - began
            self.wait()
        return [self._once(work, asking if ahead else 0.0) for _ in range(repeats)]

    def _once(self, work: Callable[[], object], asking: float) -> float:
        if not self.is_cuda:
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        begin, end = self.event(), self.event()
        self.wait()
        self.hold_back(asking)
        begin.record()
        work()
        end.record()
        self.wait()
        return float(begin.elapsed_time(end)) / 1e3

    def event(self) -> Any:
        """An event that keeps its time (CUDA only)."""
        return self.torch.cuda.Event(enable_timing=True)

    def hold_back(self, seconds: float) -> None:
        """Let the device wait about so long before the work that is asked of it next."""
        if self.is_cuda and seconds > 0:
            self.torch.cuda._sleep(int(min(1.5 * seconds, _LONGEST_SLEEP) * _SLEEP_HZ))


def median(values: Sequence[float]) -> float:
    """The middle one: of an even number the lower, which was measured."""
    return sorted(values)[(len(values) - 1) // 2]
