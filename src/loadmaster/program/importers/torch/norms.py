"""Batch norms of training steps with the kernels that the module itself has.

Traced, a batch norm is always PyTorch's own kernel. Called as it is, a module on a GPU mostly gets cuDNN's, which adds in
another order: behind fifty layers gradients have few digits in common.
"""

from __future__ import annotations

import operator
from typing import Any

from loadmaster.errors import require
from loadmaster.program.importers.torch.graph import is_getitem

_RESERVE = 3
"""Which of the results is for the backward pass alone; those behind it come one earlier in the traced call."""


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
