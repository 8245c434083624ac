"""What a device can do: matrix rates, memory bandwidth, launches, and how copies slow it down."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadmaster.execute.clock import Clock, median
from loadmaster.execute.links import LinkSpeed, host_buffer, measure_links

TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_LAUNCHES = 500


@dataclass(frozen=True)
class Effort:
    """How large the measurements are."""

    matrix: int = 8192
    matrix_f32: int = 4096
    memory: int = 2**31
    link: int = 2**30
    repeats: int = 5


EFFORT = {"cuda": Effort(), "cpu": Effort(512, 512, 2**25, 2**24, 3)}


@dataclass(frozen=True)
class Speeds:
    """A device as measured. Rates are per second, sizes in bytes, times in seconds."""

    device: str
    """Its own name."""
    kind: str
    """'cuda' or 'cpu'."""
    total: int
    free: int
    host: int
    to_device: LinkSpeed
    to_host: LinkSpeed
    memory: float
    """Bytes read and written by a large copy inside the device."""
    matrix: dict[str, float]
    """Flops by element type, two per multiply-add."""
    launch: float
    """One tiny op of many back to back."""
    slowdown: dict[str, float]
    """How many times as long work takes while copies go both ways: 'matrix', 'memory'."""


def measure_speeds(clock: Clock, effort: Effort | None = None) -> Speeds:
    """Measure a device; about 10 s on a GPU."""
    effort = effort or EFFORT[clock.device.type]
    to_device, to_host = measure_links(clock, largest=effort.link, repeats=effort.repeats)
    total, free = _memory_sizes(clock)
    name = clock.torch.cuda.get_device_name(clock.device) if clock.is_cuda else "cpu"
    return Speeds(
        name,
        clock.device.type,
        total,
        free,
        _host_bytes(),
        to_device,
        to_host,
        memory=_memory_rate(clock, effort),
        matrix=_matrix_rates(clock, effort),
        launch=_launch_seconds(clock, effort),
        slowdown=_slowdowns(clock, effort),
    )


def _memory_sizes(clock: Clock) -> tuple[int, int]:
    if clock.is_cuda:
        free, total = clock.torch.cuda.mem_get_info(clock.device)
        return int(total), int(free)
    return _host_bytes(), _host_bytes()


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _matrix_work(clock: Clock, size: int, dtype: Any) -> Callable[[], object]:
    torch = clock.torch
    left, right = (torch.randn(size, size, device=clock.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _memory_work(clock: Clock, count: int) -> Callable[[], object]:
    source = clock.torch.zeros(count, dtype=clock.torch.uint8, device=clock.device)
    target = clock.torch.empty_like(source)
    return lambda: target.copy_(source)


def _matrix_rates(clock: Clock, effort: Effort) -> dict[str, float]:
    rates = {}
    for name, dtype in TYPES.items():
        size = effort.matrix_f32 if name == "f32" else effort.matrix
        work = _matrix_work(clock, size, getattr(clock.torch, dtype))
        rates[name] = 2 * size**3 / median(clock.seconds(work, repeats=effort.repeats, ahead=True))
    return rates


def _memory_rate(clock: Clock, effort: Effort) -> float:
    work = _memory_work(clock, effort.memory)
    return 2 * effort.memory / median(clock.seconds(work, repeats=effort.repeats, ahead=True))


def _launch_seconds(clock: Clock, effort: Effort) -> float:
    tiny = clock.torch.zeros(1, device=clock.device)

    def work() -> None:
        for _ in range(_LAUNCHES):
            tiny.add_(1)

    return median(clock.seconds(work, repeats=effort.repeats, ahead=True)) / _LAUNCHES


def _slowdowns(clock: Clock, effort: Effort) -> dict[str, float]:
    """Work beside copies against work alone; on a CPU copies and work share the cores: not measured."""
    if not clock.is_cuda:
        return {}
    torch = clock.torch
    size = min(effort.link, 2**28)
    host = [host_buffer(torch, size, pinned=True) for _ in range(2)]
    near = [torch.zeros(size, dtype=torch.uint8, device=clock.device) for _ in range(2)]
    streams = [torch.cuda.Stream(clock.device) for _ in range(2)]
    found = {}
    for name, one, count in (
        ("matrix", _matrix_work(clock, effort.matrix, torch.bfloat16), 10),
        ("memory", _memory_work(clock, effort.memory), 10),
    ):

        def work(one: Callable[[], object] = one, count: int = count) -> None:
            for _ in range(count):
                one()

        alone = median(clock.seconds(work, repeats=effort.repeats, ahead=True))
        copies = 2 + int(2 * alone * 60e9 / size)  # more than 60 GB/s can move meanwhile

        def beside(work: Callable[[], None] = work, copies: int = copies) -> None:
            for stream, target, source in zip(streams, (near[0], host[1]), (host[0], near[1]), strict=True):
                stream.wait_stream(torch.cuda.current_stream(clock.device))
                with torch.cuda.stream(stream):
                    for _ in range(copies):
                        target.copy_(source, non_blocking=True)
            work()

        found[name] = median(clock.seconds(beside, repeats=effort.repeats)) / alone
    return found
