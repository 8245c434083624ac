"""The words for what an op does, the same for every importer.

An importer maps its source's op names to these where the meaning is the same and keeps
the source's own name, in lower case, where it is not. `unknown:NAME` marks an op that
got an estimate. Costs, fusion rules and features read kinds; nothing reads op names.
"""

from __future__ import annotations

from collections.abc import Sequence

# ----------------------------------------------------------------------------
# Element types: their names here, and their sizes in bits.

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


MATRIX = ("matmul", "conv")
"""Multiply-adds on the matrix unit. `matmul` has any number of batch dimensions."""

ELEMENTWISE = (
    "abs",
    "add",
    "and",
    "ceil",
    "clamp",
    "compare",
    "convert",
    "copy",
    "div",
    "floor",
    "max",
    "min",
    "mul",
    "neg",
    "not",
    "or",
    "quantize",
    "relu",
    "rem",
    "round",
    "select",
    "sign",
    "sub",
    "xor",
)
"""One vector flop per element of the result."""

TRANSCENDENTAL = (
    "acos",
    "asin",
    "atan",
    "atan2",
    "cbrt",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "gelu",
    "log",
    "log1p",
    "logistic",
    "pow",
    "rsqrt",
    "sin",
    "sinh",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
)
"""One evaluation per element of the result."""

REDUCTIONS = (
    "argmax",
    "argmin",
    "cumsum",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_mul",
    "reduce_or",
    "reduce_sum",
)
"""One vector flop per element of the input."""

COMPOSITES = ("batchnorm", "layernorm", "lrn", "pool", "softmax")
"""Whole layers that some sources keep as one op; each importer documents its count."""

MOVEMENT = (
    "broadcast",
    "concat",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "iota",
    "pad",
    "reverse",
    "scatter",
    "slice",
    "split",
    "transpose",
)
"""No flops: bytes alone."""

VIEWS = ("bitcast", "flatten", "identity", "reshape", "squeeze", "stop_gradient", "unsqueeze")
"""The same bytes under another shape."""

BARRIERS = ("random", "sort", "topk", *MATRIX)
"""Never fused with what follows."""

VECTOR_FLOPS = {
    "div": 4,
    "sqrt": 4,
    "rsqrt": 4,
    "cbrt": 8,
    "exp": 8,
    "expm1": 8,
    "log": 8,
    "log1p": 8,
    "sin": 8,
    "cos": 8,
    "tan": 8,
    "sinh": 12,
    "cosh": 12,
    "tanh": 12,
    "logistic": 12,
    "softplus": 16,
    "gelu": 16,
    "erf": 16,
    "pow": 16,
    "atan2": 16,
    "asin": 16,
    "acos": 16,
    "atan": 16,
}
"""Vector flops that one element of such an op takes on a device that has no rate for
transcendentals of its own. Kinds that are not here take 1, or `OTHER_TRANSCENDENTAL`."""

OTHER_TRANSCENDENTAL = 8
"""The same for an evaluation inside an op of another kind (a fusion, a softmax)."""


def is_unknown(kind: str) -> bool:
    """Whether an importer had to guess what the op costs."""
    return kind.startswith("unknown:")
