"""Which words of the shared cost table JAX's primitives are, and the sizes that those ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from loadmaster.program import op_costs
from loadmaster.program.op_costs import Cost


class Type(NamedTuple):
    """What a value is, whoever made it."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    elements: int


Params = Mapping[str, Any]
Types = Sequence[Type]
Rule = Callable[[Params, Types, Types], Cost]

TYPED_BY_OPERAND = op_costs.TYPED_BY_OPERAND | {"topk"}


def cost_of(primitive: str, params: Params, operands: Types, results: Types) -> Cost | None:
    """The cost of one application, or None for a primitive that is not known."""
    rule = _RULES.get(primitive)
    return rule(params, operands, results) if rule else None


def estimate(primitive: str, results: Types) -> Cost:
    """What an unknown primitive gets."""
    return op_costs.estimate(primitive, sum(result.elements for result in results))


def is_known(primitive: str) -> bool:
    """Whether a primitive has a rule here; the others are walked into, or estimated."""
    return primitive in _RULES


def _each(word: str) -> Rule:
    return lambda params, operands, results: op_costs.each(word, results[0].elements)


def _reduction(word: str) -> Rule:
    return lambda params, operands, results: op_costs.reduction(
        word, operands[0].elements, results[0].elements
    )


def _move(kind: str) -> Rule:
    cost = op_costs.move(kind)
    return lambda params, operands, results: cost


def _contraction(numbers: Any, operands: Types, results: Types) -> Cost:
    (contracting, _), _ = numbers
    depth = math.prod(operands[0].shape[axis] for axis in contracting)
    return op_costs.matmul(results[0].elements, depth)


def _matmul(params: Params, operands: Types, results: Types) -> Cost:
    return _contraction(params["dimension_numbers"], operands, results)


def _ragged_matmul(params: Params, operands: Types, results: Types) -> Cost:
    numbers = params["ragged_dot_dimension_numbers"]
    return _contraction(numbers.dot_dimension_numbers, operands, results)


def _conv(params: Params, operands: Types, results: Types) -> Cost:
    # The kernel's input channels are already those of one group. Input dilation puts
    # zeros between the elements (the gradient of a strided convolution): no work there.
    _, channels, *spatial = params["dimension_numbers"].rhs_spec
    kernel = operands[1].shape
    window = kernel[channels] * math.prod(kernel[axis] for axis in spatial)
    cost = op_costs.convolution(results[0].elements, window)
    return cost._replace(matrix=cost.matrix // math.prod(params["lhs_dilation"]))


def _integer_pow(params: Params, operands: Types, results: Types) -> Cost:
    return op_costs.integer_power(params["y"], results[0].elements)


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
    return Cost("pad", partial=0)  # negative padding cuts


def _update_slice(params: Params, operands: Types, results: Types) -> Cost:
    return Cost("dynamic_update_slice", over=(0, operands[1].bytes))


def _scatter(combines: bool) -> Rule:
    def rule(params: Params, operands: Types, results: Types) -> Cost:
        return op_costs.scatter(operands[2].elements, operands[2].bytes, combines=combines)

    return rule


def _window(params: Params, operands: Types, results: Types) -> Cost:
    return op_costs.pool(results[0].elements, math.prod(params["window_dimensions"]))


def _window_gradient(params: Params, operands: Types, results: Types) -> Cost:
    # Operand 0 is the gradient: each of its elements searches one window, and adds once.
    return op_costs.pool(operands[0].elements, math.prod(params["window_dimensions"]) + 1)


def _sort(params: Params, operands: Types, results: Types) -> Cost:
    depth = operands[0].shape[params["dimension"]]
    return Cost("sort", vector=op_costs.fractional_comparisons(operands[0].elements, depth))


def _top_k(params: Params, operands: Types, results: Types) -> Cost:
    elements = operands[0].elements
    return Cost("topk", vector=max(elements, op_costs.fractional_comparisons(elements, params["k"])))


def _random(params: Params, operands: Types, results: Types) -> Cost:
    return op_costs.random(words=sum(-(-result.bytes // 4) for result in results))


def _generic_reduce(params: Params, operands: Types, results: Types) -> Cost:
    # Half of the operands are initial values.
    inputs = operands[: len(operands) // 2]
    return Cost("reduce", vector=sum(operand.elements for operand in inputs))


_SAME_WORD = """
abs add and ceil clamp copy div floor max min mul neg not or rem round sign sub xor
clz complex conj imag nextafter population_count real shift_left shift_right_arithmetic shift_right_logical
acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erf_inv exp expm1
igamma igammac lgamma log log1p logistic polygamma pow regularized_incomplete_beta rsqrt sin sinh sqrt tan
tanh zeta
"""
_EACH = {name: name for name in _SAME_WORD.split()} | op_costs.words_by_name(
    {
        "add": "add_any add_jaxvals",
        "compare": "eq ne ge gt le lt eq_to le_to lt_to is_finite",
        "convert": "convert_element_type reduce_precision",
        "erf": "erfc",
        "exp": "exp2",
        "mul": "square",
        "select": "select_n",
    }
)
_SAME_REDUCTION = """
argmax argmin cummax cummin cumprod cumsum reduce_and reduce_max reduce_min reduce_or reduce_sum reduce_xor
"""
_REDUCTIONS = {name: name for name in _SAME_REDUCTION.split()} | {
    "cumlogsumexp": "cumulative_log_sum_exp",
    "reduce_prod": "reduce_mul",
}
_MOVES = op_costs.words_by_name(
    {
        "bitcast": "random_unwrap random_wrap",
        "broadcast": "empty2 tile",
        "concat": "concatenate stack",
        "dynamic_slice": "dynamic_slice",
        "gather": "gather",
        "iota": "iota",
        "reverse": "rev",
        "slice": "slice",
        "split": "split unstack",
        "squeeze": "squeeze",
        "stop_gradient": "stop_gradient",
        "transpose": "transpose",
        "unsqueeze": "expand_dims",
    }
)
_WINDOWS = "reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add"
_RANDOM = """
random_bits random_fold_in random_seed random_split rng_bit_generator rng_uniform threefry2x32
"""
_RULES: dict[str, Rule] = {
    **{name: _each(word) for name, word in _EACH.items()},
    **{name: _reduction(word) for name, word in _REDUCTIONS.items()},
    **{name: _move(kind) for name, kind in _MOVES.items()},
    **dict.fromkeys(_WINDOWS.split(), _window),
    **dict.fromkeys(_RANDOM.split(), _random),
    **{f"scatter{sign}{how}": _scatter(True) for sign in "-_" for how in ("add", "mul", "min", "max", "sub")},
    "approx_top_k": _top_k,
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _conv,
    "dot_general": _matmul,
    "dynamic_update_slice": _update_slice,
    "integer_pow": _integer_pow,
    "pad": _pad,
    "ragged_dot_general": _ragged_matmul,
    "reduce": _generic_reduce,
    "reshape": _reshape,
    "scatter": _scatter(False),
    "select_and_scatter_add": _window_gradient,
    "sort": _sort,
    "top_k": _top_k,
}
