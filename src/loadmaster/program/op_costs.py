"""What ops cost, once for all importers: flops by class, and which bytes are really touched.

An importer maps its framework's names to the words here (those of `kinds`, and some more where ops
of one kind differ in cost) and supplies sizes; what an op costs is said in this file alone.

    each("hardswish", elements=1000)                 # Cost('hardswish', vector=5000)
    convolution(positions=8 * 56 * 56, window=64 * 9)  # Cost('conv', matrix=2 * 8 * 56 * 56 * 576)

A multiply-add is two matrix flops; everything else that is no transcendental function is vector
flops; one evaluation of exp, sqrt, tanh, … is one transcendental flop, whatever it takes
(`VECTOR_FLOPS` weighs them for devices that have no rate for them). HLO follows XLA's own cost
analysis: it takes the counts per element from here and keeps XLA's rules for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from loadmaster.program import kinds


class Cost(NamedTuple):
    """What one op does."""

    kind: str
    matrix: int = 0
    vector: int = 0
    transcendental: int = 0
    view: bool = False
    """It may show its first operand's bytes under another shape and move none."""
    partial: int | None = None
    """Of this operand it reads only as many bytes as it writes."""
    unread: bool = False
    """Its first operand gives a shape; the bytes are not read."""
    over: tuple[int, int] | None = None
    """If it may write over operand 0: the bytes it reads there and writes then."""
    elementwise: bool = False
    """Each element of the result needs that element of the operands alone."""

    @property
    def flops(self) -> int:
        """Flops of all classes, to compare branches."""
        return self.matrix + self.vector + self.transcendental


TYPED_BY_OPERAND = frozenset({"argmax", "argmin", "compare", "conv", "matmul"})
"""Kinds that compute in the type of what they read, not of what they write, whoever imports them."""


VECTOR_FLOPS = {
    **dict.fromkeys(("div", "rsqrt", "sqrt"), 4),
    **dict.fromkeys(("cbrt", "cos", "exp", "expm1", "log", "log1p", "sin", "tan"), 8),
    **dict.fromkeys(("cosh", "logistic", "sinh", "tanh"), 12),
    **dict.fromkeys(("acos", "asin", "atan", "atan2", "erf", "gelu", "pow", "softplus"), 16),
}
"""Vector flops that one element of such an op takes on a device that has no rate for
transcendentals of its own. Kinds that are not here take 1, or `OTHER_TRANSCENDENTAL`."""

OTHER_TRANSCENDENTAL = 8
"""The same for an evaluation inside an op of another kind (a fusion, a softmax)."""


def words_by_name(names_of: Mapping[str, str]) -> dict[str, str]:
    """A framework's names -> words, from words with the names that mean them ('and': 'BitwiseAnd And')."""
    return {name: word for word, names in names_of.items() for name in names.split()}


# Ops that do the same for every element.

_ONE_FLOP = """
bitshift clz complex conj imag nextafter population_count real shift_left shift_right_arithmetic
shift_right_logical
"""
_ONE_EVALUATION = """
acosh asinh atanh bessel_i0e bessel_i1e digamma erf_inv igamma igammac lgamma polygamma
regularized_incomplete_beta zeta
"""

