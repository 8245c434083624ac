"""Which words of the shared cost table ATen's ops are, and the sizes that those ask for.

The same rules serve graphs of torch.export at every level and ExecuTorch's lowered ones, whose
names end in `_copy` where a view had to become a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loadmaster.program import op_costs
from loadmaster.program.kinds import bytes_of
from loadmaster.program.op_costs import Cost

TYPED_BY_OPERAND = op_costs.TYPED_BY_OPERAND | {"attention_backward", "conv_backward", "loss", "sort", "topk"}


class Type(NamedTuple):
    """What a tensor is."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return bytes_of(self.shape, self.dtype)


@dataclass(frozen=True)
class Call:
    """A call: tensors among its arguments are `Type`s."""

    op: str
    """The name without namespace and overload, such as 'conv2d'."""
    args: Mapping[str, Any]
    """By the names of the op's schema, defaults filled in."""
    results: Sequence[Type]

    @property
    def operands(self) -> list[Type]:
        """The tensors among the arguments, in order."""
        return list(tensors_in(self.args.values()))

    @property
    def x(self) -> Type:
        return self.operands[0]

    @property
    def size(self) -> int:
        return self.results[0].elements

    def tensor(self, name: str) -> Type:
        value = self.args[name]
        if not isinstance(value, Type):
            raise KeyError(name)
        return value

    def has(self, name: str) -> bool:
        return isinstance(self.args.get(name), Type)


def tensors_in(values: Iterable[Any]) -> Iterator[Type]:
    """All tensors among values, lists of them included."""
    for value in values:
        if isinstance(value, Type):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


Rule = Callable[[Call], Cost]


def cost_of(call: Call) -> Cost | None:
    """What the call does, or None for an op that nobody described."""
    rule = _RULES.get(call.op) or _RULES.get(call.op.removesuffix("_copy"))
    return None if rule is None else rule(call)


def estimate(call: Call) -> Cost:
    """What such an op gets."""
    return op_costs.estimate(call.op, sum(result.elements for result in call.results))


def _each(word: str) -> Rule:
    return lambda call: op_costs.each(word, call.size)


def _reduction(word: str) -> Rule:
    return lambda call: op_costs.reduction(word, call.x.elements, call.size)


def _move(kind: str) -> Rule:
    return lambda call: op_costs.move(kind)


def _loss(word: str) -> Rule:
    return lambda call: op_costs.each(word, call.x.elements)


def _norm_backward(word: str, operand: int = 1) -> Rule:
    return lambda call: op_costs.each(word, call.operands[operand].elements)


def _either(kind: str) -> Rule:
    """`max` and `min`: of two tensors, or along a dimension."""

    def rule(call: Call) -> Cost:
        if len(call.operands) == 2:
            return op_costs.each(kind, call.size)
        return op_costs.reduction(f"reduce_{kind}", call.x.elements, call.size)

    return rule


def _product(call: Call) -> Cost:
    """Products of matrices; `addmm` and its kin add their first operand."""
    added = call.op.startswith(("add", "badd"))
    a = call.operands[1] if added else call.x
    depth = a.shape[-1] if a.shape else 1
    groups = a.shape[0] if call.op == "addbmm" else 1  # products that are summed up
    bias = op_costs.epilogue(call.size, bias=added or call.has("bias"))
    return op_costs.matmul(call.size, depth * groups, bias)


def _sliced_products(call: Call) -> Cost:
    """Two products of the same inner size: what is between them is the first's result and the second's depth."""
    rows = call.args["between"].shape[0]
    return op_costs.matmul(call.args["between"].elements, call.x.shape[-1] + call.size // rows)


def _einsum(call: Call) -> Cost:
    terms = str(call.args["equation"]).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, call.operands, strict=True):
        sizes |= dict(zip(term.replace(".", ""), operand.shape[-len(term.replace(".", "")) :], strict=False))
    products = max(math.prod(sizes.values()), call.size)
    if len(terms) == 1:
        return Cost("reduce_sum", vector=call.x.elements)
    return op_costs.matmul(products, len(terms) - 1)


def _conv(call: Call) -> Cost:
    transposed = "transpose" in call.op or bool(call.args.get("transposed"))
    positions = call.x.elements if transposed else call.size
    window = math.prod(call.tensor("weight").shape[1:])
    return op_costs.convolution(positions, window, op_costs.epilogue(call.size, bias=call.has("bias")))


