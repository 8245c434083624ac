"""What ONNX ops do and cost: kind, flops by class, bytes really read.

Counts are per element of the result unless said otherwise. Composites:

- batchnorm: 2 vector (scale, shift) in inference, 8 in training (mean, variance, both again).
- layernorm, and instance and group norm: 7 vector (mean, centre, square, sum, scale, gain, bias)
  and one evaluation per row; RMS norm: 4.
- softmax, log-softmax: 1 evaluation and 3 vector (max, sum, divide or subtract).
- lrn: window + 4 vector (square, sum over the window, scale, bias, divide), 1 evaluation.
- pool: the window's elements; Lp: twice that (power, sum) and 1 evaluation.
- attention: both products; 1 evaluation and 5 vector per score (scale, mask, softmax).
- lstm, gru, rnn: per cell and step 5, 3, 1 evaluations, and vector for gates and biases.
- resize and grid sample: 2 vector per tap (2 taps an axis if linear, 4 if cubic), 0 if nearest.
- sort, top-k, unique: n log2 n along the axis. dft: 5 n log2 n.
- A bias is 1 vector more, requantizing 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.program.importers.onnx.values import Value

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


@dataclass(frozen=True)
class Cost:
    """What one op does."""

    kind: str
    matrix: int = 0
    vector: int = 0
    transcendental: int = 0
    view: bool = False
    elementwise: bool = False
    partial: bool = False
    """Of its first operand it reads only as many bytes as it writes."""


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

    def axis_length(self, default: int) -> int:
        return self.x.shape[int(self.attributes.get("axis", default))]


Rule = Callable[[Site], Cost]


def cost(site: Site) -> Cost | None:
    """What the node does, or None for an op that nobody described."""
    rule = _RULES.get(site.op)
    return None if rule is None else rule(site)


def unknown_cost(site: Site) -> Cost:
    """The estimate for such an op."""
    return Cost(f"unknown:{site.op}", vector=sum(v.elements for v in site.outputs if v is not None))


def _each(kind: str, vector: int = 1, transcendental: int = 0, elementwise: bool = True) -> Rule:
    def rule(site: Site) -> Cost:
        n = site.size
        return Cost(kind, vector=vector * n, transcendental=transcendental * n, elementwise=elementwise)

    return rule


def _many(kind: str, extra: int = 0) -> Rule:
    def rule(site: Site) -> Cost:
        operands = sum(value is not None for value in site.inputs)
        return Cost(kind, vector=max(1, operands - 1 + extra) * site.size, elementwise=True)

    return rule


def _reduction(kind: str, vector: int = 1, each: int = 0, end_vector: int = 0, end: int = 0) -> Rule:
    """`vector` and `each` (evaluations) per element of the input, `end…` per element of the result."""

    def rule(site: Site) -> Cost:
        n, m = site.x.elements, site.size
        return Cost(kind, vector=vector * n + end_vector * m, transcendental=each * n + end * m)

    return rule


def _move(kind: str, partial: bool = False) -> Rule:
    return lambda site: Cost(kind, partial=partial)


def _view(kind: str) -> Rule:
    return lambda site: Cost(kind, view=True)


def _norm(kind: str, vector: int) -> Rule:
    def rule(site: Site) -> Cost:
        rank = len(site.x.shape)
        axis = site.attributes.get("axis", -1) % max(rank, 1)
        rows = math.prod(site.x.shape[: 2 if site.op[0] in "GI" else axis])
        return Cost(kind, vector=vector * site.size, transcendental=rows)

    return rule


def _conv(x: int, w: int, bias: int, requantize: int = 0) -> Rule:
    def rule(site: Site) -> Cost:
        # One product for each result (transposed: each input), kernel position and channel of the group.
        pixels = site.operand(x).elements if site.op == "ConvTranspose" else site.size
        each = math.prod(site.operand(w).shape[1:])
        samples = site.size // max(site.operand(w).shape[0], 1) * each if site.op == "DeformConv" else 0
        vector = (requantize + site.has(bias)) * site.size + 8 * samples
        return Cost("conv", matrix=2 * pixels * each, vector=vector)

    return rule


def _matmul(a: int, bias: int = -1, requantize: int = 0) -> Rule:
    def rule(site: Site) -> Cost:
        inner = site.operand(a).shape[0 if site.attributes.get("transA") else -1]
        vector = (requantize + (bias >= 0 and site.has(bias))) * site.size
        return Cost("matmul", matrix=2 * site.size * inner, vector=vector)

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
        return Cost("matmul", matrix=2 * products)
    return Cost("einsum", vector=(operands - 1 + summed) * products)


def _attention(site: Site) -> Cost:
    query, value = site.x, site.operand(2)
    heads = query.shape[1] if len(query.shape) == 4 else site.attributes["q_num_heads"]
    queries, length = query.shape[-2], site.operand(1).shape[-2]
    if site.has(4):
        length += site.operand(4).shape[-2]
    scores = query.shape[0] * heads * queries * length
    own = value.shape[-1] if len(value.shape) == 4 else value.shape[-1] // site.attributes["kv_num_heads"]
    matrix = 2 * query.elements * length + 2 * scores * own
    return Cost("attention", matrix=matrix, vector=5 * scores, transcendental=scores)


def _recurrent(gates: int, evaluations: int, vector: int) -> Rule:
    def rule(site: Site) -> Cost:
        weights, recurrent = site.operand(1), site.operand(2)
        steps = site.x.elements // max(site.x.shape[-1], 1)  # time steps of all sequences
        cells = steps * math.prod(recurrent.shape[:2]) // gates
        return Cost(
            site.op.lower(),
            matrix=2 * steps * (weights.elements + recurrent.elements),
            vector=cells * (vector + 2 * gates * site.has(3)),
            transcendental=cells * evaluations,
        )

    return rule


def _pool(site: Site) -> Cost:
    whole = site.op.startswith("Global")
    window = math.prod(site.x.shape[2:] if whole else site.attributes["kernel_shape"])
    powers = "Lp" in site.op
    return Cost("pool", vector=(1 + powers) * window * site.size, transcendental=powers * site.size)


def _lrn(site: Site) -> Cost:
    return Cost("lrn", vector=(site.attributes["size"] + 4) * site.size, transcendental=site.size)


def _batchnorm(site: Site) -> Cost:
    return Cost("batchnorm", vector=(8 if site.attributes.get("training_mode") else 2) * site.size)


def _dropout(site: Site) -> Cost:
    mode = site.operand(2) if site.has(2) else None
    training = mode is not None and (mode.data is None or bool(mode.data.any()))
    mask = len(site.outputs) > 1 and site.outputs[1] is not None
    return Cost("dropout", vector=2 * site.size) if training or mask else Cost("identity", view=True)


def _sampled(site: Site) -> Cost:
    mode = bytes(site.attributes.get("mode", b"linear" if site.op == "GridSample" else b"nearest"))
    taps = 4 if b"cubic" in mode else 1 if b"nearest" in mode else 2
    if site.op == "GridSample":
        axes = len(site.x.shape) - 2
    else:
        axes = sum(a != b for a, b in zip(site.x.shape, site.result.shape, strict=True))
    return Cost(site.op.lower(), vector=2 * taps**axes * site.size if taps > 1 else 0)


def _sorted(kind: str, each: int = 1, default: int = -1) -> Rule:
    def rule(site: Site) -> Cost:
        flat = kind == "sort" and "axis" not in site.attributes
        length = site.x.elements if flat else site.axis_length(default)
        return Cost(kind, vector=each * site.x.elements * math.ceil(math.log2(max(length, 2))))

    return rule


def _scatter(site: Site) -> Cost:
    combine = site.attributes.get("reduction", b"none") != b"none"
    return Cost("scatter", vector=site.operand(2).elements if combine else 0)


_PER_ELEMENT = {
    "Softmax": ("softmax", 3, 1),
    "LogSoftmax": ("softmax", 3, 1),
    "Hardmax": ("hardmax", 2, 0),
    "LpNormalization": ("lpnormalization", 3, 0),
    "RotaryEmbedding": ("rotaryembedding", 3, 0),
    "MeanVarianceNormalization": ("meanvariancenormalization", 6, 0),
    "OneHot": ("compare", 1, 0),
    "Bernoulli": ("random", 2, 0),
    "RandomNormal": ("random", 2, 2),
    "RandomNormalLike": ("random", 2, 2),
    "RandomUniform": ("random", 2, 0),
    "RandomUniformLike": ("random", 2, 0),
}
"""Kind, vector flops and evaluations per element, for ops that can't work in place."""


