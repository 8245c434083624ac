"""Sizes, times and rates as people write them, and back."""

from __future__ import annotations

import math
import re

PICOSECONDS = 10**12
UNLIMITED = 2**62
"""A capacity that no program reaches; sums of sizes below it can't overflow."""

_SIZE = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_TIME = {"s": 10**12, "ms": 10**9, "us": 10**6, "µs": 10**6, "ns": 10**3, "ps": 1, "": 10**12}
_PREFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_LONGEST = 100
"""Characters of a size: more say nothing, and take long to look through."""
_BITS = re.compile(r"(?=.*[A-Z])([KMGTkmgt]i?)b(/s)?")
"""'Gb' beside 'GB': whoever writes a prefix large and the b small means bits. In 'gb' all is small, and says nothing."""
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([a-zµ/]*)\s*", re.I)


def _parse(value: object, what: str) -> tuple[float | int, str]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{what} must be a number or text such as '4MiB', not {shorten(value)}")
    if isinstance(value, int | float):
        if value < 0 or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{what} must be finite and not negative, not {shorten(value)}")
        return value, ""
    match = _NUMBER.fullmatch(value) if len(value) <= _LONGEST else None
    if match is None:
        raise ValueError(f"{what} can't be read from {shorten(value)}")
    digits, unit = match.group(1).replace("_", ""), match.group(2)
    bits = _BITS.fullmatch(unit)
    if bits is not None:
        raise ValueError(
            f"{what} has the unit '{unit}', which means bits: give bytes, as {bits[1]}B{bits[2] or ''}"
        )
    number = int(digits) if digits.isdigit() else float(digits)
    return number, unit.lower()


def _scaled(number: float | int, factor: int, what: str) -> int:
    scaled = number * factor
    if not scaled <= UNLIMITED:
        text = f"{scaled:.6g}" if scaled < 10**300 else "beyond 10^300"
        raise ValueError(f"{what} is {text}, above the limit 2^62")
    return round(scaled)


def shorten(value: object) -> str:
    """A value as it would be written, in a length that an error message can bear."""
    if isinstance(value, int) and abs(value) >= 10**60:  # Python refuses to write very long ones
        return f"a number of some {round(value.bit_length() * math.log10(2)):,} digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_bytes(value: object, what: str = "size") -> int:
    """'4MiB', '1GB', 4096 or 'unlimited' in bytes."""
    if isinstance(value, str) and value.strip().lower() == "unlimited":
        return UNLIMITED
    number, unit = _parse(value, what)
    if unit not in _SIZE:
        raise ValueError(f"{what} has the unknown unit '{unit}': use B, KiB, MiB, GiB, KB, MB or GB")
    return _scaled(number, _SIZE[unit], what)


def parse_time(value: object, what: str = "time") -> int:
    """'0.2us', '5 µs' or 2e-7 (seconds) in picoseconds."""
    number, unit = _parse(value, what)
    if unit not in _TIME:
        raise ValueError(f"{what} has the unknown unit '{unit}': use s, ms, us, ns or ps")
    return _scaled(number, _TIME[unit], what)


def parse_rate(value: object, what: str = "rate") -> int:
    """'680GB/s', '9.3Tflop/s' or 680e9, per second. Zero is refused: it would take for ever."""
    number, unit = _parse(value, what)
    base = re.sub(r"(flop|flops|op|ops)?(/s)?$", "", unit)
    factor = _SIZE.get(base, _PREFIX.get(base))
    if factor is None:
        raise ValueError(f"{what} has the unknown unit '{unit}': use B/s, GB/s, GiB/s or Tflop/s")
    rate = _scaled(number, factor, what)
    if rate < 1:
        raise ValueError(f"{what} is {shorten(value)}: it must be at least 1 per second")
    return rate


MOVED_BYTE_PS = 1_000
"""In the unit 'moved', so many are a byte: picoseconds on a machine on which only the slowest memory takes time."""


def show_bytes(count: int) -> str:
    """1,806,336 as '1.72 MiB'."""
    if count >= UNLIMITED:
        return "unlimited"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def show_time(picoseconds: int) -> str:
    """112,041,521 ps as '112.04 µs'."""
    for unit, factor in (("s", 10**12), ("ms", 10**9), ("µs", 10**6), ("ns", 10**3)):
        if abs(picoseconds) >= factor:
            return f"{picoseconds / factor:.2f} {unit}"
    return f"{picoseconds} ps"


def show_count(number: float) -> str:
    """4,089,184,256 as '4.09 G'."""
    for unit, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= factor:
            return f"{number / factor:.2f} {unit}"
    return f"{number:.0f}"
