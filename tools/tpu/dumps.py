"""What the compiler's dumps say beside HLO: offsets of buffers, the flattened order, live ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

FAST_COLOUR = 3
"""The compiler's number for CMEM, in shapes `S(3)`."""

_ALLOCATION = re.compile(r"allocation \d+: size \d+(?:, color (\d+))?")
_VALUE = re.compile(r"\s*value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\)")
_STEP = re.compile(r"\s+(\d+):(\S+)$")
_RANGE = re.compile(r"\s+(\S+?)\{([\d,]*)\}:(\d+)-(\d+)$")


class Buffer(NamedTuple):
    """A value's place in its allocation."""

    size: int
    offset: int


@dataclass(frozen=True)
class LiveRanges:
    """The flattened order, and from when to when each value lives."""

    order: list[str]
    of: dict[str, tuple[int, int]]


def read_buffers(text: str, colour: int | None = None) -> dict[str, Buffer]:
    """The buffers by name, such as 'fusion.3{1}'; `colour` keeps one memory."""
    found: dict[str, Buffer] = {}
    here = 0
    for line in text.splitlines():
        if allocation := _ALLOCATION.match(line):
            here = int(allocation.group(1) or 0)
        elif (value := _VALUE.match(line)) and colour in (None, here):
            name = value.group(1).removesuffix("{}")
            found[name] = Buffer(int(value.group(2)), int(value.group(3)))
    return found


def read_live_ranges(text: str) -> LiveRanges:
    """The first two parts of a live-range dump."""
    order: list[str] = []
    ranges: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        if line.strip().startswith("Live ranges at"):
            break
        if found := _RANGE.match(line):
            path = f"{{{found.group(2)}}}" if found.group(2) else ""
            ranges[found.group(1) + path] = (int(found.group(3)), int(found.group(4)))
        elif step := _STEP.match(line):
            order.append(step.group(2))
    return LiveRanges(order, ranges)