def _layers() -> dict[str, Rule]:
    """Products and whole layers."""
    return {
        "Conv": _conv(0, 1, 2),
        "ConvInteger": _conv(0, 1, 9),
        "ConvTranspose": _conv(0, 1, 2),
        "DeformConv": _conv(0, 1, 3),
        "QLinearConv": _conv(0, 3, 8, requantize=2),
        "MatMul": _matmul(0),
        "MatMulInteger": _matmul(0),
        "Gemm": _matmul(0, bias=2),
        "QLinearMatMul": _matmul(0, requantize=2),
        "Einsum": _einsum,
        "Attention": _attention,
        "LSTM": _recurrent(4, 5, 4),
        "GRU": _recurrent(3, 3, 5),
        "RNN": _recurrent(1, 1, 1),
        **dict.fromkeys(
            ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"), _pool
        ),
        "BatchNormalization": _batchnorm,
        "LRN": _lrn,
        "Dropout": _dropout,
        "LayerNormalization": _norm("layernorm", 7),
        "RMSNormalization": _norm("rmsnormalization", 4),
        "InstanceNormalization": _norm("instancenormalization", 7),
        "GroupNormalization": _norm("groupnormalization", 7),
        **{op: _each(*counts, elementwise=False) for op, counts in _PER_ELEMENT.items()},
        "Resize": _sampled,
        "Upsample": _sampled,
        "GridSample": _sampled,
        "TopK": _sorted("topk"),
        "Unique": _sorted("sort"),
        "DFT": _sorted("dft", 5, default=-2),
    }


