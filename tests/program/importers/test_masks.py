"""Attention masks that a graph makes of constants: left out where they hide nothing, `is_causal` where they hide what
comes later, and as they are otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from loadmaster.program.importers.torch.masks import simplify_masks  # noqa: E402

ROWS = 6


def rows(size: int = ROWS) -> Any:
    return torch.arange(size)[None, None, :, None]


def columns(size: int = ROWS) -> Any:
    return torch.arange(size)[None, None, None, :]


def as_numbers(hidden: Any) -> Any:
    return torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)


CASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "none": (lambda x: None, None),
    "ones": (lambda x: torch.ones(1, 1, ROWS, ROWS, dtype=torch.bool), "open"),
    "always true, expanded": (lambda x: (rows() >= 0).expand(2, 1, ROWS, ROWS), "open"),
    "zeros": (lambda x: torch.zeros(2, 1, ROWS, ROWS), "open"),
    "causal": (lambda x: (columns() <= rows()).expand(2, 1, ROWS, ROWS), "causal"),
    "causal in numbers": (lambda x: as_numbers(columns() > rows()), "causal"),
    "a window": (lambda x: (columns() <= rows()) & (columns() > rows() - 3), None),
    "one key hidden": (lambda x: columns() != 2, None),
    "a bias": (lambda x: 0.5 * (columns() - rows()).float(), None),
    "of an input": (lambda x: (x[:, :1, :, :1] > -100).expand(2, 1, ROWS, ROWS), None),
    "drawn": (lambda x: torch.rand(1, 1, ROWS, ROWS) >= 0, None),
}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_masks_become_what_eager_models_say(case: str) -> None:
    make, kind = CASES[case]
    calls: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        simplify_masks(module)
        calls.extend(node for node in module.graph.nodes if "scaled_dot" in str(node.target))
        return module.forward

    def attend(x: Any) -> Any:
        for _ in range(2):  # as layers share a mask
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x, make(x), scale=0.3)
        return x

    torch._dynamo.reset()
    x = torch.randn(2, 3, ROWS, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.compile(attend, backend=backend)(x), attend(x))
    assert len(calls) == 2
    for call in calls:
        mask = call.kwargs.get("attn_mask", call.args[3] if len(call.args) > 3 else None)
        assert (mask is None) == (kind is not None or case == "none")
        assert call.kwargs.get("is_causal", False) == (kind == "causal") and call.kwargs["scale"] == 0.3


@torch.no_grad()
def test_what_comes_later_is_only_clear_where_queries_are_the_keys() -> None:
    """PyTorch's kernels begin the diagonal in one corner or the other."""
    kept: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        simplify_masks(module)
        kept.extend(node.kwargs for node in module.graph.nodes if "scaled_dot" in str(node.target))
        return module.forward

    def attend(x: Any) -> Any:
        mask = columns() <= rows(3)
        return torch.nn.functional.scaled_dot_product_attention(x[:, :, :3], x, x, attn_mask=mask)

    torch._dynamo.reset()
    x = torch.randn(2, 3, ROWS, 8)
    torch.testing.assert_close(torch.compile(attend, backend=backend)(x), attend(x))
    assert kept[0]["attn_mask"] is not None
