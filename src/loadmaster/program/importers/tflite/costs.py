"""What TFLite's operators do and cost: kind, flops by class, bytes really read.

Counts are per element of the result unless said otherwise. Composites:

- softmax, log-softmax: 1 evaluation and 3 vector; L2 norm: 3 vector; local response norm: 9 and 1.
- pool: the window's elements; L2 pool: twice that and 1 evaluation.
- recurrent layers: both products of every step; 5 evaluations and 12 vector per cell (LSTM), or 1 and 2.
- resize: 8 vector if bilinear, none if nearest.
- A bias is 1 vector more, requantizing to whole numbers 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.program.importers.tflite.read import Table, Tensor

NOT_TENSORS: dict[str, tuple[int, ...]] = {
    "ARG_MAX": (1,),
    "ARG_MIN": (1,),
    "BATCH_TO_SPACE_ND": (1, 2),
    "BROADCAST_TO": (1,),
    "CUMSUM": (1,),
    "EXPAND_DIMS": (1,),
    "FILL": (0,),
    "GATHER": (),
    "MEAN": (1,),
    "MIRROR_PAD": (1,),
    "ONE_HOT": (1, 2, 3),
    "PAD": (1,),
    "PADV2": (1, 2),
    "RANGE": (0, 1, 2),
    "REDUCE_ALL": (1,),
    "REDUCE_ANY": (1,),
    "REDUCE_MAX": (1,),
    "REDUCE_MIN": (1,),
    "REDUCE_PROD": (1,),
    "RESHAPE": (1,),
    "RESIZE_BILINEAR": (1,),
    "RESIZE_NEAREST_NEIGHBOR": (1,),
    "REVERSE_V2": (1,),
    "SLICE": (1, 2),
    "SPACE_TO_BATCH_ND": (1, 2),
    "SPLIT": (0,),
    "SPLIT_V": (1, 2),
    "STRIDED_SLICE": (1, 2, 3),
    "SUM": (1,),
    "TILE": (1,),
    "TOPK_V2": (1,),
    "TRANSPOSE": (1,),
    "TRANSPOSE_CONV": (0,),
    "DYNAMIC_UPDATE_SLICE": (2,),
    "SCATTER_ND": (2,),
}
"""Operands that say how, not what: where constant, they are attributes."""

STORED_SMALLER = ("DEQUANTIZE", "DENSIFY")
"""Of a weight: done once, when the model is loaded."""


@dataclass(frozen=True)
class Cost:
    """What one operator does."""

    kind: str
    matrix: int = 0
    vector: int = 0
    transcendental: int = 0
    view: bool = False
    partial: int | None = None
    """Of this operand it reads only as many bytes as it writes."""


@dataclass(frozen=True)
class Site:
    """One operator as the rules see it. A missing operand is None."""

    op: str
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]
    options: Table | None

    @property
    def x(self) -> Tensor:
        return self.operand(0)

    @property
    def size(self) -> int:
        return self.outputs[0].elements

    def operand(self, position: int) -> Tensor:
        tensor = self.inputs[position]
        if tensor is None:
            raise IndexError(position)
        return tensor

    def option(self, field: int, code: str = "i") -> int:
        return 0 if self.options is None else self.options.number(field, code)

    def finish(self, bias: int) -> int:
        """Vector flops of a layer's end: the bias, and making whole numbers of sums."""
        has_bias = len(self.inputs) > bias and self.inputs[bias] is not None
        return (has_bias + 2 * (self.outputs[0].dtype[0] in "iu")) * self.size


Rule = Callable[[Site], Cost]


def cost(site: Site) -> Cost | None:
    """What the operator does, or None for one that nobody described."""
    rule = _RULES.get(site.op)
    return None if rule is None else rule(site)


def unknown_cost(site: Site) -> Cost:
    """The estimate for such an operator."""
    name = site.op.removeprefix("custom:")
    return Cost(f"unknown:{name}", vector=sum(tensor.elements for tensor in site.outputs))


def _each(kind: str, vector: int = 1, transcendental: int = 0) -> Rule:
    return lambda site: Cost(kind, vector=vector * site.size, transcendental=transcendental * site.size)


