"""What one JAX primitive costs: its kind, its flops by class, the bytes it touches per operand.

`cost_of` is the table; a primitive that is not in it is unknown and gets an estimate
from the caller. Counts follow `kinds`: two flops per multiply-add, one vector flop per
element of an elementwise result, one evaluation per element of a transcendental one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Type(NamedTuple):
    """What a value is, whoever made it."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    elements: int


class Cost(NamedTuple):
    """Flops by class, and bytes per operand and result where they aren't all of it."""

    kind: str
    matrix: int = 0
    vector: int = 0
    transcendental: int = 0
    reads: tuple[int | None, ...] | None = None
    """Bytes read of each operand; None: all of it."""
    over: tuple[int, int] | None = None
    """If it may write over operand 0: the bytes it reads there and writes then."""
    view: bool = False
    typed_by_operand: bool = False
    """It computes in the type of operand 0, not in that of its result."""


Params = Mapping[str, Any]
Types = Sequence[Type]
Rule = Callable[[Params, Types, Types], Cost]

RANDOM_FLOPS = 50
"""Vector flops per random word. Threefry: 20 rounds of add, rotate (3) and xor for two words."""


def cost_of(primitive: str, params: Params, operands: Types, results: Types) -> Cost | None:
    """The cost of one application, or None for a primitive that is not known."""
    rule = _RULES.get(primitive)
    return rule(params, operands, results) if rule else None


def estimate(primitive: str, results: Types) -> Cost:
    """What an unknown primitive gets: one vector flop per element of its results."""
    return Cost(f"unknown:{primitive}", vector=sum(result.elements for result in results))


def is_known(primitive: str) -> bool:
    return primitive in _RULES


def _elementwise(kind: str, *, by_operand: bool = False) -> Rule:
    def rule(params: Params, operands: Types, results: Types) -> Cost:
        return Cost(kind, vector=results[0].elements, typed_by_operand=by_operand)

    return rule


def _transcendental(kind: str) -> Rule:
    return lambda params, operands, results: Cost(kind, transcendental=results[0].elements)


def _reduction(kind: str, *, by_operand: bool = False) -> Rule:
    def rule(params: Params, operands: Types, results: Types) -> Cost:
        return Cost(kind, vector=operands[0].elements, typed_by_operand=by_operand)

    return rule


def _movement(kind: str) -> Rule:
    return lambda params, operands, results: Cost(kind)


def _part(kind: str) -> Rule:
    """Takes parts of operand 0: what it reads there is what it writes."""

    def rule(params: Params, operands: Types, results: Types) -> Cost:
        taken = min(sum(result.bytes for result in results), operands[0].bytes)
        return Cost(kind, reads=(taken, *[None] * (len(operands) - 1)))

    return rule


def _view(kind: str) -> Rule:
    return lambda params, operands, results: Cost(kind, view=True)


def _matmul(params: Params, operands: Types, results: Types) -> Cost:
    (contracting, _), _ = params["dimension_numbers"]
    depth = math.prod(operands[0].shape[axis] for axis in contracting)
    return Cost("matmul", matrix=2 * results[0].elements * depth, typed_by_operand=True)


def _ragged_matmul(params: Params, operands: Types, results: Types) -> Cost:
    numbers = params["ragged_dot_dimension_numbers"]
    (contracting, _), _ = numbers.dot_dimension_numbers
    depth = math.prod(operands[0].shape[axis] for axis in contracting)
    return Cost("matmul", matrix=2 * results[0].elements * depth, typed_by_operand=True)


def _conv(params: Params, operands: Types, results: Types) -> Cost:
    # The kernel's input channels are already those of one group. Input dilation puts
    # zeros between the elements (the gradient of a strided convolution): no work there.
    _, channels, *spatial = params["dimension_numbers"].rhs_spec
    kernel = operands[1].shape
    window = kernel[channels] * math.prod(kernel[axis] for axis in spatial)
    matrix = 2 * results[0].elements * window // math.prod(params["lhs_dilation"])
    return Cost("conv", matrix=matrix, typed_by_operand=True)


def _integer_pow(params: Params, operands: Types, results: Types) -> Cost:
    power = params["y"]
    flops = max(1, abs(power) - 1)
    return Cost("div" if power == -1 else "mul", vector=flops * results[0].elements)


def _convert(params: Params, operands: Types, results: Types) -> Cost:
    return Cost("convert", vector=results[0].elements)


def _broadcast(params: Params, operands: Types, results: Types) -> Cost:
    same = bool(operands) and operands[0].elements == results[0].elements
    return Cost("reshape", view=True) if same else Cost("broadcast")


def _reshape(params: Params, operands: Types, results: Types) -> Cost:
    # `dimensions` is a permutation that goes first: then bytes move.
    return Cost("reshape", view=params.get("dimensions") is None)


def _bitcast(params: Params, operands: Types, results: Types) -> Cost:
    same = operands[0].bytes == results[0].bytes and operands[0].shape == results[0].shape
    return Cost("bitcast", view=same)


def _pad(params: Params, operands: Types, results: Types) -> Cost:
    read = min(operands[0].bytes, results[0].bytes)  # negative padding cuts
    return Cost("pad", reads=(read, *[None] * (len(operands) - 1)))


def _update_slice(params: Params, operands: Types, results: Types) -> Cost:
    return Cost("dynamic_update_slice", over=(0, operands[1].bytes))


