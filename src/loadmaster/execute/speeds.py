"""What a device can do: matrix rates, memory bandwidth, launches, copies from and to the host's pinned
memory (alone, and both ways at once), and how copies slow it down.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import LoadmasterError, Refused
from loadmaster.execute import own_allocator
from loadmaster.execute.measured_cache import MeasuredCache, describe_device
from loadmaster.execute.op_times import (
    Clock,
    OpTimes,
    checked_device,
    cost_document,
    measure_ops,
    median,
    write_cost_file,
)
from loadmaster.execute.ready import make_ready
from loadmaster.files import replacing, writing
from loadmaster.machine import Machine, load_machine
from loadmaster.machine.presets import preset_text
from loadmaster.machine.toml import parse_machine
from loadmaster.program.program import Program
from loadmaster.program.storage import save
from loadmaster.search.request import BadRequest, say_nothing
from loadmaster.units import UNLIMITED, show_bytes

SIZES = tuple(2**power for power in range(16, 31, 2))
"""64 KiB to 1 GiB."""
_BATCH_BYTES = 2**28
_MOST_COPIES = 32
_BEYOND_CACHES = 2**26
"""Bytes that a CPU copies in turn, so that its caches have none of them."""


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


ABOVE_LARGEST = 1.1
"""How far the line's bandwidth may lie above that of the largest copy, which hardly has a latency."""
ATTEMPTS = 4


def fit_link(
    name: str, sizes: Sequence[int], measure: Callable[[], Sequence[float]]
) -> tuple[float, float, tuple[float, ...]]:
    """(latency, bandwidth, seconds by size) of a link. No line is faster than the best copy was. One that
    would be is measured again, and the shortest time of each size counts, since other work only ever adds to
    it; then it is refused."""
    largest = bandwidth = 0.0
    seconds = (float("inf"),) * len(sizes)
    for _ in range(ATTEMPTS):
        seconds = tuple(map(min, seconds, measure()))
        latency, bandwidth = fit(sizes, seconds)
        largest = sizes[-1] / seconds[-1]
        if bandwidth <= ABOVE_LARGEST * largest:
            best = max(size / each for size, each in zip(sizes, seconds, strict=True))
            return latency, min(bandwidth, best), seconds
    raise LoadmasterError(
        f"copies from {name} contradict each other: their line has {show_bytes(round(bandwidth))}/s and "
        f"{show_bytes(sizes[-1])} went at {show_bytes(round(largest))}/s, {ATTEMPTS} times",
        object=name,
        number=round(bandwidth),
        remedy="calibrate while nothing else runs",
    )


def host_buffer(torch: Any, count: int, *, pinned: bool) -> Any:
    """Bytes on the host, page-locked where a GPU copies them."""
    return torch.empty(count, dtype=torch.uint8, pin_memory=pinned)


def measure_links(clock: Clock, *, largest: int = SIZES[-1], repeats: int = 5) -> tuple[LinkSpeed, LinkSpeed]:
    """(host to device, device to host)."""
    torch, sizes = clock.torch, [size for size in SIZES if size <= largest] or [largest]
    room = sizes[-1] if clock.is_cuda else max(sizes[-1], _BEYOND_CACHES)
    host = host_buffer(torch, room, pinned=clock.is_cuda)
    device = torch.empty(room, dtype=torch.uint8, device=clock.device)
    host.zero_()
    device.zero_()
    lines = []
    for name, target, source in (("host to device", device, host), ("device to host", host, device)):

        def measure(target: Any = target, source: Any = source) -> list[float]:
            return [_copy_seconds(clock, target, source, size, repeats) for size in sizes]

        lines.append(fit_link(name, sizes, measure))
    del host, device
    together = _both_ways(clock, min(sizes[-1], _BATCH_BYTES), repeats)
    found = [
        LinkSpeed(bandwidth, latency, rate, tuple(sizes), seconds)
        for (latency, bandwidth, seconds), rate in zip(lines, together, strict=True)
    ]
    return found[0], found[1]


