"""Large weights in slices: layers that use one slice of their weight after another.

A linear layer's slices give columns of its result, an embedding's answer for their own words. Each
slice is a weight of its own to the planner, so no more than one must be in fast memory at a time.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.torch.graph import Traced

Slices = dict[str, tuple[str, tuple[int, int]]]
"""A slice's own name -> the name of the whole weight, and the rows."""


def split_layers(module: Any, limit: int) -> Slices:
    """Replace, in place, the linear layers and embeddings whose weight has more than `limit` bytes."""
    torch = require("torch", "torch")
    if limit < 1:
        raise BadProgram(
            f"weights can't be split over {limit} bytes",
            object="split_over",
            number=limit,
            remedy="give at least 1 byte",
        )
    slices: Slices = {}
    shared: dict[int, Any] = {}
    for path, layer in list(module.named_modules()):
        plain = type(layer) is torch.nn.Embedding and layer.padding_idx is None and layer.max_norm is None
        if not plain and type(layer) is not torch.nn.Linear:
            continue
        weight = layer.weight
        if weight.nbytes <= limit or not path:
            continue
        if id(weight) not in shared:  # tied layers share their slices
            shared[id(weight)] = _cut(weight, limit)
        parts = shared[id(weight)]
        sliced = _embedding(parts) if plain else _linear(parts, layer.bias)
        _put(module, path, sliced)
        low = 0
        for number, part in enumerate(parts):
            slices[f"{path}.slice{number}"] = (f"{path}.weight", (low, low + len(part)))
            low += len(part)
    return slices


def slice_batch(module: Any, count: int) -> None:
    """Let a module, in place, work on its batch in slices, one after another.

    Where a layer's inputs and results alone fill the memory, no plan can help and this does.
    """
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

    whole = module.forward

    @functools.wraps(whole)
    def forward(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        rows = len(tensors[0])
        ends = [rows * i // count for i in range(count + 1)]
        results = []
        for low, high in pairwise(ends):

            def part(x: Any, low: int = low, high: int = high) -> Any:
                return x[low:high] if x.ndim and len(x) == rows else x

            a, k = tree_map_only(torch.Tensor, part, (args, kwargs))
            results.append(whole(*a, **k))
        return tree_map(lambda *parts: torch.cat(parts), *results)

    module.forward = forward


def name_slices(traced: Traced, slices: Slices) -> None:
    """Say of each slice and its gradient which rows of which weight it is."""
    for number, given in enumerate(traced.given):
        if given.source in slices:
            source, rows = slices[given.source]
            traced.given[number] = replace(given, source=source, rows=rows)
    for number, result in enumerate(traced.results):
        if result.name in slices:
            name, rows = slices[result.name]
            traced.results[number] = replace(result, name=name, rows=rows)


def _cut(weight: Any, limit: int) -> list[Any]:
    torch = require("torch", "torch")
    rows = len(weight)
    fit = max(1, limit // (weight.nbytes // rows))
    count = -(-rows // fit)
    ends = [rows * i // count for i in range(count + 1)]
    with torch.no_grad():
        return [
            torch.nn.Parameter(weight[a:b].clone(), requires_grad=weight.requires_grad)
            for a, b in pairwise(ends)
        ]


def _put(module: Any, path: str, layer: Any) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)


def _linear(parts: list[Any], bias: Any) -> Any:
    torch = require("torch", "torch")

    class SlicedLinear(_sliced()):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            columns, low = [], 0
            for part in self.parts():
                own = None if self.bias is None else self.bias[low : low + len(part)]
                columns.append(torch.nn.functional.linear(x, part, own))
                low += len(part)
            return torch.cat(columns, -1)

    layer = SlicedLinear(parts)
    layer.register_parameter("bias", bias)
    return layer


def _embedding(parts: list[Any]) -> Any:
    torch = require("torch", "torch")

    class SlicedEmbedding(_sliced()):  # type: ignore[misc]
        def forward(self, words: Any) -> Any:
            found, low = None, 0
            for part in self.parts():
                own = (words - low).clamp(0, len(part) - 1)
                rows = torch.nn.functional.embedding(own, part)
                later = (words >= low).unsqueeze(-1)
                found = rows if found is None else torch.where(later, rows, found)
                low += len(part)
            return found

    return SlicedEmbedding(parts)


def _sliced() -> Any:
    torch = require("torch", "torch")

    class Sliced(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, parts: list[Any]) -> None:
            super().__init__()
            self.count = len(parts)
            for number, part in enumerate(parts):
                self.register_parameter(f"slice{number}", part)

        def parts(self) -> list[Any]:
            return [getattr(self, f"slice{number}") for number in range(self.count)]

        @property
        def weight(self) -> Any:
            """All of it, for a module that reads the weight past its layer."""
            return torch.cat(self.parts())

    return Sliced