def _reduction(kind: str) -> Rule:
    return lambda site: Cost(kind, vector=site.x.elements)


def _move(kind: str, partial: int | None = None) -> Rule:
    return lambda site: Cost(kind, partial=partial)


def _view(kind: str) -> Rule:
    return lambda site: Cost(kind, view=True)


def _conv(site: Site) -> Cost:
    each = math.prod(site.operand(1).shape[1:])
    return Cost("conv", matrix=2 * site.size * each, vector=site.finish(2))


def _depthwise(site: Site) -> Cost:
    each = math.prod(site.operand(1).shape[1:3])
    return Cost("conv", matrix=2 * site.size * each, vector=site.finish(2))


def _conv_3d(site: Site) -> Cost:
    each = math.prod(site.operand(1).shape[:-1])
    return Cost("conv", matrix=2 * site.size * each, vector=site.finish(2))


def _transpose_conv(site: Site) -> Cost:
    each = math.prod(site.operand(1).shape[:3])
    return Cost("conv", matrix=2 * site.operand(2).elements * each, vector=site.finish(3))


def _fully_connected(site: Site) -> Cost:
    inner = site.operand(1).shape[-1]
    return Cost("matmul", matrix=2 * site.size * inner, vector=site.finish(2))


def _batch_matmul(site: Site) -> Cost:
    inner = site.x.shape[-2 if site.option(0, "b") else -1]
    return Cost("matmul", matrix=2 * site.size * inner, vector=site.finish(2))


def _pool(site: Site) -> Cost:
    window = site.option(3) * site.option(4)
    if window < 1:
        raise ValueError(f"a window of {site.option(4)} x {site.option(3)}")
    squares = site.op == "L2_POOL_2D"
    return Cost("pool", vector=(1 + squares) * window * site.size, transcendental=squares * site.size)


def _recurrent(kind: str, evaluations: int, vector: int) -> Rule:
    def rule(site: Site) -> Cost:
        steps = math.prod(site.x.shape[:-1])
        weights = sum(
            tensor.elements
            for tensor in site.inputs[1:]
            if tensor is not None and tensor.constant and len(tensor.shape) == 2
        )
        return Cost(
            kind,
            matrix=2 * steps * weights,
            vector=vector * site.size,
            transcendental=evaluations * site.size,
        )

    return rule


def _sorted(site: Site) -> Cost:
    length = site.x.shape[-1]
    return Cost("topk", vector=site.x.elements * math.ceil(math.log2(max(length, 2))))


_ELEMENTWISE: dict[str, tuple[str, int, int]] = {
    **{
        op: (op.lower(), 1, 0)
        for op in ("ABS", "ADD", "CEIL", "DIV", "FLOOR", "MUL", "NEG", "RELU", "ROUND", "SIGN", "SUB")
    },
    **{
        op: (op.lower(), 0, 1)
        for op in ("ATAN2", "COS", "EXP", "GELU", "LOG", "LOGISTIC", "POW", "RSQRT", "SIN", "SQRT", "TANH")
    },
    **dict.fromkeys(("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"), ("clamp", 1, 0)),
    **dict.fromkeys(
        ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL", "ONE_HOT"), ("compare", 1, 0)
    ),
    "ADD_N": ("add", 1, 0),
    "BITWISE_XOR": ("xor", 1, 0),
    "CAST": ("convert", 1, 0),
    "DEQUANTIZE": ("dequantizelinear", 2, 0),
    "ELU": ("elu", 2, 1),
    "FLOOR_DIV": ("div", 1, 0),
    "FLOOR_MOD": ("rem", 1, 0),
    "HARD_SWISH": ("hardswish", 5, 0),
    "LEAKY_RELU": ("leakyrelu", 2, 0),
    "LOGICAL_AND": ("and", 1, 0),
    "LOGICAL_NOT": ("not", 1, 0),
    "LOGICAL_OR": ("or", 1, 0),
    "MAXIMUM": ("max", 1, 0),
    "MINIMUM": ("min", 1, 0),
    "PRELU": ("prelu", 2, 0),
    "QUANTIZE": ("quantize", 1, 0),
    "RIGHT_SHIFT": ("bitshift", 1, 0),
    "SELECT": ("select", 1, 0),
    "SELECT_V2": ("select", 1, 0),
    "SQUARE": ("mul", 1, 0),
    "SQUARED_DIFFERENCE": ("squareddifference", 2, 0),
    "SOFTMAX": ("softmax", 3, 1),
    "LOG_SOFTMAX": ("softmax", 3, 1),
    "L2_NORMALIZATION": ("l2normalization", 3, 0),
    "LOCAL_RESPONSE_NORMALIZATION": ("lrn", 9, 1),
    "RESIZE_BILINEAR": ("resize", 8, 0),
    "RESIZE_NEAREST_NEIGHBOR": ("resize", 0, 0),
    "FAKE_QUANT": ("quantize", 2, 0),
}
"""Kind, vector flops and evaluations per element of the result."""

