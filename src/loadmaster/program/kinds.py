"""The words for what an op does, the same for every importer.

An importer maps its source's op names to these where the meaning is the same and keeps
the source's own name, in lower case, where it is not. `unknown:NAME` marks an op that
got an estimate. Costs, fusion rules and features read kinds; nothing reads op names.
"""

from __future__ import annotations

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
