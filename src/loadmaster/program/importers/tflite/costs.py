"""Which words of the shared cost table TFLite's operators are, and the sizes that those ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.program import op_costs
from loadmaster.program.importers.tflite.read import Table, Tensor
from loadmaster.program.op_costs import Cost

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


TYPED_BY_OPERAND = op_costs.TYPED_BY_OPERAND | {"lstm", "quantize", "svdf"}


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

    def epilogue(self, bias: int) -> int:
        """Vector flops of a layer's end: the bias, and making whole numbers of sums."""
        has_bias = len(self.inputs) > bias and self.inputs[bias] is not None
        whole = self.outputs[0].dtype[0] in "iu"
        return op_costs.epilogue(self.size, bias=has_bias, requantized=whole)


Rule = Callable[[Site], Cost]


def cost(site: Site) -> Cost | None:
    """What the operator does, or None for one that nobody described."""
    rule = _RULES.get(site.op)
    return None if rule is None else rule(site)


def unknown_cost(site: Site) -> Cost:
    """The estimate for such an operator."""
    return op_costs.estimate(site.op.removeprefix("custom:"), sum(tensor.elements for tensor in site.outputs))


def _each(word: str) -> Rule:
    return lambda site: op_costs.each(word, site.size)


def _reduction(word: str) -> Rule:
    return lambda site: op_costs.reduction(word, site.x.elements, site.size)


def _move(kind: str, operand: int = 0) -> Rule:
    return lambda site: op_costs.move(kind, operand)


def _conv(kernel: slice, x: int | None = None, bias: int = 2) -> Rule:
    """`kernel`: the dimensions of the weights that one product goes over. `x`: the operand whose every
    element meets them, where it isn't the result."""

    def rule(site: Site) -> Cost:
        window = math.prod(site.operand(1).shape[kernel])
        positions = site.size if x is None else site.operand(x).elements
        return op_costs.convolution(positions, window, site.epilogue(bias))

    return rule


def _fully_connected(site: Site) -> Cost:
    return op_costs.matmul(site.size, site.operand(1).shape[-1], site.epilogue(2))


def _batch_matmul(site: Site) -> Cost:
    depth = site.x.shape[-2 if site.option(0, "b") else -1]
    return op_costs.matmul(site.size, depth, site.epilogue(2))


def _pool(site: Site) -> Cost:
    window = site.option(3) * site.option(4)
    if window < 1:
        raise ValueError(f"a window of {site.option(4)} x {site.option(3)}")
    return op_costs.pool(site.size, window, powers=site.op == "L2_POOL_2D")


def _recurrent(kind: str, biases: int) -> Rule:
    def rule(site: Site) -> Cost:
        steps = math.prod(site.x.shape[:-1])
        weights = sum(
            tensor.elements
            for tensor in site.inputs[1:]
            if tensor is not None and tensor.constant and len(tensor.shape) == 2
        )
        return op_costs.recurrent(kind, steps, weights, site.size, biases)

    return rule


def _top_k(site: Site) -> Cost:
    return Cost("topk", vector=op_costs.comparisons(site.x.elements, site.x.shape[-1]))


