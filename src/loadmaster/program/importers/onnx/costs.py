"""Which words of the shared cost table ONNX's ops are, and the sizes that those ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.program import op_costs
from loadmaster.program.importers.onnx.values import Value
from loadmaster.program.op_costs import Cost

NOT_TENSORS: dict[str, tuple[int, ...]] = {
    "CenterCropPad": (1,),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "CumProd": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "OneHot": (1, 2),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "STFT": (1, 3),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{
        f"Reduce{word}": (1,)
        for word in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
"""Operands that say how, not what: where constant, they are attributes."""

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Never constant, even without inputs."""

TYPED_BY_OPERAND = op_costs.TYPED_BY_OPERAND | {"quantize"}


@dataclass(frozen=True)
class Site:
    """One node as the rules see it. A missing optional operand or result is None."""

    op: str
    inputs: Sequence[Value | None]
    outputs: Sequence[Value | None]
    attributes: Mapping[str, Any]

    @property
    def x(self) -> Value:
        return self.operand(0)

    @property
    def result(self) -> Value:
        return next(value for value in self.outputs if value is not None)

    @property
    def size(self) -> int:
        return self.result.elements

    def operand(self, position: int) -> Value:
        value = self.inputs[position]
        if value is None:
            raise IndexError(position)
        return value

    def has(self, position: int) -> bool:
        return len(self.inputs) > position and self.inputs[position] is not None


Rule = Callable[[Site], Cost]


def cost(site: Site) -> Cost | None:
    """What the node does, or None for an op that nobody described."""
    rule = _RULES.get(site.op)
    return None if rule is None else rule(site)


def unknown_cost(site: Site) -> Cost:
    """The estimate for such an op."""
    return op_costs.estimate(site.op, sum(v.elements for v in site.outputs if v is not None))


def _each(word: str, elementwise: bool = True) -> Rule:
    return lambda site: op_costs.each(word, site.size, elementwise=elementwise)


def _reduction(word: str) -> Rule:
    return lambda site: op_costs.reduction(word, site.x.elements, site.size)


def _move(kind: str) -> Rule:
    return lambda site: op_costs.move(kind)


def _many(kind: str, extra: int = 0) -> Rule:
    """One vector flop for each operand after the first, unlike TFLite's ADD_N, which counts one in all."""

    def rule(site: Site) -> Cost:
        operands = sum(value is not None for value in site.inputs)
        return Cost(kind, vector=max(1, operands - 1 + extra) * site.size, elementwise=True)

    return rule


def _norm(kind: str, *, by_channel: bool = False) -> Rule:
    def rule(site: Site) -> Cost:
        axis = site.attributes.get("axis", -1) % max(len(site.x.shape), 1)
        rows = math.prod(site.x.shape[: 2 if by_channel else axis])
        return op_costs.normalization(kind, site.size, rows)

    return rule