def _scatter(combines: bool) -> Rule:
    def rule(params: Params, operands: Types, results: Types) -> Cost:
        updates = operands[2]
        # Combining reads what it combines with: the places that are updated.
        over = (updates.bytes if combines else 0, updates.bytes)
        return Cost("scatter", vector=updates.elements if combines else 0, over=over)

    return rule


def _window(params: Params, operands: Types, results: Types) -> Cost:
    window = math.prod(params["window_dimensions"])
    return Cost("pool", vector=results[0].elements * window)


def _window_gradient(params: Params, operands: Types, results: Types) -> Cost:
    # Operand 0 is the gradient: each of its elements searches one window, and adds once.
    window = math.prod(params["window_dimensions"])
    return Cost("pool", vector=operands[0].elements * (window + 1))


def _sort(params: Params, operands: Types, results: Types) -> Cost:
    return Cost("sort", vector=_comparisons(operands[0], operands[0].shape[params["dimension"]]))


def _top_k(params: Params, operands: Types, results: Types) -> Cost:
    vector = max(operands[0].elements, _comparisons(operands[0], params["k"]))
    return Cost("topk", vector=vector, typed_by_operand=True)


def _comparisons(operand: Type, depth: int) -> int:
    return math.ceil(operand.elements * math.log2(depth)) if depth > 1 else 0


def _random(params: Params, operands: Types, results: Types) -> Cost:
    words = sum(-(-result.bytes // 4) for result in results)
    return Cost("random", vector=RANDOM_FLOPS * words)


def _generic_reduce(params: Params, operands: Types, results: Types) -> Cost:
    # Half of the operands are initial values.
    inputs = operands[: len(operands) // 2]
    return Cost("reduce", vector=sum(operand.elements for operand in inputs))


def _log_sum_exp(params: Params, operands: Types, results: Types) -> Cost:
    elements = operands[0].elements
    return Cost("cumsum", vector=elements, transcendental=2 * elements)


_SAME_NAME = (
    "abs add and ceil clamp copy div floor max min mul neg not or rem round sign sub xor "
    "clz complex conj imag nextafter population_count real shift_left "
    "shift_right_arithmetic shift_right_logical"
)
_SAME_NAME_TRANSCENDENTAL = (
    "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf "
    "erf_inv exp expm1 igamma igammac lgamma log log1p logistic polygamma pow "
    "regularized_incomplete_beta rsqrt sin sinh sqrt tan tanh zeta"
)

_RULES: dict[str, Rule] = {
    **{name: _elementwise(name) for name in _SAME_NAME.split()},
    **{name: _elementwise("add") for name in ("add_any", "add_jaxvals")},
    **{
        name: _elementwise("compare", by_operand=True)
        for name in ("eq", "ne", "ge", "gt", "le", "lt", "eq_to", "le_to", "lt_to", "is_finite")
    },
    **{name: _transcendental(name) for name in _SAME_NAME_TRANSCENDENTAL.split()},
    **{
        name: _reduction(name)
        for name in (
            "cummax",
            "cummin",
            "cumprod",
            "cumsum",
            "reduce_and",
            "reduce_max",
            "reduce_min",
            "reduce_or",
            "reduce_sum",
            "reduce_xor",
        )
    },
    **{name: _reduction(name, by_operand=True) for name in ("argmax", "argmin")},
    **dict.fromkeys(
        (
            "reduce_window",
            "reduce_window_max",
            "reduce_window_min",
            "reduce_window_sum",
            "select_and_gather_add",
        ),
        _window,
    ),
    **dict.fromkeys(
        (
            "random_bits",
            "random_fold_in",
            "random_seed",
            "random_split",
            "rng_bit_generator",
            "rng_uniform",
            "threefry2x32",
        ),
        _random,
    ),
    **{f"scatter{sign}{how}": _scatter(True) for sign in "-_" for how in ("add", "mul", "min", "max", "sub")},
    "approx_top_k": _top_k,
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "concatenate": _movement("concat"),
    "conv_general_dilated": _conv,
    "convert_element_type": _convert,
    "cumlogsumexp": _log_sum_exp,
    "dot_general": _matmul,
    "dynamic_slice": _part("dynamic_slice"),
    "dynamic_update_slice": _update_slice,
    "empty2": _movement("broadcast"),
    "erfc": _transcendental("erf"),
    "exp2": _transcendental("exp"),
    "expand_dims": _view("unsqueeze"),
    "gather": _part("gather"),
    "integer_pow": _integer_pow,
    "iota": _movement("iota"),
    "pad": _pad,
    "ragged_dot_general": _ragged_matmul,
    "random_unwrap": _view("bitcast"),
    "random_wrap": _view("bitcast"),
    "reduce": _generic_reduce,
    "reduce_precision": _elementwise("convert"),
    "reduce_prod": _reduction("reduce_mul"),
    "reshape": _reshape,
    "rev": _movement("reverse"),
    "scatter": _scatter(False),
    "select_and_scatter_add": _window_gradient,
    "select_n": _elementwise("select"),
    "slice": _part("slice"),
    "sort": _sort,
    "split": _part("split"),
    "square": _elementwise("mul"),
    "squeeze": _view("squeeze"),
    "stack": _movement("concat"),
    "stop_gradient": _view("stop_gradient"),
    "tile": _movement("broadcast"),
    "top_k": _top_k,
    "transpose": _movement("transpose"),
    "unstack": _part("split"),
}
