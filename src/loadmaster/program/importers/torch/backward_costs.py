"""What the ops of a training step cost: losses, and the backward of layers.

Counts follow from those of the forward ops: a product's backward is two products of its size (and
attention's five, as it computes the scores again); per element of the result unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from loadmaster.program.importers.torch.calls import Call, Cost

Rule = Callable[[Call], Cost]

_PER_ELEMENT = {
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


def _each(vector: int, evaluations: int) -> Rule:
    return lambda call: Cost(call.op.strip("_"), 0, vector * call.size, evaluations * call.size)


def _conv(call: Call) -> Cost:
    grad, weight = call.tensor("grad_output"), call.tensor("weight")
    pixels = call.tensor("input").elements if call.args.get("transposed") else grad.elements
    wanted = list(call.args["output_mask"])  # of the input, the weight, the bias
    products = 2 * pixels * math.prod(weight.shape[1:])
    bias = grad.elements * bool(wanted[2])
    return Cost("conv_backward", products * sum(map(bool, wanted[:2])), bias, typed_by_operand=True)


def _attention(call: Call) -> Cost:
    query, key, value = call.tensor("query"), call.tensor("key"), call.tensor("value")
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    matrix = 2 * scores * (3 * query.shape[-1] + 2 * value.shape[-1])
    return Cost("attention_backward", matrix, 9 * scores, scores, typed_by_operand=True)


def _norm(kind: str, vector: int) -> Rule:
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
    **{name: _each(*counts) for name, counts in _PER_ELEMENT.items()},
    "convolution_backward": _conv,
    "embedding_dense_backward": _embedding,
    "avg_pool2d_backward": _window,
    **_named(
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_cudnn_attention_backward",
        _attention,
    ),
    **_named("native_batch_norm_backward batch_norm_backward", _norm("batchnorm_backward", 10)),
    "cudnn_batch_norm_backward": lambda call: Cost("batchnorm_backward", vector=10 * call.x.elements),
    "native_layer_norm_backward": _norm("layernorm_backward", 13),
    "native_group_norm_backward": _norm("groupnormalization_backward", 13),
    "_fused_rms_norm_backward": _norm("rmsnormalization_backward", 9),
    **_named("nll_loss nll_loss_forward nll_loss2d_forward nll_loss_nd", _picked),
    **_named("nll_loss_backward nll_loss2d_backward", _spread),
    "cross_entropy_loss": _loss(3, 1),
    "mse_loss": _loss(3),
    "l1_loss": _loss(3),
    "smooth_l1_loss": _loss(4),
    "binary_cross_entropy_with_logits": _loss(4, 2),
    **_named("slice_backward select_backward", lambda call: Cost("scatter")),
}