def _conv_backward(call: Call) -> Cost:
    """A product of the forward pass's size for the input's gradient and one for the weight's."""
    grad, weight = call.tensor("grad_output"), call.tensor("weight")
    positions = call.tensor("input").elements if call.args.get("transposed") else grad.elements
    of_input, of_weight, of_bias = map(bool, call.args["output_mask"])
    bias = op_costs.epilogue(grad.elements, bias=of_bias)
    forward = op_costs.convolution(positions, math.prod(weight.shape[1:]), bias)
    return forward._replace(kind="conv_backward", matrix=forward.matrix * (of_input + of_weight))


def _attention(call: Call) -> Cost:
    query, key, value = call.tensor("query"), call.tensor("key"), call.tensor("value")
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return op_costs.attention(scores, scores * (query.shape[-1] + value.shape[-1]))


def _attention_backward(call: Call) -> Cost:
    """Five products: the scores are computed again."""
    query, key, value = call.tensor("query"), call.tensor("key"), call.tensor("value")
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    products = scores * (3 * query.shape[-1] + 2 * value.shape[-1])
    return op_costs.attention(scores, products, "attention_backward")


def _recurrent(kind: str) -> Rule:
    def rule(call: Call) -> Cost:
        weights = [w for w in tensors_in([call.args.get("weights", call.operands[1:])]) if len(w.shape) == 2]
        steps = call.x.elements // max(call.x.shape[-1], 1)
        cells = steps * sum(weight.shape[0] for weight in weights[::2]) // op_costs.CELLS[kind].gates
        elements = sum(weight.elements for weight in weights)
        biases = 2 * bool(call.args.get("has_biases"))
        return op_costs.recurrent(kind, steps, elements, cells, biases)

    return rule


def _recurrent_backward(kind: str) -> Rule:
    """The layer once more, and two products for each of its own."""
    forward = _recurrent(kind)

    def rule(call: Call) -> Cost:
        args = {name: call.args[name] for name in ("data", "weights", "has_biases")}
        once = forward(Call(kind, args, call.results))
        return once._replace(kind=call.op, matrix=3 * once.matrix, vector=3 * once.vector)

    return rule


def _batchnorm(call: Call) -> Cost:
    training = bool(call.args.get("training", "no_training" not in call.op))
    return op_costs.each("batchnorm_training" if training else "batchnorm", call.size)


def _norm(kind: str) -> Rule:
    def rule(call: Call) -> Cost:
        shape = call.x.shape
        if "normalized_shape" in call.args:
            rows = call.x.elements // max(math.prod(call.args["normalized_shape"]), 1)
        else:  # by groups of channels, or by each of them
            rows = shape[0] * int(call.args.get("num_groups", call.args.get("group", shape[1])))
        return op_costs.normalization(kind, call.size, rows)

    return rule


def _pool(call: Call) -> Cost:
    if "kernel_size" in call.args:
        axes = int(call.op.partition("d")[0][-1])
        kernel = call.args["kernel_size"]
        sides = [kernel] if isinstance(kernel, int) else list(kernel)
        return op_costs.pool(call.size, math.prod(sides * axes if len(sides) == 1 else sides))
    return op_costs.pool(max(call.x.elements, call.size), window=1)  # adaptive: each input once


def _pool_backward(call: Call) -> Cost:
    kernel = list(call.args["kernel_size"])
    window = math.prod(kernel * 2 if len(kernel) == 1 else kernel)
    return op_costs.pool(call.x.elements, window)._replace(kind="avg_pool2d_backward")


def _resize(taps: int) -> Rule:
    return lambda call: op_costs.resample("resize", call.size, taps, axes=len(call.x.shape) - 2)


def _power(call: Call) -> Cost:
    exponent = call.args.get("exponent")
    if isinstance(exponent, int | float) and exponent in (1, 2, 3, 4):
        return op_costs.integer_power(int(exponent), call.size)
    return op_costs.each("pow", call.size)


def _convert(call: Call) -> Cost:
    same = call.x.dtype == call.results[0].dtype
    return op_costs.each("copy" if same else "convert", call.size)


