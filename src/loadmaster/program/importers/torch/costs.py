"""What ATen ops do and cost: kind, flops by class, bytes really read.

The same rules serve graphs of torch.export at every level and ExecuTorch's lowered ones, whose
names end in `_copy` where a view had to become a copy. Counts are per element of the result unless
said otherwise; composites count as in the ONNX importer:

- batch norm: 2 vector (scale, shift) in inference, 8 in training.
- layer, group and instance norm: 7 vector and one evaluation per row; RMS norm: 4.
- softmax, log-softmax: 1 evaluation and 3 vector. pool: the window's elements.
- attention: both products; 1 evaluation and 5 vector per score (scale, mask, softmax).
- lstm, gru: per cell and step 5, 3 evaluations, and vector for gates and biases.
- sort, top-k: n log2 n along the axis. A bias is 1 vector more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from loadmaster.program.importers.torch.calls import Call, Cost

# ----------------------------------------------------------------------------
# What the ops of a training step cost: losses, and the backward of layers.
#
# Counts follow from those of the forward ops: a product's backward is two products of its size (and
# attention's five, as it computes the scores again); per element of the result unless said otherwise.

Rule = Callable[[Call], Cost]

_BACKWARD_PER_ELEMENT = {
    "elu_backward": (3, 1),
    "gelu_backward": (6, 2),
    "hardsigmoid_backward": (3, 0),
    "hardswish_backward": (6, 0),
    "hardtanh_backward": (2, 0),
    "leaky_relu_backward": (2, 0),
    "log_sigmoid_backward": (3, 1),
    "mse_loss_backward": (3, 0),
    "native_dropout_backward": (2, 0),
    "sigmoid_backward": (3, 0),
    "silu_backward": (5, 1),
    "smooth_l1_loss_backward": (4, 0),
    "softplus_backward": (3, 1),
    "tanh_backward": (3, 0),
    "threshold_backward": (1, 0),
    "_softmax_backward_data": (4, 0),
    "_log_softmax_backward_data": (3, 1),
    "max_pool2d_with_indices_backward": (1, 0),
    "_adaptive_avg_pool2d_backward": (1, 0),
    "upsample_nearest2d_backward": (1, 0),
    "upsample_bilinear2d_backward": (8, 0),
}
"""Vector flops and evaluations per element of the (first) result."""


def _each_backward(vector: int, evaluations: int) -> Rule:
    return lambda call: Cost(call.op.strip("_"), 0, vector * call.size, evaluations * call.size)


def _conv_backward(call: Call) -> Cost:
    grad, weight = call.tensor("grad_output"), call.tensor("weight")
    pixels = call.tensor("input").elements if call.args.get("transposed") else grad.elements
    wanted = list(call.args["output_mask"])  # of the input, the weight, the bias
    products = 2 * pixels * math.prod(weight.shape[1:])
    bias = grad.elements * bool(wanted[2])
    return Cost("conv_backward", products * sum(map(bool, wanted[:2])), bias, typed_by_operand=True)


def _attention_backward(call: Call) -> Cost:
    query, key, value = call.tensor("query"), call.tensor("key"), call.tensor("value")
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    matrix = 2 * scores * (3 * query.shape[-1] + 2 * value.shape[-1])
    return Cost("attention_backward", matrix, 9 * scores, scores, typed_by_operand=True)


def _norm_backward(kind: str, vector: int) -> Rule:
    """Per element of the input, which is the second operand."""
    return lambda call: Cost(kind, vector=vector * call.operands[1].elements)


def _embedding(call: Call) -> Cost:
    return Cost("scatter", vector=call.x.elements)


def _window(call: Call) -> Cost:
    kernel = list(call.args["kernel_size"])
    window = math.prod(kernel * 2 if len(kernel) == 1 else kernel)
    return Cost("avg_pool2d_backward", vector=window * call.x.elements)


def _loss(vector: int, evaluations: int = 0) -> Rule:
    """Per element of the first operand."""

    def rule(call: Call) -> Cost:
        n = call.x.elements
        return Cost("loss", 0, vector * n, evaluations * n, typed_by_operand=True)

    return rule


def _picked(call: Call) -> Cost:
    """The loss of a class: one number of each row."""
    return Cost("gather", vector=2 * call.tensor("target").elements, partial=True)


def _spread(call: Call) -> Cost:
    """Its backward: zeros, and one number of each row. The scores only tell the shape."""
    return Cost("scatter", vector=call.tensor("target").elements)


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


BACKWARD_RULES: dict[str, Rule] = {
    **{name: _each_backward(*counts) for name, counts in _BACKWARD_PER_ELEMENT.items()},
    "convolution_backward": _conv_backward,
    "embedding_dense_backward": _embedding,
    "avg_pool2d_backward": _window,
    **_named(
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_cudnn_attention_backward",
        _attention_backward,
    ),
    **_named("native_batch_norm_backward batch_norm_backward", _norm_backward("batchnorm_backward", 10)),
    "cudnn_batch_norm_backward": lambda call: Cost("batchnorm_backward", vector=10 * call.x.elements),
    "native_layer_norm_backward": _norm_backward("layernorm_backward", 13),
    "native_group_norm_backward": _norm_backward("groupnormalization_backward", 13),
    "_fused_rms_norm_backward": _norm_backward("rmsnormalization_backward", 9),
    **_named("nll_loss nll_loss_forward nll_loss2d_forward nll_loss_nd", _picked),
    **_named("nll_loss_backward nll_loss2d_backward", _spread),
    "cross_entropy_loss": _loss(3, 1),
    "mse_loss": _loss(3),
    "l1_loss": _loss(3),
    "smooth_l1_loss": _loss(4),
    "binary_cross_entropy_with_logits": _loss(4, 2),
    **_named("slice_backward select_backward", lambda call: Cost("scatter")),
}


RANDOM_FLOPS = 50
"""Vector flops per random number, as in the JAX importer."""


def cost_of(call: Call) -> Cost | None:
    """What the call does, or None for an op that nobody described."""
    rule = _RULES.get(call.op) or _RULES.get(call.op.removesuffix("_copy"))
    return None if rule is None else rule(call)


def estimate(call: Call) -> Cost:
    """What such an op gets: one vector flop per element of its results."""
    return Cost(f"unknown:{call.op}", vector=sum(result.elements for result in call.results))


def _each(kind: str, vector: int = 1, transcendental: int = 0, *, by_operand: bool = False) -> Rule:
    def rule(call: Call) -> Cost:
        n = call.size
        return Cost(kind, 0, vector * n, transcendental * n, typed_by_operand=by_operand)

    return rule


def _reduction(
    kind: str, vector: int = 1, each: int = 0, end_vector: int = 0, end: int = 0, *, by_operand: bool = False
) -> Rule:
    """`vector` and `each` (evaluations) per element of the input, `end…` per element of the result."""

    def rule(call: Call) -> Cost:
        n, m = call.x.elements, call.size
        return Cost(kind, 0, vector * n + end_vector * m, each * n + end * m, typed_by_operand=by_operand)

    return rule


def _either(kind: str) -> Rule:
    """`max` and `min`: of two tensors, or along a dimension."""

    def rule(call: Call) -> Cost:
        pair = len(call.operands) == 2
        return Cost(kind, vector=call.size) if pair else Cost(f"reduce_{kind}", vector=call.x.elements)

    return rule


def _move(kind: str, *, partial: bool = False, unread: bool = False) -> Rule:
    return lambda call: Cost(kind, partial=partial, unread=unread)


def _product(call: Call) -> Cost:
    """Products of matrices; `addmm` and its kin add their first operand."""
    added = call.op.startswith(("add", "badd"))
    a = call.operands[1] if added else call.x
    depth = a.shape[-1] if a.shape else 1
    groups = a.shape[0] if call.op == "addbmm" else 1  # products that are summed up
    bias = added or call.has("bias")
    return Cost("matmul", 2 * call.size * depth * groups, bias * call.size, typed_by_operand=True)


def _einsum(call: Call) -> Cost:
    terms = str(call.args["equation"]).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, call.operands, strict=True):
        sizes |= dict(zip(term.replace(".", ""), operand.shape[-len(term.replace(".", "")) :], strict=False))
    products = max(math.prod(sizes.values()), call.size)
    if len(terms) == 1:
        return Cost("reduce_sum", vector=call.x.elements)
    return Cost("matmul", 2 * products * (len(terms) - 1), typed_by_operand=True)


def _conv(call: Call) -> Cost:
    transposed = "transpose" in call.op or bool(call.args.get("transposed"))
    # One product for each result (transposed: each input), kernel position and channel of the group.
    pixels = call.x.elements if transposed else call.size
    each = math.prod(call.tensor("weight").shape[1:])
    return Cost("conv", 2 * pixels * each, call.has("bias") * call.size, typed_by_operand=True)


def _attention(call: Call) -> Cost:
    query, key, value = call.tensor("query"), call.tensor("key"), call.tensor("value")
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    matrix = 2 * scores * (query.shape[-1] + value.shape[-1])
    return Cost("attention", matrix, 5 * scores, scores)


def _recurrent(gates: int, evaluations: int, vector: int) -> Rule:
    def rule(call: Call) -> Cost:
        weights = [w for w in call.operands[1:] if len(w.shape) == 2]
        steps = call.x.elements // max(call.x.shape[-1], 1)
        matrix = 2 * steps * sum(weight.elements for weight in weights)
        cells = steps * sum(weight.shape[0] for weight in weights[::2]) // gates
        bias = 2 * gates * bool(call.args.get("has_biases"))
        return Cost(call.op, matrix, cells * (vector + bias), cells * evaluations)

    return rule


def _batchnorm(call: Call) -> Cost:
    training = bool(call.args.get("training", "no_training" not in call.op))
    return Cost("batchnorm", vector=(8 if training else 2) * call.size)


def _norm(kind: str, vector: int) -> Rule:
    def rule(call: Call) -> Cost:
        shape = call.x.shape
        if "normalized_shape" in call.args:
            rows = call.x.elements // max(math.prod(call.args["normalized_shape"]), 1)
        else:  # by groups of channels, or by each of them
            rows = shape[0] * int(call.args.get("num_groups", call.args.get("group", shape[1])))
        return Cost(kind, vector=vector * call.size, transcendental=rows)

    return rule


def _pool(call: Call) -> Cost:
    if "kernel_size" in call.args:
        axes = int(call.op.partition("d")[0][-1])
        kernel = call.args["kernel_size"]
        sides = [kernel] if isinstance(kernel, int) else list(kernel)
        window = math.prod(sides * axes if len(sides) == 1 else sides)
        return Cost("pool", vector=window * call.size)
    return Cost("pool", vector=max(call.x.elements, call.size))  # adaptive: each input once


def _resize(taps: int) -> Rule:
    def rule(call: Call) -> Cost:
        axes = len(call.x.shape) - 2
        return Cost("resize", vector=2 * taps**axes * call.size if taps > 1 else 0)

    return rule


def _power(call: Call) -> Cost:
    exponent = call.args.get("exponent")
    if isinstance(exponent, int | float) and exponent in (1, 2, 3, 4):
        return Cost("mul", vector=max(1, int(exponent) - 1) * call.size)
    return Cost("pow", transcendental=call.size)


def _convert(call: Call) -> Cost:
    same = call.x.dtype == call.results[0].dtype
    return Cost("copy" if same else "convert", vector=call.size)


def _sorted(kind: str) -> Rule:
    def rule(call: Call) -> Cost:
        axis = call.args.get("dim")
        length = call.x.shape[axis if isinstance(axis, int) else -1] if call.x.shape else 1
        depth = int(call.args["k"]) if kind == "topk" else length
        steps = math.ceil(math.log2(max(depth, 2)))
        return Cost(kind, vector=call.x.elements * steps, typed_by_operand=True)

    return rule


def _scatter(combines: bool = False) -> Rule:
    """Of its first operand, a part is replaced by (or combined with) the last tensor operand."""

    def rule(call: Call) -> Cost:
        new = call.operands[-1]
        combined = combines or bool(call.args.get("accumulate"))
        update = call.results[0].bytes if len(call.operands) == 1 else new.bytes
        over = (update if combined else 0, update)
        return Cost("scatter", vector=new.elements if combined else 0, over=over)

    return rule


def _random(call: Call) -> Cost:
    return Cost("random", vector=RANDOM_FLOPS * call.size)


def _layers() -> dict[str, Rule]:
    """Products and whole layers."""
    return {
        **_named("addbmm addmm addmv baddbmm bmm dot linear matmul mm mv", _product),
        **_named(
            "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
            "_convolution",
            _conv,
        ),
        "einsum": _einsum,
        "scaled_dot_product_attention": _attention,
        **_named(
            "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
            "_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention",
            _attention,
        ),
        "lstm": _recurrent(4, 5, 4),
        "gru": _recurrent(3, 3, 5),
        **_named(
            "batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm "
            "_native_batch_norm_legit_no_training _batch_norm_no_update "
            "_native_batch_norm_legit_functional _batch_norm_with_update_functional",
            _batchnorm,
        ),
        **_named("layer_norm native_layer_norm", _norm("layernorm", 7)),
        **_named("group_norm native_group_norm", _norm("groupnormalization", 7)),
        "instance_norm": _norm("instancenormalization", 7),
        **_named("rms_norm _fused_rms_norm", _norm("rmsnormalization", 4)),
        **_named("softmax _softmax log_softmax _log_softmax _safe_softmax", _each("softmax", 3, 1)),
        **_named(
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
            "adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d max_pool1d "
            "max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices",
            _pool,
        ),
        **_named("upsample_nearest1d upsample_nearest2d upsample_nearest3d", _resize(1)),
        **_named("upsample_linear1d upsample_bilinear2d upsample_trilinear3d grid_sampler_2d", _resize(2)),
        "upsample_bicubic2d": _resize(4),
        "sort": _sorted("sort"),
        "topk": _sorted("topk"),
        **_named(
            "bernoulli multinomial native_dropout normal rand rand_like randint randn randn_like uniform",
            _random,
        ),
    }


_PER_ELEMENT = {
    "bitwise_not": ("not", 1, 0),
    "celu": ("celu", 3, 1),
    "dequantize_per_channel": ("dequantizelinear", 2, 0),
    "dequantize_per_tensor": ("dequantizelinear", 2, 0),
    "elu": ("elu", 2, 1),
    "erfc": ("erf", 0, 1),
    "exp2": ("exp", 0, 1),
    "gelu": ("gelu", 0, 1),
    "glu": ("glu", 1, 1),
    "hardsigmoid": ("hardsigmoid", 4, 0),
    "hardswish": ("hardswish", 5, 0),
    "hardtanh": ("clamp", 1, 0),
    "leaky_relu": ("leakyrelu", 2, 0),
    "lerp": ("lerp", 3, 0),
    "log10": ("log", 0, 1),
    "log2": ("log", 0, 1),
    "logical_not": ("not", 1, 0),
    "logit": ("logit", 3, 1),
    "addcdiv": ("addcdiv", 3, 0),
    "addcmul": ("addcmul", 3, 0),
    "masked_fill": ("select", 1, 0),
    "mish": ("mish", 1, 2),
    "prelu": ("prelu", 2, 0),
    "quantize_per_channel": ("quantize", 1, 0),
    "quantize_per_tensor": ("quantize", 1, 0),
    "reciprocal": ("div", 1, 0),
    "relu6": ("clamp", 1, 0),
    "rsub": ("sub", 1, 0),
    "selu": ("selu", 3, 1),
    "sigmoid": ("logistic", 0, 1),
    "silu": ("swish", 1, 1),
    "softplus": ("softplus", 0, 1),
    "square": ("mul", 1, 0),
    "threshold": ("select", 1, 0),
    "tril": ("select", 1, 0),
    "triu": ("select", 1, 0),
    "where": ("select", 1, 0),
    "clamp_max": ("min", 1, 0),
    "clamp_min": ("max", 1, 0),
    "copysign": ("sign", 1, 0),
    "trunc": ("round", 1, 0),
    "floor_divide": ("div", 1, 0),
    "fmod": ("rem", 1, 0),
    "remainder": ("rem", 1, 0),
    "nan_to_num": ("select", 3, 0),
    "outer": ("mul", 1, 0),
    "repeat_interleave": ("broadcast", 0, 0),
}
"""Kind, vector flops and evaluations per element of the result."""


def _elementwise() -> dict[str, Rule]:
    pairs = {
        "bitwise_and": "and",
        "bitwise_or": "or",
        "bitwise_xor": "xor",
        "logical_and": "and",
        "logical_or": "or",
        "logical_xor": "xor",
        "maximum": "max",
        "minimum": "min",
        "true_divide": "div",
    }
    same = "abs add ceil clamp div floor mul neg relu round sign sub"
    evaluated = (
        "acos acosh asin asinh atan atan2 atanh cos cosh erf exp expm1 log log1p rsqrt sin sinh sqrt tan tanh"
    )
    return {
        **{name: _each(name) for name in same.split()},
        **{name: _each(name, 0, 1) for name in evaluated.split()},
        **{name: _each(kind) for name, kind in pairs.items()},
        **{name: _each(*counts) for name, counts in _PER_ELEMENT.items()},
        **_named("eq ge gt isinf isnan le lt ne logical_eq", _each("compare", by_operand=True)),
        "pow": _power,
        **_named(
            "_to_copy to clone contiguous lift_fresh_copy _to_dim_order_copy _clone_dim_order", _convert
        ),
        "copy": lambda call: Cost("copy", vector=call.size, unread=True),
    }


def _moves_and_reductions() -> dict[str, Rule]:
    return {
        **_named("cat stack hstack vstack", _move("concat")),
        **_named("embedding index index_select gather take take_along_dim", _move("gather", partial=True)),
        **_named("slice select narrow", _move("slice", partial=True)),
        **_named("split split_with_sizes unbind chunk", _move("split", partial=True)),
        **_named("permute transpose t pixel_shuffle pixel_unshuffle channel_shuffle", _move("transpose")),
        **_named("view reshape flatten squeeze unsqueeze alias detach _unsafe_view", _move("copy")),
        **_named("expand repeat tile", _move("broadcast")),
        **_named("constant_pad_nd pad reflection_pad2d replication_pad2d", _move("pad")),
        **_named("flip roll", _move("reverse")),
        "unfold": _move("gather"),
        "im2col": _move("gather"),
        **_named("arange linspace", _move("iota")),
        **_named("full zeros ones scalar_tensor empty _empty_dim_order eye", _move("broadcast")),
        **_named(
            "full_like zeros_like ones_like empty_like new_full new_zeros new_ones fill",
            _move("broadcast", unread=True),
        ),
        **_named(
            "scatter index_put _index_put_impl index_copy select_scatter slice_scatter diagonal_scatter "
            "masked_scatter as_strided_scatter",
            _scatter(),
        ),
        **_named("scatter_add scatter_reduce index_add", _scatter(combines=True)),
        **_named("argmax", _reduction("argmax", by_operand=True)),
        **_named("argmin", _reduction("argmin", by_operand=True)),
        "cumsum": _reduction("cumsum"),
        "cumprod": _reduction("cumprod"),
        "nonzero": _reduction("nonzero"),
        "sum": _reduction("reduce_sum"),
        "mean": _reduction("reduce_sum", end_vector=1),
        "amax": _reduction("reduce_max"),
        "amin": _reduction("reduce_min"),
        "max": _either("max"),
        "min": _either("min"),
        "prod": _reduction("reduce_mul"),
        "any": _reduction("reduce_or"),
        "all": _reduction("reduce_and"),
        "var": _reduction("reduce_sum", 4, end_vector=1),
        "var_mean": _reduction("reduce_sum", 4, end_vector=1),
        "std": _reduction("reduce_sum", 4, end_vector=1, end=1),
        **_named("norm linalg_vector_norm", _reduction("reduce_sum", 2, end=1)),
        "logsumexp": _reduction("reduce_sum", 2, each=1, end=1),
    }


_RULES: dict[str, Rule] = {**_layers(), **_elementwise(), **_moves_and_reductions(), **BACKWARD_RULES}