def _conv(x: int, w: int, bias: int, *, requantized: bool = False) -> Rule:
    def rule(site: Site) -> Cost:
        pixels = site.operand(x).elements if site.op == "ConvTranspose" else site.size
        window = math.prod(site.operand(w).shape[1:])
        vector = op_costs.epilogue(site.size, bias=site.has(bias), requantized=requantized)
        if site.op == "DeformConv":  # each sample is interpolated
            vector += 8 * (site.size // max(site.operand(w).shape[0], 1) * window)
        return op_costs.convolution(pixels, window, vector)

    return rule


def _matmul(a: int, bias: int = -1, *, requantized: bool = False) -> Rule:
    def rule(site: Site) -> Cost:
        depth = site.operand(a).shape[0 if site.attributes.get("transA") else -1]
        has_bias = bias >= 0 and site.has(bias)
        vector = op_costs.epilogue(site.size, bias=has_bias, requantized=requantized)
        return op_costs.matmul(site.size, depth, vector)

    return rule


def _einsum(site: Site) -> Cost:
    equation = site.attributes["equation"].decode().replace(" ", "")
    inputs = equation.partition("->")[0]
    sizes: dict[Any, int] = {}
    for labels, value in zip(inputs.split(","), site.inputs, strict=True):
        head, dots, tail = labels.partition("...")
        if value is None or len(head) + len(tail) > len(value.shape):
            raise ValueError(f"equation '{equation}'")
        stop = len(value.shape) - len(tail)
        middle = value.shape[len(head) : stop] if dots else ()
        pairs = [*zip(head, value.shape, strict=False), *zip(tail, value.shape[stop:], strict=True)]
        pairs += [(-back, size) for back, size in enumerate(reversed(middle), 1)]
        for label, size in pairs:
            sizes[label] = max(sizes.get(label, 1), size)
    products, operands = math.prod(sizes.values()), len(site.inputs)
    summed = products > site.size
    if operands == 1:
        return Cost("reduce_sum", vector=site.x.elements) if summed else Cost("transpose")
    if operands == 2 and summed:
        return op_costs.matmul(products, 1)
    return Cost("einsum", vector=(operands - 1 + summed) * products)


def _attention(site: Site) -> Cost:
    query, value = site.x, site.operand(2)
    heads = query.shape[1] if len(query.shape) == 4 else site.attributes["q_num_heads"]
    queries, length = query.shape[-2], site.operand(1).shape[-2]
    if site.has(4):  # keys of earlier steps
        length += site.operand(4).shape[-2]
    scores = query.shape[0] * heads * queries * length
    own = value.shape[-1] if len(value.shape) == 4 else value.shape[-1] // site.attributes["kv_num_heads"]
    return op_costs.attention(scores, query.elements * length + scores * own)


def _recurrent(site: Site) -> Cost:
    kind = site.op.lower()
    weights, recurrent = site.operand(1), site.operand(2)
    steps = site.x.elements // max(site.x.shape[-1], 1)  # time steps of all sequences
    cells = steps * math.prod(recurrent.shape[:2]) // op_costs.CELLS[kind].gates
    elements = weights.elements + recurrent.elements
    return op_costs.recurrent(kind, steps, elements, cells, biases=2 * site.has(3))


def _pool(site: Site) -> Cost:
    whole = site.op.startswith("Global")
    window = math.prod(site.x.shape[2:] if whole else site.attributes["kernel_shape"])
    return op_costs.pool(site.size, window, powers="Lp" in site.op)


def _lrn(site: Site) -> Cost:
    return op_costs.local_response(site.size, site.attributes["size"])


def _batchnorm(site: Site) -> Cost:
    word = "batchnorm_training" if site.attributes.get("training_mode") else "batchnorm"
    return op_costs.each(word, site.size)


def _dropout(site: Site) -> Cost:
    mode = site.operand(2) if site.has(2) else None
    training = mode is not None and (mode.data is None or bool(mode.data.any()))
    mask = len(site.outputs) > 1 and site.outputs[1] is not None
    return op_costs.each("dropout", site.size) if training or mask else op_costs.move("identity")


def _resample(site: Site) -> Cost:
    mode = bytes(site.attributes.get("mode", b"linear" if site.op == "GridSample" else b"nearest"))
    taps = op_costs.TAPS["cubic" if b"cubic" in mode else "nearest" if b"nearest" in mode else "linear"]
    if site.op == "GridSample":
        axes = len(site.x.shape) - 2
    else:
        axes = sum(a != b for a, b in zip(site.x.shape, site.result.shape, strict=True))
    return op_costs.resample(site.op.lower(), site.size, taps, axes)


def _sort(kind: str, *, flops: int = 1, axis: int | None = -1) -> Rule:
    """Along an axis; where neither the node nor `axis` names one, over all elements."""

    def rule(site: Site) -> Cost:
        along = site.attributes.get("axis", axis)
        length = site.x.elements if along is None else site.x.shape[int(along)]
        return Cost(kind, vector=flops * op_costs.comparisons(site.x.elements, length))

    return rule


def _stft(site: Site) -> Cost:
    """Each frame is multiplied by the window and transformed."""
    batch, frames, bins = site.result.shape[:3]
    window = site.operand(2).elements if site.has(2) else 0
    length = window or (2 * (bins - 1) if site.attributes.get("onesided", 1) else bins)
    elements = batch * frames * length
    return Cost("dft", vector=5 * op_costs.comparisons(elements, length) + elements * bool(window))


def _scatter(site: Site) -> Cost:
    combines = site.attributes.get("reduction", b"none") != b"none"
    return op_costs.scatter(site.operand(2).elements if combines else 0, combines=combines)


_SAME_WORD = """
Abs Add And Ceil Div Floor Mul Neg Not Or Relu Round Sign Sub Xor BitShift
Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp Gelu Log Pow Sin Sinh Softplus Sqrt Tan Tanh
Celu DequantizeLinear Elu HardSigmoid HardSwish LeakyRelu Mish PRelu Selu Shrink Softsign SwiGLU Swish
ThresholdedRelu
"""
_ELEMENTWISE = {name: name.lower() for name in _SAME_WORD.split()} | op_costs.words_by_name(
    {
        "and": "BitwiseAnd",
        "clamp": "Clip",
        "compare": "Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual",
        "convert": "Cast CastLike",
        "div": "Reciprocal",
        "dynamic_quantize": "DynamicQuantizeLinear",
        "logistic": "Sigmoid",
        "not": "BitwiseNot",
        "or": "BitwiseOr",
        "quantize": "QuantizeLinear",
        "rem": "Mod",
        "select": "Trilu Where",
        "xor": "BitwiseXor",
    }
)
_NOT_IN_PLACE = op_costs.words_by_name(
    {
        "compare": "OneHot",
        "hardmax": "Hardmax",
        "lpnormalization": "LpNormalization",
        "meanvariancenormalization": "MeanVarianceNormalization",
        "random_normal": "RandomNormal RandomNormalLike",
        "random_uniform": "Bernoulli RandomUniform RandomUniformLike",
        "rotaryembedding": "RotaryEmbedding",
        "softmax": "LogSoftmax Softmax",
    }
)
"""Counted per element too, but an element needs more than its own place."""
_REDUCTIONS = op_costs.words_by_name(
    {
        "argmax": "ArgMax",
        "argmin": "ArgMin",
        "col2im": "Col2Im",
        "cumprod": "CumProd",
        "cumsum": "CumSum",
        "log_sum": "ReduceLogSum",
        "log_sum_exp": "ReduceLogSumExp",
        "mean": "ReduceMean",
        "nonzero": "NonZero",
        "norm": "ReduceL2",
        "reduce_max": "ReduceMax",
        "reduce_min": "ReduceMin",
        "reduce_mul": "ReduceProd",
        "reduce_sum": "ReduceSum",
        "sum_of_absolutes": "ReduceL1",
        "sum_of_squares": "ReduceSumSquare",
    }
)
_SAME_MOVE = """
BitCast Flatten Identity Reshape Squeeze Unsqueeze
CenterCropPad Concat DepthToSpace Pad Slice SpaceToDepth Split Tile Transpose
"""
_MOVES = {name: name.lower() for name in _SAME_MOVE.split()} | op_costs.words_by_name(
    {
        "broadcast": "ConstantOfShape Expand",
        "gather": "Compress Gather GatherElements GatherND",
        "iota": "EyeLike Range",
        "reverse": "ReverseSequence",
        "scatter": "MaxUnpool TensorScatter",
    }
)
_RULES: dict[str, Rule] = {
    **{name: _each(word) for name, word in _ELEMENTWISE.items()},
    **{name: _each(word, elementwise=False) for name, word in _NOT_IN_PLACE.items()},
    **{name: _reduction(word) for name, word in _REDUCTIONS.items()},
    **{name: _move(kind) for name, kind in _MOVES.items()},
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter),
    "Sum": _many("add"),
    "Mean": _many("mean", 1),
    "Max": _many("max"),
    "Min": _many("min"),
    "Conv": _conv(0, 1, 2),
    "ConvInteger": _conv(0, 1, 9),
    "ConvTranspose": _conv(0, 1, 2),
    "DeformConv": _conv(0, 1, 3),
    "QLinearConv": _conv(0, 3, 8, requantized=True),
    "MatMul": _matmul(0),
    "MatMulInteger": _matmul(0),
    "Gemm": _matmul(0, bias=2),
    "QLinearMatMul": _matmul(0, requantized=True),
    "Einsum": _einsum,
    "Attention": _attention,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(
        ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"), _pool
    ),
    "BatchNormalization": _batchnorm,
    "LRN": _lrn,
    "Dropout": _dropout,
    "LayerNormalization": _norm("layernorm"),
    "RMSNormalization": _norm("rmsnormalization"),
    "InstanceNormalization": _norm("instancenormalization", by_channel=True),
    "GroupNormalization": _norm("groupnormalization", by_channel=True),
    **dict.fromkeys(("Resize", "Upsample", "GridSample"), _resample),
    "TopK": _sort("topk"),
    "Unique": _sort("sort", axis=None),
    "DFT": _sort("dft", flops=5, axis=-2),
    "STFT": _stft,
}
