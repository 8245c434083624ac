"""Measured speeds as a machine's TOML; every number says where it comes from."""

from __future__ import annotations

import re

from loadmaster.execute.speeds import Speeds
from loadmaster.machine.machine import Machine
from loadmaster.units import UNLIMITED

FAST, HOME, DEVICE = "hbm", "host", "gpu"
_ALIGNMENT = 256
_CUDA_CONTEXT = 2**30
"""Bytes of a GPU that no tensor gets: the context, libraries and what is left over of pages."""


def machine_toml(speeds: Speeds, base: Machine | None = None, name: str | None = None) -> str:
    """A machine of one device, its memory, the host's memory and a link each way.

    `base` gives the names of its parts and what was not measured: rates of other types,
    alignments. Without it vector work is as fast as f32 products, which CUDA's vector units do.
    """
    name = name or re.sub(r"[^a-z0-9]+", "-", speeds.device.lower()).strip("-") or speeds.kind
    device = DEVICE if base is None else base.devices[0].name
    fast, home = (FAST, HOME) if base is None else _memories(base)
    align = [_ALIGNMENT, _ALIGNMENT]
    if base is not None:
        align = [base.memories[base.memory(each)].alignment for each in (fast, home)]
    capacity = max(speeds.total - _CUDA_CONTEXT, speeds.total // 2)
    lines = [
        f"# Measured by 'loadmaster calibrate' on one {_plain(speeds.device)}.",
        f'name = "{_plain(name)}"',
        f'description = "{_plain(speeds.device)} as measured: device memory over pinned host memory"',
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
