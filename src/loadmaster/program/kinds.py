"""The words for what an op does and for element types, the same for every importer.

An importer maps its source's op names to these where the meaning is the same and keeps
the source's own name, in lower case, where it is not. `unknown:NAME` marks an op that
got an estimate. Costs, fusion rules and features read kinds; nothing reads op names.
"""

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
"""Bits per element of each type. A bool takes a byte."""

_NUMPY = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}


def from_numpy(name: str) -> str:
    """'float32' as 'f32', 'bfloat16' as 'bf16', 'float8_e4m3fn' as 'f8e4m3fn', 'float4_e2m1fn_x2' as the byte it is."""
    if name.endswith("_x2"):
        return "u8"
    if name in BITS:
        return name
    letters = name.rstrip("0123456789")
    if letters in _NUMPY:
        return _NUMPY[letters] + name[len(letters) :]
    if name.startswith("float8_"):
        return "f8" + name.removeprefix("float8_").removesuffix("fnu")
    if name.startswith("float4_"):
        return "f4" + name.removeprefix("float4_").removesuffix("fn")
    return name


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a dense array; types below a byte are packed."""
    elements = 1
    for size in shape:
        elements *= int(size)
    return (elements * BITS[dtype] + 7) // 8


MATRIX = ("matmul", "conv")
"""Multiply-adds on the matrix unit. `matmul` has any number of batch dimensions."""

_ELEMENTWISE = """
abs add and ceil clamp compare convert copy div floor max min mul neg not or quantize relu rem round select
sign sub xor
"""
ELEMENTWISE = tuple(_ELEMENTWISE.split())
"""One vector flop per element of the result."""

_TRANSCENDENTAL = """
acos asin atan atan2 cbrt cos cosh erf exp expm1 gelu log log1p logistic pow rsqrt sin sinh softplus sqrt
tan tanh
"""
TRANSCENDENTAL = tuple(_TRANSCENDENTAL.split())
"""One evaluation per element of the result."""

_REDUCTIONS = """
argmax argmin cumsum reduce_and reduce_max reduce_min reduce_mul reduce_or reduce_sum
"""
REDUCTIONS = tuple(_REDUCTIONS.split())
"""One vector flop per element of the input."""

VIEWS = ("bitcast", "flatten", "identity", "reshape", "squeeze", "stop_gradient", "unsqueeze")
"""The same bytes under another shape."""


def is_unknown(kind: str) -> bool:
    """Whether an importer had to guess what the op costs."""
    return kind.startswith("unknown:")