_RULES: dict[str, Rule] = {
    **{op: _each(*counts) for op, counts in _ELEMENTWISE.items()},
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "CONV_3D": _conv_3d,
    "TRANSPOSE_CONV": _transpose_conv,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _pool),
    **dict.fromkeys(
        ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"), _recurrent("lstm", 5, 12)
    ),
    **dict.fromkeys(
        ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN"), _recurrent("rnn", 1, 2)
    ),
    "SVDF": _recurrent("svdf", 0, 2),
    "TOPK_V2": _sorted,
    **{
        op: _reduction(kind)
        for op, kind in (
            ("SUM", "reduce_sum"),
            ("MEAN", "reduce_mean"),
            ("REDUCE_MAX", "reduce_max"),
            ("REDUCE_MIN", "reduce_min"),
            ("REDUCE_PROD", "reduce_mul"),
            ("REDUCE_ANY", "reduce_or"),
            ("REDUCE_ALL", "reduce_and"),
            ("ARG_MAX", "argmax"),
            ("ARG_MIN", "argmin"),
            ("CUMSUM", "cumsum"),
        )
    },
    **{
        op: _move(kind)
        for op, kind in (
            ("CONCATENATION", "concat"),
            ("PACK", "concat"),
            ("PAD", "pad"),
            ("PADV2", "pad"),
            ("MIRROR_PAD", "pad"),
            ("TRANSPOSE", "transpose"),
            ("TILE", "broadcast"),
            ("BROADCAST_TO", "broadcast"),
            ("FILL", "broadcast"),
            ("ZEROS_LIKE", "broadcast"),
            ("SPACE_TO_DEPTH", "spacetodepth"),
            ("DEPTH_TO_SPACE", "depthtospace"),
            ("BATCH_TO_SPACE_ND", "batchtospace"),
            ("SPACE_TO_BATCH_ND", "spacetobatch"),
            ("REVERSE_V2", "reverse"),
            ("REVERSE_SEQUENCE", "reverse"),
            ("RANGE", "iota"),
            ("SCATTER_ND", "scatter"),
            ("DYNAMIC_UPDATE_SLICE", "dynamic_update_slice"),
            ("SPARSE_TO_DENSE", "scatter"),
            ("SHAPE", "shape"),
            ("RANK", "shape"),
            ("BROADCAST_ARGS", "shape"),
            ("READ_VARIABLE", "copy"),
            ("ASSIGN_VARIABLE", "copy"),
        )
    },
    "SPLIT": _move("split", partial=1),
    "SPLIT_V": _move("split", partial=0),
    "UNPACK": _move("split", partial=0),
    "SLICE": _move("slice", partial=0),
    "STRIDED_SLICE": _move("slice", partial=0),
    "GATHER": _move("gather", partial=0),
    "GATHER_ND": _move("gather", partial=0),
    "EMBEDDING_LOOKUP": _move("gather", partial=1),
    "RESHAPE": _view("reshape"),
    "SQUEEZE": _view("squeeze"),
    "EXPAND_DIMS": _view("unsqueeze"),
    "BITCAST": _view("bitcast"),
}