def _sort(call: Call) -> Cost:
    axis = call.args.get("dim")
    length = call.x.shape[axis if isinstance(axis, int) else -1] if call.x.shape else 1
    return Cost("sort", vector=op_costs.comparisons(call.x.elements, length))


def _top_k(call: Call) -> Cost:
    return Cost("topk", vector=op_costs.comparisons(call.x.elements, int(call.args["k"])))


def _scatter(combines: bool = False) -> Rule:
    """Of its first operand, a part is replaced by (or combined with) the last tensor operand."""

    def rule(call: Call) -> Cost:
        new = call.operands[-1]
        size = call.results[0].bytes if len(call.operands) == 1 else new.bytes
        return op_costs.scatter(new.elements, size, combines=combines or bool(call.args.get("accumulate")))

    return rule


def _pick(call: Call) -> Cost:
    """The loss of a class: one number of each row."""
    return op_costs.move("gather")._replace(vector=2 * call.tensor("target").elements)


def _pick_backward(call: Call) -> Cost:
    """Zeros, and one number of each row. The scores only give the shape."""
    return op_costs.scatter(call.tensor("target").elements, combines=True)


_SAME_WORD = """
abs add ceil clamp div floor mul neg relu round sign sub
acos acosh asin asinh atan atan2 atanh cos cosh erf exp expm1 log log1p rsqrt sin sinh sqrt tan tanh
addcdiv addcmul celu elu gelu glu hardsigmoid hardswish lerp logit mish nan_to_num prelu selu softplus
elu_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward
log_sigmoid_backward max_pool2d_with_indices_backward mse_loss_backward native_dropout_backward
sigmoid_backward silu_backward smooth_l1_loss_backward softplus_backward tanh_backward threshold_backward
upsample_bilinear2d_backward upsample_nearest2d_backward
"""
_EACH = {name: name for name in _SAME_WORD.split()} | op_costs.words_by_name(
    {
        "adaptive_avg_pool2d_backward": "_adaptive_avg_pool2d_backward",
        "and": "bitwise_and logical_and",
        "clamp": "hardtanh relu6",
        "compare": "eq ge gt isinf isnan le logical_eq lt ne",
        "dequantizelinear": "dequantize_per_channel dequantize_per_tensor",
        "div": "floor_divide reciprocal true_divide",
        "erf": "erfc",
        "exp": "exp2",
        "leakyrelu": "leaky_relu",
        "log": "log10 log2",
        "log_softmax_backward_data": "_log_softmax_backward_data cross_entropy_backward",
        "logistic": "sigmoid",
        "max": "clamp_min maximum",
        "min": "clamp_max minimum",
        "mul": "outer square",
        "not": "bitwise_not logical_not",
        "or": "bitwise_or logical_or",
        "quantize": "quantize_per_channel quantize_per_tensor",
        "rem": "fmod remainder",
        "round": "trunc",
        "select": "masked_fill threshold tril triu where",
        "sign": "copysign",
        "softmax": "_log_softmax _safe_softmax _softmax log_softmax softmax",
        "softmax_backward_data": "_softmax_backward_data",
        "sub": "rsub",
        "swish": "silu",
        "xor": "bitwise_xor logical_xor",
    }
)
_REDUCTIONS = op_costs.words_by_name(
    {
        "argmax": "argmax",
        "argmin": "argmin",
        "cumprod": "cumprod",
        "cumsum": "cumsum",
        "deviation": "std",
        "log_sum_exp": "logsumexp",
        "mean": "mean",
        "nonzero": "nonzero",
        "norm": "linalg_vector_norm norm",
        "reduce_and": "all",
        "reduce_max": "amax",
        "reduce_min": "amin",
        "reduce_mul": "prod",
        "reduce_or": "any",
        "reduce_sum": "sum",
        "variance": "var var_mean",
    }
)
_MOVES = op_costs.words_by_name(
    {
        "broadcast": "_empty_dim_order empty expand eye full ones repeat repeat_interleave scalar_tensor tile zeros",
        "concat": "cat hstack stack vstack",
        "copy": "_unsafe_view alias detach flatten reshape squeeze unsqueeze view",  # where they are no views
        "gather": "embedding gather index index_select take take_along_dim",
        "iota": "arange linspace",
        "pad": "constant_pad_nd pad reflection_pad2d replication_pad2d",
        "reverse": "flip roll",
        "scatter": "select_backward slice_backward",
        "slice": "narrow select slice",
        "split": "chunk split split_with_sizes unbind",
        "transpose": "channel_shuffle permute pixel_shuffle pixel_unshuffle t transpose",
    }
)
_LOSSES = "binary_cross_entropy_with_logits cross_entropy_loss l1_loss mse_loss smooth_l1_loss"


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: dict[str, Rule] = {
    **{name: _each(word) for name, word in _EACH.items()},
    **{name: _reduction(word) for name, word in _REDUCTIONS.items()},
    **{name: _move(kind) for name, kind in _MOVES.items()},
    **{name: _loss(name) for name in _LOSSES.split()},
    "max": _either("max"),
    "min": _either("min"),
    "pow": _power,
    **_named("_clone_dim_order _to_copy _to_dim_order_copy clone contiguous lift_fresh_copy to", _convert),
    "copy": lambda call: op_costs.each("copy", call.size)._replace(unread=True),
    **_named("im2col unfold", lambda call: Cost("gather")),
    "stay": lambda call: Cost("stay"),
    **_named(
        "empty_like fill full_like new_full new_ones new_zeros ones_like zeros_like",
        lambda call: Cost("broadcast", unread=True),
    ),
    **_named(
        "_index_put_impl as_strided_scatter diagonal_scatter index_copy index_put masked_scatter scatter "
        "select_scatter slice_scatter",
        _scatter(),
    ),
    **_named("index_add scatter_add scatter_reduce", _scatter(combines=True)),
    **_named("addbmm addmm addmv baddbmm bmm dot linear matmul mm mv", _product),
    "sliced_products": _sliced_products,
    "einsum": _einsum,
    **_named(
        "_convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution",
        _conv,
    ),
    "convolution_backward": _conv_backward,
    **_named(
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "scaled_dot_product_attention",
        _attention,
    ),
    **_named(
        "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward",
        _attention_backward,
    ),
    "gru": _recurrent("gru"),
    "gru_backward": _recurrent_backward("gru"),
    "lstm": _recurrent("lstm"),
    "lstm_backward": _recurrent_backward("lstm"),
    **_named("rnn_relu rnn_tanh", _recurrent("rnn")),
    **_named("rnn_relu_backward rnn_tanh_backward", _recurrent_backward("rnn")),
    **_named(
        "_batch_norm_no_update _batch_norm_with_update_functional _native_batch_norm_legit "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm "
        "cudnn_batch_norm native_batch_norm",
        _batchnorm,
    ),
    **_named("layer_norm native_layer_norm", _norm("layernorm")),
    **_named("group_norm native_group_norm", _norm("groupnormalization")),
    "instance_norm": _norm("instancenormalization"),
    **_named("_fused_rms_norm rms_norm", _norm("rmsnormalization")),
    **_named("batch_norm_backward native_batch_norm_backward", _norm_backward("batchnorm_backward")),
    "cudnn_batch_norm_backward": _norm_backward("batchnorm_backward", operand=0),
    "native_layer_norm_backward": _norm_backward("layernorm_backward"),
    "native_group_norm_backward": _norm_backward("groupnormalization_backward"),
    "_fused_rms_norm_backward": _norm_backward("rmsnormalization_backward"),
    **_named(
        "_adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d "
        "max_pool2d_with_indices max_pool3d max_pool3d_with_indices",
        _pool,
    ),
    "avg_pool2d_backward": _pool_backward,
    **_named("upsample_nearest1d upsample_nearest2d upsample_nearest3d", _resize(op_costs.TAPS["nearest"])),
    **_named(
        "grid_sampler_2d upsample_bilinear2d upsample_linear1d upsample_trilinear3d",
        _resize(op_costs.TAPS["linear"]),
    ),
    "upsample_bicubic2d": _resize(op_costs.TAPS["cubic"]),
    "sort": _sort,
    "topk": _top_k,
    **_named(
        "bernoulli multinomial native_dropout normal rand rand_like randint randn randn_like uniform",
        lambda call: op_costs.random(call.size),
    ),
    **_named("nll_loss nll_loss2d_forward nll_loss_forward nll_loss_nd", _pick),
    **_named("nll_loss2d_backward nll_loss_backward", _pick_backward),
    "embedding_dense_backward": lambda call: op_costs.scatter(call.x.elements, combines=True),
}