PER_ELEMENT: dict[str, tuple[int, int]] = {
    **dict.fromkeys((*kinds.ELEMENTWISE, *_ONE_FLOP.split()), (1, 0)),
    **dict.fromkeys((*kinds.TRANSCENDENTAL, *_ONE_EVALUATION.split()), (0, 1)),
    "addcdiv": (3, 0),
    "addcmul": (3, 0),
    "celu": (3, 1),
    "dequantizelinear": (2, 0),
    "dropout": (2, 0),
    "dynamic_quantize": (4, 0),
    "elu": (2, 1),
    "fake_quantize": (2, 0),
    "glu": (1, 1),
    "hardmax": (2, 0),
    "hardsigmoid": (4, 0),
    "hardswish": (5, 0),
    "l2normalization": (3, 0),
    "leakyrelu": (2, 0),
    "lerp": (3, 0),
    "logit": (3, 1),
    "lpnormalization": (3, 0),
    "meanvariancenormalization": (6, 0),
    "mish": (1, 2),
    "nan_to_num": (3, 0),
    "prelu": (2, 0),
    "rotaryembedding": (3, 0),
    "selu": (3, 1),
    "shrink": (2, 0),
    "softmax": (3, 1),  # max, sum, and divide or, in a log-softmax, subtract
    "softsign": (3, 0),
    "squareddifference": (2, 0),
    "swiglu": (2, 1),
    "swish": (1, 1),
    "thresholdedrelu": (2, 0),
    # Normalisation: mean, centre, square, sum, scale, gain, bias; each row's root comes to it.
    "batchnorm": (2, 0),  # scale, shift
    "batchnorm_training": (8, 0),  # mean and variance too, of this batch and of all
    "groupnormalization": (7, 0),
    "instancenormalization": (7, 0),
    "layernorm": (7, 0),
    "rmsnormalization": (4, 0),
    # Losses, per element of the scores.
    "binary_cross_entropy_with_logits": (4, 2),
    "cross_entropy_loss": (3, 1),
    "l1_loss": (3, 0),
    "mse_loss": (3, 0),
    "smooth_l1_loss": (4, 0),
    # Backward; that of a normalisation per element of its input.
    "adaptive_avg_pool2d_backward": (1, 0),
    "batchnorm_backward": (10, 0),
    "elu_backward": (3, 1),
    "gelu_backward": (6, 2),
    "groupnormalization_backward": (13, 0),
    "hardsigmoid_backward": (3, 0),
    "hardswish_backward": (6, 0),
    "hardtanh_backward": (2, 0),
    "layernorm_backward": (13, 0),
    "leaky_relu_backward": (2, 0),
    "log_sigmoid_backward": (3, 1),
    "log_softmax_backward_data": (3, 1),
    "max_pool2d_with_indices_backward": (1, 0),
    "mse_loss_backward": (3, 0),
    "native_dropout_backward": (2, 0),
    "rmsnormalization_backward": (9, 0),
    "sigmoid_backward": (3, 0),
    "silu_backward": (5, 1),
    "smooth_l1_loss_backward": (4, 0),
    "softmax_backward_data": (4, 0),
    "softplus_backward": (3, 1),
    "tanh_backward": (3, 0),
    "threshold_backward": (1, 0),
    "upsample_bilinear2d_backward": (8, 0),
    "upsample_nearest2d_backward": (1, 0),
    # ONNX's random numbers. JAX and PyTorch count what makes them: see `random`.
    "random_normal": (2, 2),
    "random_uniform": (2, 0),
}
"""Vector flops and evaluations per element of the result unless said otherwise."""

_KIND_OF_WORD = {
    "batchnorm_training": "batchnorm",
    "dynamic_quantize": "quantize",
    "fake_quantize": "quantize",
    "nan_to_num": "select",
    **dict.fromkeys(("random_normal", "random_uniform"), "random"),
    **dict.fromkeys(
        ("binary_cross_entropy_with_logits", "cross_entropy_loss", "l1_loss", "mse_loss", "smooth_l1_loss"),
        "loss",
    ),
}
"""Words for ops that cost other than what their kind says."""


def each(word: str, elements: int, *, elementwise: bool = False) -> Cost:
    """An op that does the same for each of so many elements."""
    vector, evaluations = PER_ELEMENT[word]
    return Cost(
        _KIND_OF_WORD.get(word, word),
        vector=vector * elements,
        transcendental=evaluations * elements,
        elementwise=elementwise,
    )


def integer_power(exponent: int, elements: int) -> Cost:
    """A power as products, or as a division."""
    return Cost("div" if exponent == -1 else "mul", vector=max(1, abs(exponent) - 1) * elements)


RANDOM_FLOPS = 50
"""Vector flops per random word. Threefry: 20 rounds of add, rotate (3) and xor for two words."""


def random(words: int) -> Cost:
    """So many random words of 32 bits, or so many random numbers."""
    return Cost("random", vector=RANDOM_FLOPS * words)


def estimate(name: str, elements: int) -> Cost:
    """What an op that nobody described gets: one vector flop per element of its results."""
    return Cost(f"unknown:{name}", vector=elements)


# Ops that make few elements of many, and ops that only move them.


class Reduction(NamedTuple):
    """Vector flops and evaluations per element of the operand, then per element of the result."""

    kind: str
    vector: int = 1
    evaluations: int = 0
    last_vector: int = 0
    last_evaluations: int = 0


_PLAIN_REDUCTIONS = "col2im cummax cummin cumprod nonzero reduce_xor"

REDUCTIONS: dict[str, Reduction] = {
    **{kind: Reduction(kind) for kind in (*kinds.REDUCTIONS, *_PLAIN_REDUCTIONS.split())},
    "mean": Reduction("reduce_sum", last_vector=1),
    "reduce_mean": Reduction("reduce_mean"),  # TFLite's, which counts no division
    "sum_of_absolutes": Reduction("reduce_sum", 2),
    "sum_of_squares": Reduction("reduce_sum", 2),
    "norm": Reduction("reduce_sum", 2, last_evaluations=1),
    "variance": Reduction("reduce_sum", 4, last_vector=1),
    "deviation": Reduction("reduce_sum", 4, last_vector=1, last_evaluations=1),
    "log_sum": Reduction("reduce_sum", last_evaluations=1),
    "log_sum_exp": Reduction("reduce_sum", 2, 1, last_evaluations=1),
    "cumulative_log_sum_exp": Reduction("cumsum", 1, 2),
}