_SAME_WORD = """
ABS ADD CEIL DIV FLOOR MUL NEG RELU ROUND SIGN SUB
ATAN2 COS EXP GELU LOG LOGISTIC POW RSQRT SIN SQRT TANH ELU PRELU
"""
_EACH = {name: name.lower() for name in _SAME_WORD.split()} | op_costs.words_by_name(
    {
        "add": "ADD_N",
        "and": "LOGICAL_AND",
        "bitshift": "RIGHT_SHIFT",
        "clamp": "RELU6 RELU_N1_TO_1 RELU_0_TO_1",
        "compare": "EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL NOT_EQUAL ONE_HOT",
        "convert": "CAST",
        "dequantizelinear": "DEQUANTIZE",
        "div": "FLOOR_DIV",
        "fake_quantize": "FAKE_QUANT",
        "hardswish": "HARD_SWISH",
        "l2normalization": "L2_NORMALIZATION",
        "leakyrelu": "LEAKY_RELU",
        "max": "MAXIMUM",
        "min": "MINIMUM",
        "mul": "SQUARE",
        "not": "LOGICAL_NOT",
        "or": "LOGICAL_OR",
        "quantize": "QUANTIZE",
        "rem": "FLOOR_MOD",
        "select": "SELECT SELECT_V2",
        "softmax": "LOG_SOFTMAX SOFTMAX",
        "squareddifference": "SQUARED_DIFFERENCE",
        "xor": "BITWISE_XOR",
    }
)
_REDUCTIONS = op_costs.words_by_name(
    {
        "argmax": "ARG_MAX",
        "argmin": "ARG_MIN",
        "cumsum": "CUMSUM",
        "reduce_and": "REDUCE_ALL",
        "reduce_max": "REDUCE_MAX",
        "reduce_mean": "MEAN",
        "reduce_min": "REDUCE_MIN",
        "reduce_mul": "REDUCE_PROD",
        "reduce_or": "REDUCE_ANY",
        "reduce_sum": "SUM",
    }
)
_MOVES = op_costs.words_by_name(
    {
        "batchtospace": "BATCH_TO_SPACE_ND",
        "bitcast": "BITCAST",
        "broadcast": "BROADCAST_TO FILL TILE ZEROS_LIKE",
        "concat": "CONCATENATION PACK",
        "copy": "ASSIGN_VARIABLE READ_VARIABLE",
        "depthtospace": "DEPTH_TO_SPACE",
        "dynamic_update_slice": "DYNAMIC_UPDATE_SLICE",
        "gather": "GATHER GATHER_ND",
        "iota": "RANGE",
        "pad": "MIRROR_PAD PAD PADV2",
        "reshape": "RESHAPE",
        "reverse": "REVERSE_SEQUENCE REVERSE_V2",
        "scatter": "SCATTER_ND SPARSE_TO_DENSE",
        "shape": "BROADCAST_ARGS RANK SHAPE",
        "slice": "SLICE STRIDED_SLICE",
        "spacetobatch": "SPACE_TO_BATCH_ND",
        "spacetodepth": "SPACE_TO_DEPTH",
        "split": "SPLIT_V UNPACK",
        "squeeze": "SQUEEZE",
        "transpose": "TRANSPOSE",
        "unsqueeze": "EXPAND_DIMS",
    }
)
_RULES: dict[str, Rule] = {
    **{name: _each(word) for name, word in _EACH.items()},
    **{name: _reduction(word) for name, word in _REDUCTIONS.items()},
    **{name: _move(kind) for name, kind in _MOVES.items()},
    "SPLIT": _move("split", operand=1),
    "EMBEDDING_LOOKUP": _move("gather", operand=1),
    "CONV_2D": _conv(slice(1, None)),
    "DEPTHWISE_CONV_2D": _conv(slice(1, 3)),
    "CONV_3D": _conv(slice(-1)),
    "TRANSPOSE_CONV": _conv(slice(3), x=2, bias=3),
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _pool),
    # A bias a gate, but an LSTM counts as the other importers' do, which have two.
    **dict.fromkeys(
        ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"), _recurrent("lstm", biases=2)
    ),
    **dict.fromkeys(
        ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN"), _recurrent("rnn", biases=1)
    ),
    "SVDF": _recurrent("svdf", biases=1),
    "TOPK_V2": _top_k,
    # The usual window; its radius is an option that is not read.
    "LOCAL_RESPONSE_NORMALIZATION": lambda site: op_costs.local_response(site.size, window=5),
    "RESIZE_BILINEAR": lambda site: op_costs.resample("resize", site.size, op_costs.TAPS["linear"], axes=2),
    "RESIZE_NEAREST_NEIGHBOR": lambda site: op_costs.resample(
        "resize", site.size, op_costs.TAPS["nearest"], 2
    ),
}
