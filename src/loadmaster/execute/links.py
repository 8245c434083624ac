"""How fast copies between the host's pinned memory and a device are: alone, and both ways at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.execute.clock import Clock, median

SIZES = tuple(2**power for power in range(16, 31, 2))
"""64 KiB to 1 GiB."""
_BATCH_BYTES = 2**28
_MOST_COPIES = 32


@dataclass(frozen=True)
class LinkSpeed:
    """One direction: a copy of n bytes takes `latency` + n / `bandwidth` seconds."""

    bandwidth: float
    """Bytes per second."""
    latency: float
    """Seconds."""
    together: float
    """Bytes per second of a large copy while the other direction is as busy."""
    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    """One copy of each size, of a queue of them."""


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(latency, bandwidth) of the line with the least squared relative error, latency at least 0."""
    size, time = np.array(sizes, dtype=np.float64), np.array(seconds, dtype=np.float64)
    rows = np.stack([1 / time, size / time], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(rows, np.ones(len(time)), rcond=None)
    if latency < 0:  # then the line through the origin
        latency, slope = 0.0, float((size / time).sum() / ((size / time) ** 2).sum())
    return float(latency), 1 / max(float(slope), 1e-15)


def host_buffer(torch: Any, count: int, *, pinned: bool) -> Any:
    """Bytes on the host, page-locked where a GPU copies them."""
    return torch.empty(count, dtype=torch.uint8, pin_memory=pinned)


def measure_links(clock: Clock, *, largest: int = SIZES[-1], repeats: int = 5) -> tuple[LinkSpeed, LinkSpeed]:
    """(host to device, device to host)."""
    torch, sizes = clock.torch, [size for size in SIZES if size <= largest] or [largest]
    host = host_buffer(torch, sizes[-1], pinned=clock.is_cuda)
    device = torch.empty(sizes[-1], dtype=torch.uint8, device=clock.device)
    host.zero_()
    device.zero_()
    ways = [(device, host), (host, device)]
    times = [
        [_copy_seconds(clock, target, source, size, repeats) for size in sizes] for target, source in ways
    ]
    del host, device
    together = _both_ways(clock, min(sizes[-1], _BATCH_BYTES), repeats)
    found = []
    for seconds, rate in zip(times, together, strict=True):
        latency, bandwidth = fit(sizes, seconds)
        found.append(LinkSpeed(bandwidth, latency, rate, tuple(sizes), tuple(seconds)))
    return found[0], found[1]


def _copy_seconds(clock: Clock, target: Any, source: Any, size: int, repeats: int) -> float:
    into, out_of = target[:size], source[:size]
    copies = max(1, min(_MOST_COPIES, _BATCH_BYTES // size))

    def work() -> None:
        for _ in range(copies):
            into.copy_(out_of, non_blocking=True)

    return median(clock.seconds(work, repeats=repeats, ahead=True)) / copies


def _both_ways(clock: Clock, size: int, repeats: int, copies: int = 4) -> tuple[float, float]:
    """Bytes per second each way while both are busy; on a CPU there is one way at a time."""
    torch = clock.torch
    buffers = [host_buffer(torch, size, pinned=clock.is_cuda) for _ in range(2)]
    on_device = [torch.zeros(size, dtype=torch.uint8, device=clock.device) for _ in range(2)]
    ways = [(on_device[0], buffers[0]), (buffers[1], on_device[1])]
    if not clock.is_cuda:
        rates = [size / _copy_seconds(clock, *way, size, repeats) for way in ways]
        return rates[0], rates[1]
    streams = [torch.cuda.Stream(clock.device) for _ in ways]
    rates = []
    for measured in (0, 1):  # the other direction has twice the work: it is busy all the time
        times = []
        for _ in range(repeats):
            clock.wait()
            begin, end = clock.event(), clock.event()
            for number in (1 - measured, measured):
                with torch.cuda.stream(streams[number]):
                    if number == measured:
                        begin.record(streams[number])
                    for _ in range(copies if number == measured else 2 * copies):
                        ways[number][0].copy_(ways[number][1], non_blocking=True)
                    if number == measured:
                        end.record(streams[number])
            clock.wait()
            times.append(begin.elapsed_time(end) / 1e3)
        rates.append(copies * size / median(times))
    return rates[0], rates[1]