def reduction(word: str, elements: int, results: int) -> Cost:
    """A reduction or a scan of `elements` to `results`."""
    counts = REDUCTIONS[word]
    return Cost(
        counts.kind,
        vector=counts.vector * elements + counts.last_vector * results,
        transcendental=counts.evaluations * elements + counts.last_evaluations * results,
    )


_READ_IN_PART = frozenset({"dynamic_slice", "gather", "slice", "split"})


def move(kind: str, operand: int = 0) -> Cost:
    """An op that copies bytes, or shows them: no flops. Of `operand` a slice or a gather reads a part."""
    return Cost(kind, view=kind in kinds.VIEWS, partial=operand if kind in _READ_IN_PART else None)


def scatter(elements: int, bytes: int | None = None, *, combines: bool = False) -> Cost:
    """Updates of so many elements. With their bytes given it may work in place, and then reads only
    what it combines them with."""
    over = None if bytes is None else (bytes if combines else 0, bytes)
    return Cost("scatter", vector=elements if combines else 0, over=over)


def comparisons(elements: int, depth: int) -> int:
    """Comparisons that order rows of `depth` elements: log2 of it, in whole rounds, for each element."""
    return elements * math.ceil(math.log2(max(depth, 2)))


def fractional_comparisons(elements: int, depth: int) -> int:
    """The same as the JAX importer counts it: not in whole rounds, and none for rows of one element."""
    return math.ceil(elements * math.log2(depth)) if depth > 1 else 0


# Products and whole layers.


def epilogue(elements: int, *, bias: bool = False, requantized: bool = False) -> int:
    """Vector flops at the end of a layer: a bias, and scaling and rounding to whole numbers."""
    return (bias + 2 * requantized) * elements


def matmul(elements: int, depth: int, vector: int = 0) -> Cost:
    """So many inner products of `depth`, and what is done with their results."""
    return Cost("matmul", 2 * elements * depth, vector)


def convolution(positions: int, window: int, vector: int = 0) -> Cost:
    """A product for each position (elements of the result; transposed: of the input) and each element
    of a window (kernel positions times channels of a group)."""
    return Cost("conv", 2 * positions * window, vector)


def pool(elements: int, window: int, *, powers: bool = False) -> Cost:
    """A window's elements for each of the result; raised to a power first and rooted at the end if so."""
    return Cost("pool", vector=(1 + powers) * window * elements, transcendental=powers * elements)


def normalization(kind: str, elements: int, rows: int) -> Cost:
    """Rows that are each brought to unit variance: one root a row."""
    return each(kind, elements)._replace(transcendental=rows)


def local_response(elements: int, window: int) -> Cost:
    """Square, sum over the window, scale, bias, power, divide."""
    return Cost("lrn", vector=(window + 4) * elements, transcendental=elements)


TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Elements along an axis that an interpolated one is made of."""


def resample(kind: str, elements: int, taps: int, axes: int) -> Cost:
    """A multiply-add per tap for each element; the nearest one is only copied."""
    return Cost(kind, vector=2 * taps**axes * elements if taps > 1 else 0)


_VECTOR_PER_SCORE = {"attention": 5, "attention_backward": 9}
"""Scale, mask, softmax; backward: the scores again, too."""


def attention(scores: int, products: int, kind: str = "attention") -> Cost:
    """Scores of all heads and queries, and the multiply-adds of all products of it."""
    return Cost(kind, 2 * products, _VECTOR_PER_SCORE[kind] * scores, scores)


class Cell(NamedTuple):
    """A recurrent cell: its gates, and evaluations and vector flops per cell and step."""

    gates: int
    evaluations: int
    vector: int


CELLS = {"lstm": Cell(4, 5, 4), "gru": Cell(3, 3, 5), "rnn": Cell(1, 1, 1), "svdf": Cell(1, 0, 1)}


def recurrent(kind: str, steps: int, weights: int, cells: int, biases: int) -> Cost:
    """`steps` of all sequences multiply by `weights` elements; so many cells (times steps) are made,
    each gate of them with so many biases."""
    cell = CELLS[kind]
    return Cost(
        kind, 2 * steps * weights, cells * (cell.vector + biases * cell.gates), cells * cell.evaluations
    )