def _elementwise() -> dict[str, Rule]:
    same = "Abs Add And Ceil Div Floor Mul Neg Not Or Relu Round Sign Sub Xor"
    evaluated = (
        "Acos Asin Atan Cos Cosh Erf Exp Gelu Log Pow Sin Sinh Softplus Sqrt Tan Tanh Acosh Asinh Atanh"
    )
    other = {
        "BitShift": ("bitshift", 1, 0),
        "BitwiseAnd": ("and", 1, 0),
        "BitwiseNot": ("not", 1, 0),
        "BitwiseOr": ("or", 1, 0),
        "BitwiseXor": ("xor", 1, 0),
        "Cast": ("convert", 1, 0),
        "CastLike": ("convert", 1, 0),
        "Celu": ("celu", 3, 1),
        "Clip": ("clamp", 1, 0),
        "DequantizeLinear": ("dequantizelinear", 2, 0),
        "DynamicQuantizeLinear": ("quantize", 4, 0),
        "Elu": ("elu", 2, 1),
        "HardSigmoid": ("hardsigmoid", 4, 0),
        "HardSwish": ("hardswish", 5, 0),
        "IsInf": ("compare", 1, 0),
        "IsNaN": ("compare", 1, 0),
        "LeakyRelu": ("leakyrelu", 2, 0),
        "Mish": ("mish", 1, 2),
        "Mod": ("rem", 1, 0),
        "PRelu": ("prelu", 2, 0),
        "QuantizeLinear": ("quantize", 1, 0),
        "Reciprocal": ("div", 1, 0),
        "Selu": ("selu", 3, 1),
        "Shrink": ("shrink", 2, 0),
        "Sigmoid": ("logistic", 0, 1),
        "Softsign": ("softsign", 3, 0),
        "SwiGLU": ("swiglu", 2, 1),
        "Swish": ("swish", 1, 1),
        "ThresholdedRelu": ("thresholdedrelu", 2, 0),
        "Trilu": ("select", 1, 0),
        "Where": ("select", 1, 0),
    }
    return {
        **{op: _each(op.lower()) for op in same.split()},
        **{op: _each(op.lower(), 0, 1) for op in evaluated.split()},
        **{op: _each(*counts) for op, counts in other.items()},
        **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _each("compare")),
        "Sum": _many("add"),
        "Mean": _many("mean", 1),
        "Max": _many("max"),
        "Min": _many("min"),
    }


def _moves_and_reductions() -> dict[str, Rule]:
    return {
        **{
            op: _view(op.lower())
            for op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "BitCast")
        },
        **{
            op: _move(op.lower())
            for op in ("Concat", "Pad", "Transpose", "Tile", "DepthToSpace", "SpaceToDepth", "CenterCropPad")
        },
        **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _move("gather", partial=True)),
        "Slice": _move("slice", partial=True),
        "Split": _move("split", partial=True),
        "Compress": _move("gather", partial=True),
        "ReverseSequence": _move("reverse"),
        "Expand": _move("broadcast"),
        "ConstantOfShape": _move("broadcast"),
        "EyeLike": _move("iota"),
        "Range": _move("iota"),
        "MaxUnpool": _move("scatter"),
        "TensorScatter": _move("scatter"),
        **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter),
        "ArgMax": _reduction("argmax"),
        "ArgMin": _reduction("argmin"),
        "CumSum": _reduction("cumsum"),
        "CumProd": _reduction("cumprod"),
        "NonZero": _reduction("nonzero"),
        "Col2Im": _reduction("col2im"),
        "ReduceSum": _reduction("reduce_sum"),
        "ReduceMean": _reduction("reduce_sum", end_vector=1),
        "ReduceMax": _reduction("reduce_max"),
        "ReduceMin": _reduction("reduce_min"),
        "ReduceProd": _reduction("reduce_mul"),
        "ReduceL1": _reduction("reduce_sum", 2),
        "ReduceL2": _reduction("reduce_sum", 2, end=1),
        "ReduceSumSquare": _reduction("reduce_sum", 2),
        "ReduceLogSum": _reduction("reduce_sum", end=1),
        "ReduceLogSumExp": _reduction("reduce_sum", 2, each=1, end=1),
    }


_RULES: dict[str, Rule] = {**_layers(), **_elementwise(), **_moves_and_reductions()}
