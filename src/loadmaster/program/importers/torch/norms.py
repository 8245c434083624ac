"""Norms as kernels take them: batch norms of training steps with the module's own, group norms of tensors that lie right.

Traced, a batch norm is always PyTorch's own kernel. Called as it is, a module on a GPU mostly gets cuDNN's, which adds in
another order: behind fifty layers gradients have few digits in common.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

from loadmaster.errors import require
from loadmaster.program.importers.torch.graph import is_getitem, op_name

_WEIGHT = {
    "native_layer_norm": 2,
    "native_group_norm": 1,
    "native_batch_norm": 1,
    "_native_batch_norm_legit": 1,
    "_native_batch_norm_legit_functional": 1,
}
"""Norms, and which of their arguments the weight is."""
_RESERVE = 3
"""Which of the results is for the backward pass alone; those behind it come one earlier in the traced call."""


def type_statistics(graph: Any) -> None:
    """On a CPU kernels keep mean and deviation in the weight's type, where the tracer says the input's: half the bytes
    under autocast."""
    torch = require("torch", "torch")
    for node in graph.nodes:
        at = _WEIGHT.get(op_name(node.target)) if node.op == "call_function" else None
        weight = None if at is None or len(node.args) <= at else node.args[at]
        if weight is None or node.meta["val"][0].device.type != "cpu":
            continue
        dtype, values = weight.meta["val"].dtype, list(node.meta["val"])
        if dtype == values[0].dtype:
            continue
        values[1:3] = [torch.empty_like(each, dtype=dtype) for each in values[1:3]]
        node.meta["val"] = tuple(values)
        for part in node.users:
            if is_getitem(part) and part.args[1] in (1, 2):
                part.meta["val"] = values[part.args[1]]


def restore_norms(graph: Any) -> None:
    """Let batch norms that have another kernel when they are called as they are have that one, and so their backward
    calls."""
    torch = require("torch", "torch")
    for node in list(graph.nodes):
        if (
            node.op == "call_function"
            and node.target is torch.ops.aten._native_batch_norm_legit_functional.default
        ):
            backward = _backward_calls(node)
            if backward is not None and _has_other_kernel(node):
                _restore(graph, node, backward)


def _has_other_kernel(node: Any) -> bool:
    """Whether PyTorch would choose cuDNN for a batch norm."""
    torch = require("torch", "torch")
    values = [each.meta["val"] if hasattr(each, "meta") else each for each in node.args]
    *tensors, training, _, eps = values
    if not training or any(each is None for each in tensors):
        return False
    chosen = torch._C._select_batch_norm_backend(*tensors, training, eps)
    return bool(chosen == torch._C._BatchNormBackend.Cudnn)


def _backward_calls(node: Any) -> list[Any] | None:
    """The calls that read what a batch norm keeps for them; None: something else does."""
    torch = require("torch", "torch")
    found: dict[Any, None] = {}
    for part in node.users:
        if not is_getitem(part):
            return None
        if part.args[1] in (1, 2):
            found.update(dict.fromkeys(part.users))
    target = torch.ops.aten.native_batch_norm_backward.default
    plain = all(
        each.target is target and each.args[1] is node.args[0] and each.args[2] is not None and each.args[7]
        for each in found
    )
    return list(found) if plain else None


def _restore(graph: Any, node: Any, backward: list[Any]) -> None:
    torch = require("torch", "torch")
    aten = torch.ops.aten
    data, weight, bias, mean, var, _, momentum, eps = node.args
    with graph.inserting_before(node):
        made = graph.call_function(
            aten._batch_norm_with_update_functional.default, (data, weight, bias, mean, var, momentum, eps)
        )
    values = list(node.meta["val"])
    given = [each.meta["val"] for each in (data, weight, bias, mean, var)]
    reserve = made.target(*given, momentum, eps)[_RESERVE]
    made.meta = {**node.meta, "val": (*values[:_RESERVE], reserve, *values[_RESERVE:])}
    for part in list(node.users):
        at = part.args[1]
        part.args = (made, at if at < _RESERVE else at + 1)
    if backward:
        with graph.inserting_after(made):
            kept = graph.call_function(operator.getitem, (made, _RESERVE))
        kept.meta = {**node.meta, "val": reserve}
        for each in backward:
            each.target = aten.batch_norm_backward.default
            each.args = (*each.args, kept)
    graph.erase_node(node)


_NORMED = {"native_group_norm": 1, "native_group_norm_backward": 2}
"""How many of their arguments lie as one of PyTorch's memory formats."""


def lay_out_groups(graph: Any, backward: Collection[str]) -> frozenset[str]:
    """Let group norms on the CPU have what lies as it was traced. Axes of one element may have any stride, and views
    give them others there than where they are traced; the kernels refuse those. `backward`: the nodes of the backward
    call; gives the names of more."""
    torch = require("torch", "torch")
    from torch._prims_common import suggest_memory_format

    laid: dict[Any, Any] = {}
    late: set[str] = set()
    for node in list(graph.nodes):
        count = _NORMED.get(op_name(node.target), 0) if node.op == "call_function" else 0
        for source in node.args[:count]:
            value = source.meta["val"]
            if value.device.type != "cpu" or 1 not in value.shape or value.is_contiguous():
                continue
            if source not in laid:
                options = {"memory_format": suggest_memory_format(value)}
                with graph.inserting_before(node):
                    made = graph.call_function(torch.ops.aten.clone.default, (source,), options)
                made.meta = {**source.meta, "val": value.clone(**options)}
                laid[source] = made
                if node.name in backward:
                    late.add(made.name)
            node.replace_input_with(source, laid[source])
    return frozenset(late)