def _copy_seconds(clock: Clock, target: Any, source: Any, size: int, repeats: int) -> float:
    """One copy of a queue of them, each of other bytes as far as there are any: a CPU has caches."""
    copies = max(1, min(_MOST_COPIES, _BATCH_BYTES // size)) if clock.is_cuda else len(source) // size
    lows = [number % (len(source) // size) * size for number in range(copies)]
    pairs = [(target[low : low + size], source[low : low + size]) for low in lows]

    def work() -> None:
        for into, out_of in pairs:
            into.copy_(out_of, non_blocking=True)

    seconds = clock.seconds(work, repeats=repeats, ahead=True)
    # What else a CPU does meanwhile only ever adds to it.
    return (median(seconds) if clock.is_cuda else min(seconds)) / copies


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


# Measured speeds as a machine's TOML; every number says where it comes from.

FAST, HOME, DEVICE = "hbm", "host", "gpu"
_ALIGNMENT = 256
_CUDA_CONTEXT = 2**30
"""Bytes of a GPU that no tensor gets: the context, libraries and what is left over of pages."""


_MEASURED = "as measured: device memory over pinned host memory"


def is_measured_on_cpu(machine: Machine) -> bool:
    """Whether a machine is a CPU that was calibrated; all others are some GPU's."""
    return machine.description == f"cpu {_MEASURED}"


def machine_toml(
    speeds: Speeds, base: Machine | None = None, name: str | None = None, by: str = "loadmaster calibrate"
) -> str:
    """A machine of one device, its memory, the host's memory and a link each way.

    `base` gives the names of its parts and what was not measured: rates of other types,
    alignments. Without it vector work is as fast as f32 products, which CUDA's vector units do.
    `by`: the command that measured it.
    """
    name = name or re.sub(r"[^a-z0-9]+", "-", speeds.device.lower()).strip("-") or speeds.kind
    device = DEVICE if base is None else base.devices[0].name
    fast, home = (FAST, HOME) if base is None else _memories(base)
    align = [_ALIGNMENT, _ALIGNMENT]
    if base is not None:
        align = [base.memories[base.memory(each)].alignment for each in (fast, home)]
    capacity = max(speeds.total - _CUDA_CONTEXT, speeds.total // 2)
    lines = [
        f"# Measured by '{by}' on one {_plain(speeds.device)}.",
        f'name = "{_plain(name)}"',
        f'description = "{_plain(speeds.device)} {_MEASURED}"',
        "",
        "[rules]",
        'ports = "parallel"',
        "overlap = 0.0                 # assumed: kernels hide the smaller of compute and memory time",
        f'copies = "free"               # {_slowdown(speeds)}',
        'reach = "first"               # ops work on what lies in the device\'s own memory',
        *_memory(
            fast,
            capacity,
            speeds.memory,
            align[0],
            f"measured: {speeds.total:,} bytes, less the driver's share",
        ),
        *_memory(
            home,
            speeds.host,
            max(speeds.to_device.bandwidth, speeds.to_host.bandwidth),
            align[1],
            "measured: of the computer",
        ),
    ]
    for source, target, link, engine in (
        (home, fast, speeds.to_device, "h2d"),
        (fast, home, speeds.to_host, "d2h"),
    ):
        lines += [
            "",
            "[[link]]",
            f'source = "{source}"',
            f'target = "{target}"',
            f"bandwidth = {round(link.bandwidth)}   # measured alone; with the other way busy {link.together:.4g}",
            f'latency = "{round(link.latency * 1e9)}ns"   # measured: fitted over {len(link.sizes)} sizes',
            f'engines = ["{engine}"]',
        ]
    lines += [
        "",
        "[[device]]",
        f'name = "{device}"',
        f'memories = ["{fast}", "{home}"]',
        *_rates(speeds, base),
        f'launch = "{round(speeds.launch * 1e9)}ns"   # measured: tiny ops back to back',
    ]
    return "\n".join(lines) + "\n"


def _memories(base: Machine) -> tuple[str, str]:
    reach = base.devices[0].memories
    return reach[0], reach[-1] if len(reach) > 1 else HOME


def _memory(name: str, capacity: int, rate: float, alignment: int, source: str) -> list[str]:
    return [
        "",
        "[[memory]]",
        f'name = "{name}"',
        f"capacity = {min(capacity, UNLIMITED)}   # {source}",
        f"bandwidth = {round(rate)}   # measured",
        f"alignment = {alignment}",
    ]


def _rates(speeds: Speeds, base: Machine | None) -> list[str]:
    matrix = {} if base is None else dict(base.devices[0].rates.get("matrix", {}))
    matrix |= {kind: round(rate) for kind, rate in speeds.matrix.items()}
    matrix.setdefault("*", round(speeds.matrix["f32"]))
    cells = ", ".join(f'"{kind}" = {rate}' for kind, rate in matrix.items())
    lines = [f"matrix = {{ {cells} }}   # measured: {', '.join(speeds.matrix)}"]
    vector = {} if base is None else dict(base.devices[0].rates.get("vector", {}))
    if vector:
        cells = ", ".join(f'"{kind}" = {rate}' for kind, rate in vector.items())
        return [*lines, f"vector = {{ {cells} }}   # from '{_plain(base.name if base else '')}'"]
    return [*lines, f"vector = {round(speeds.matrix['f32'])}   # assumed: as f32 products"]


def _slowdown(speeds: Speeds) -> str:
    if not speeds.slowdown:
        return "assumed: copies on their own do not slow work down"
    parts = [f"{kind} work takes {factor:.3f} times as long" for kind, factor in speeds.slowdown.items()]
    return f"measured: while copies go both ways {' and '.join(parts)}"


def _plain(text: str) -> str:
    """Text that may stand in quotes and in comments."""
    return "".join(c for c in text if c.isprintable() and c not in '"\\')


# The same in a second, for a command that plans for this very computer.

QUICK_SIZES = (2**20, 2**26)
QUICK = {
    "cuda": Effort(4096, 2048, 2**28, QUICK_SIZES[-1]),
    "cpu": Effort(256, 256, 2**24, QUICK_SIZES[-1], 3),
}
_LINK_TRIES = 5
_LEAST_RATE, _MOST_RATE = 1e8, 2e12
"""Bytes per second of a link: what is outside was not measured well."""
_FALLS = 0.95
"""How much of a small copy's rate a large one has at the least."""
_MOST_OVER = 1.1
"""How much faster than its large copies a link can be without their latency."""


def quick_machine(
    device: Any,
    base: Machine | None = None,
    *,
    cache: Path | None = None,
    say: Callable[[str], None] = say_nothing,
    measure: Callable[[Clock], Speeds] | None = None,
) -> Machine:
    """This very computer, as measured now or before: a device that works in its own memory, the host's memory and a
    link each way.

    Args:
      base: gives the names of its parts and what was not measured (`machine_toml`).
      cache: the folder where measurements are kept (`cache_folder()`); None: nowhere.
      measure: in place of `quick_speeds`, for tests.

    Raises:
      LoadmasterError: what was measured of a link can't be.
    """
    clock = Clock(checked_device(str(device)))
    store = None
    if cache is not None:  # links are a computer's, not only a device's
        about = describe_device(clock.device) | {"host": platform.node(), "host memory": str(_host_bytes())}
        store = MeasuredCache(cache, "speeds", about)
    speeds = None if store is None else _known_speeds(clock, store.read())
    if speeds is None:
        say(f"measuring {clock.device}")
        speeds = (measure or quick_speeds)(clock)
        if store is not None and (fault := store.write(_kept_figures(speeds))) is not None:
            say(f"the measurements are not kept: {fault}")
    return parse_machine(machine_toml(speeds, base, by="loadmaster fit"), "this computer", preset_text)


def quick_speeds(clock: Clock) -> Speeds:
    """Measure a device in about a second. With our own allocator it happens on the stream of plans, so that
    libraries keep their workspaces once."""
    effort = QUICK[clock.device.type]
    own = own_allocator.current() if clock.is_cuda else None
    try:
        with ExitStack() as stack:
            if own is not None:
                stack.enter_context(own_allocator.on_compute(own_allocator.compute(clock.device).stream))
            to_device, to_host = quick_links(clock, effort)
            found = _speeds(
                clock,
                to_device,
                to_host,
                memory=_memory_rate(clock, effort),
                matrix=_matrix_rates(clock, effort),
                launch=_launch_seconds(clock, effort),
            )
            clock.wait()
    except RuntimeError as error:
        if not own_allocator.is_shortage(error):
            raise
        raise Refused(
            f"{clock.device} has no room to be measured: that takes {show_bytes(3 * effort.memory)}",
            object=str(clock.device),
            number=3 * effort.memory,
            remedy="end what else uses it, or give --machine",
        ) from error
    if own is not None:
        own.release()
    elif clock.is_cuda:
        clock.torch.cuda.empty_cache()
    return found


def quick_links(clock: Clock, effort: Effort) -> tuple[LinkSpeed, LinkSpeed]:
    """(host to device, device to host) from two sizes."""
    torch, largest = clock.torch, QUICK_SIZES[-1]
    host = host_buffer(torch, largest, pinned=clock.is_cuda)
    device = torch.zeros(largest, dtype=torch.uint8, device=clock.device)
    host.zero_()
    times = []
    for name, target, source in (("host to device", device, host), ("device to host", host, device)):

        def seconds_of(size: int, target: Any = target, source: Any = source) -> float:
            return _copy_seconds(clock, target, source, size, effort.repeats)

        times.append(plausible_copies(name, seconds_of, rising=clock.is_cuda))
    del host, device, target, source, seconds_of
    together = _both_ways(clock, largest, effort.repeats)
    found = []
    for seconds, rate in zip(times, together, strict=True):
        latency, bandwidth = fit(QUICK_SIZES, seconds)
        if bandwidth > _MOST_OVER * largest / seconds[-1]:  # small copies came from a cache
            latency, bandwidth = 0.0, largest / seconds[-1]
        found.append(LinkSpeed(bandwidth, latency, rate, QUICK_SIZES, tuple(seconds)))
    return found[0], found[1]


def plausible_copies(link: str, seconds_of: Callable[[int], float], *, rising: bool) -> list[float]:
    """Seconds of a copy of each size, measured again where they can't be. `rising`: a large copy is no slower by the
    byte than a small one, which on a CPU comes from a cache. What else runs makes copies slower and never faster: the
    shortest of all tries counts. If both can't be together to the end, the large one does, and the small one is taken to
    have its rate; if that can't be either, the link is refused."""
    best, rates = [math.inf] * len(QUICK_SIZES), list[float]()
    for _ in range(_LINK_TRIES):
        seconds = [seconds_of(size) for size in QUICK_SIZES]
        rates = [size / max(each, 1e-12) for size, each in zip(QUICK_SIZES, seconds, strict=True)]
        if rates[-1] <= _MOST_RATE:  # else the clock is wrong
            best = [min(pair) for pair in zip(best, seconds, strict=True)]
        if _is_plausible(best, rising=rising):
            return best
    if _LEAST_RATE <= QUICK_SIZES[-1] / max(best[-1], 1e-12) <= _MOST_RATE:  # a busy computer
        return [best[-1] * size / QUICK_SIZES[-1] for size in QUICK_SIZES]
    shown = ", ".join(
        f"{rate / 1e9:.3g} GB/s with {show_bytes(size)}"
        for rate, size in zip(rates, QUICK_SIZES, strict=True)
    )
    raise LoadmasterError(
        f"the link from {link} was measured {_LINK_TRIES} times and can't be as fast as that: {shown}",
        object=link,
        number=round(rates[-1]),
        remedy="see what else uses the computer, or give a machine (fit's machine=, a command's --machine)",
    )


def _is_plausible(seconds: list[float], *, rising: bool) -> bool:
    """Whether a link can be like that, by the seconds of copies of both sizes."""
    small, large = (size / max(each, 1e-12) for size, each in zip(QUICK_SIZES, seconds, strict=True))
    rises = seconds[0] < seconds[-1] and (not rising or large >= _FALLS * small)
    return _LEAST_RATE <= large <= _MOST_RATE and rises


def _speeds(
    clock: Clock,
    to_device: LinkSpeed,
    to_host: LinkSpeed,
    *,
    memory: float,
    matrix: dict[str, float],
    launch: float,
) -> Speeds:
    """What was measured, with the sizes as they are now."""
    total, free = _memory_sizes(clock)
    name = clock.torch.cuda.get_device_name(clock.device) if clock.is_cuda else "cpu"
    return Speeds(
        name, clock.device.type, total, free, _host_bytes(), to_device, to_host, memory, matrix, launch, {}
    )


def _kept_figures(speeds: Speeds) -> dict[str, Any]:
    links = {"to_device": speeds.to_device, "to_host": speeds.to_host}
    return {
        **{name: [link.bandwidth, link.latency, link.together] for name, link in links.items()},
        "memory": speeds.memory,
        "matrix": speeds.matrix,
        "launch": speeds.launch,
    }


def _known_speeds(clock: Clock, content: dict[str, Any]) -> Speeds | None:
    """The inverse of `_kept_figures`; None where anything is missing or can't be."""
    matrix, memory, launch = content.get("matrix"), content.get("memory", 0), content.get("launch", 0)
    links = [link for link in map(_known_link, (content.get("to_device"), content.get("to_host"))) if link]
    if len(links) != 2 or not isinstance(matrix, dict) or set(matrix) != set(TYPES):
        return None
    rates = {name: matrix[name] for name in TYPES}
    if not all(_is_figure(rate, 1) for rate in [memory, *rates.values()]) or not _is_figure(launch, 0, 1):
        return None
    return _speeds(clock, *links, memory=memory, matrix=rates, launch=launch)


def _known_link(figures: Any) -> LinkSpeed | None:
    if not isinstance(figures, list) or len(figures) != 3:
        return None
    bandwidth, latency, together = figures
    rates = all(_is_figure(rate, _LEAST_RATE / 10, 10 * _MOST_RATE) for rate in (bandwidth, together))
    known = rates and _is_figure(latency, 0, 1)
    return LinkSpeed(bandwidth, latency, together, QUICK_SIZES) if known else None


def _is_figure(value: Any, least: float, most: float = 1e18) -> bool:
    return type(value) is float and least <= value <= most


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was measured of a device, and of a model on it."""

    speeds: Speeds | None
    program: Program | None
    """The model as captured: what the times are of."""
    times: OpTimes | None


def calibrate(
    model: str | None,
    device: str,
    *,
    out: Path | None = None,
    base: str | None = None,
    costs: Path | None = None,
    program: Path | None = None,
    training: bool = False,
    split_over: int | None = None,
    weights: str = "random",
    passes: int = 7,
    say: Callable[[str], None] = say_nothing,
) -> Calibration:
    """Measure a device, and every op of a model on it, all resident.

    Args:
      model: a PyTorch 'module:function'; None: the device alone is measured. With a model, the device is measured
        too if `out` is to be written.
      out: the machine as measured, with names and what is not measured from the machine `base`.
      costs: the model's cost table.
      program: the model as captured.
      training, split_over, weights: how it is captured (`make_ready`).
      passes: of which the median counts.
    """
    if model is None and (costs is not None or program is not None):
        raise BadRequest(
            "--costs and --program are of a model, and none is given",
            object="MODEL",
            remedy="give module:function",
        )
    clock, speeds = Clock(checked_device(device)), None
    if model is None or out is not None:
        given = None if base is None else load_machine(base)
        say(f"measuring {device}")
        speeds = measure_speeds(clock)
        if out is not None:
            with writing(out), replacing(out) as temporary:
                temporary.write_text(machine_toml(speeds, given, out.stem), encoding="utf-8")
    if model is None:
        return Calibration(speeds, None, None)
    name = "gpu" if base is None else load_machine(base).devices[0].name
    say(f"capturing {model}")
    ready = make_ready(model, device, training=training, weights=weights, split_over=split_over)
    captured = ready.captured
    values = {key: ready.weights[key].detach().to(clock.device) for key in ready.weights}
    inputs = [tensor.to(clock.device) for tensor in ready.inputs]
    say(f"timing {captured.program.n_ops:,} ops")
    times = measure_ops(captured, values, inputs, clock.device, passes=passes)
    if costs is not None:
        slowdown = {} if speeds is None else speeds.slowdown
        with writing(costs):
            write_cost_file(cost_document(captured.program, times, name, slowdown), costs)
    if program is not None:
        with writing(program):
            save(captured.program, program)
    return Calibration(speeds, captured.program, times)
