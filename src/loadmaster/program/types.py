"""Element types: their names here, and their sizes in bits."""

from __future__ import annotations

from collections.abc import Sequence

BITS = {
    "bool": 8,
    **{f"{sign}{bits}": bits for sign in "iu" for bits in (2, 4, 8, 16, 32, 64)},
    "f4e2m1": 4,
    "f6e2m3": 6,
    "f6e3m2": 6,
    "f8": 8,
    "f8e8m0": 8,
    "f8e4m3": 8,
    "f8e5m2": 8,
    "f8e4m3fn": 8,
    "f8e4m3fnuz": 8,
    "f8e5m2fnuz": 8,
    "f8e3m4": 8,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
}
"""Bits per element. A bool takes a byte."""

_NUMPY = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}


def from_numpy(name: str) -> str:
    """'float32' as 'f32', 'bfloat16' as 'bf16', 'float8_e4m3fn' as 'f8e4m3fn'."""
    if name in BITS:
        return name
    letters = name.rstrip("0123456789")
    if letters in _NUMPY:
        return _NUMPY[letters] + name[len(letters) :]
    if name.startswith("float8_"):
        return "f8" + name.removeprefix("float8_")
    if name.startswith("float4_"):
        return "f4" + name.removeprefix("float4_").removesuffix("fn")
    return name


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a dense array; types below a byte are packed."""
    elements = 1
    for size in shape:
        elements *= int(size)
    return (elements * BITS[dtype] + 7) // 8
