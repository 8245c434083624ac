"""Attention masks of traced graphs as the module itself would give them.

Eager models leave masks out that hide nothing, and say `is_causal` where a mask hides what comes later. While they are
traced many can't look at a mask, and carry it through every layer: attention then takes up to twice as long, or finds
no fused kernel at all.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from loadmaster.errors import require

MOST_ELEMENTS = 2**26
"""Of a mask that is looked at."""
_FUNCTIONS = (
    "arange ones zeros full ge gt le lt eq ne logical_and logical_or logical_not bitwise_and bitwise_or tril triu where "
    "unsqueeze reshape cat"
)
_OPERATORS = "add sub mul neg ge gt le lt eq ne and_ or_ xor invert not_ getitem"
_METHODS = (
    "expand expand_as view reshape unsqueeze squeeze to bool int long float contiguous clone logical_not logical_and "
    "logical_or masked_fill tril triu ge gt le lt eq ne repeat transpose permute"
)
"""What masks are made of, and what gives the same each time."""


def simplify_masks(module: Any) -> None:
    """Leave out masks of scaled dot product attention that hide nothing, and let those be `is_causal` that hide just
    what comes later: where the graph itself makes them, of constants."""
    found: dict[Any, str] = {}
    changed = False
    for node in _attentions(module):
        mask = _mask(node)
        if mask is None or _argument(node, "is_causal", 5):
            continue
        kind = found.get(mask)
        if kind is None:
            kind = found[mask] = _kind(mask)
        if kind == "other" or (kind == "causal" and not _is_square(mask)):
            continue
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        query, key, value = (given.pop(name) for name in names[:3])
        node.args = (query, key, value)
        node.kwargs = given | {"attn_mask": None, "is_causal": kind == "causal"}
        changed = True
    if changed:  # what made the masks is dropped later, where it is known which ops change something
        module.recompile()


def lay_out_masks(module: Any) -> None:
    """Let attention masks lie row by row: fused kernels take no others, and without them attention keeps all its
    weights. A mask of ones that was expanded to its size is such a one; PyTorch's own models have it only if traced."""
    for node in _attentions(module):
        mask = _mask(node)
        seen = None if mask is None else mask.meta.get("example_value")
        if seen is None or seen.ndim < 2 or seen.stride(-1) == 1 or seen.shape[-1] < 2:
            continue
        with module.graph.inserting_before(node):
            node.replace_input_with(mask, _laid_out(module.graph, mask, seen, node.all_input_nodes[0]))
    module.recompile()


def _laid_out(graph: Any, mask: Any, seen: Any, query: Any) -> Any:
    """The same mask; what repeats along leading axes is there once."""
    torch = require("torch", "torch")
    leading = seen.ndim - 2
    once = tuple(
        slice(0, 1) if at < leading and step == 0 else slice(None) for at, step in enumerate(seen.stride())
    )
    plain = graph.call_method("contiguous", (graph.call_function(operator.getitem, (mask, once)),))
    if seen.dtype == torch.bool:
        plain = graph.call_function(torch.where, (plain, 0.0, -math.inf))
        plain = graph.call_method("to", (plain, query.meta["example_value"].dtype))
    return graph.call_method("expand", (plain, tuple(seen.shape)))


def _attentions(module: Any) -> list[Any]:
    torch = require("torch", "torch")
    attention = torch.nn.functional.scaled_dot_product_attention
    return [node for node in module.graph.nodes if node.target is attention]


def _argument(node: Any, name: str, place: int) -> Any:
    return node.kwargs.get(name, node.args[place] if len(node.args) > place else None)


def _mask(node: Any) -> Any:
    return _argument(node, "attn_mask", 3)


def _is_square(mask: Any) -> bool:
    shape = mask.meta["example_value"].shape
    return bool(shape[-1] == shape[-2])


def _kind(mask: Any) -> str:
    """'open': it hides nothing. 'causal': what comes later. Else 'other', or it is not known before the call."""
    torch, seen = require("torch", "torch"), mask.meta.get("example_value")
    if seen is None or seen.ndim < 2:
        return "other"
    value = _constant(mask)
    if value is None:
        return "other"
    for axis, step in enumerate(value.stride()):  # what repeats is looked at once
        if step == 0 and axis < value.ndim - 2:
            value = value.narrow(axis, 0, 1)
    hidden = ~value if value.dtype == torch.bool else value != 0
    if not hidden.any():
        return "open"
    if value.dtype != torch.bool:
        hidden = value == -math.inf
        if (value != 0).ne(hidden).any():
            return "other"
    later = torch.ones(hidden.shape[-2:], dtype=torch.bool).triu(1)
    return "causal" if bool((hidden == later).all()) else "other"


def _constant(node: Any) -> Any:
    """The value of a node that is made of constants alone, on the host; None: it is not, or is large."""
    made: dict[Any, Any] = {}
    order: list[Any] = []
    left = [node]
    while left:
        each = left.pop()
        if each in made:
            continue
        if not _is_known(each):
            return None
        made[each] = None
        order.append(each)
        left += each.all_input_nodes
    place = {each: at for at, each in enumerate(node.graph.nodes)}
    torch = require("torch", "torch")
    from torch.fx.node import map_arg

    with torch.no_grad():
        for each in sorted(order, key=place.__getitem__):
            args, kwargs = map_arg((each.args, dict(each.kwargs)), made.__getitem__)
            if "device" in kwargs:
                kwargs = {**kwargs, "device": "cpu"}
            if each.op == "call_method":
                owner, *rest = args
                made[each] = getattr(owner, each.target)(*rest, **kwargs)
            else:
                made[each] = each.target(*args, **kwargs)
    return made[node]


def _is_known(node: Any) -> bool:
    """Whether a node gives the same at every call, and not too much."""
    torch, seen = require("torch", "torch"), node.meta.get("example_value")
    if seen is None or not hasattr(seen, "untyped_storage"):
        return False
    if seen.untyped_storage().nbytes() > MOST_ELEMENTS * seen.element_size():
        return False
    if node.op == "call_method":
        named = node.target in _METHODS.split()
        return named and not any(isinstance(each, torch.device | str) for each in node.args)
    functions = [getattr(torch, name) for name in _FUNCTIONS.split()]
    operators = [getattr(operator, name) for name in _OPERATORS.split()]
    return node.op == "call_function" and node.target in (*functions, *operators)
