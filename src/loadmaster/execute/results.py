"""What a run gives back, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from loadmaster.errors import require
from loadmaster.program.importers.torch.graph import Result


@dataclass(frozen=True)
class Results:
    """Values are tensors on the host or, where the plan keeps them there, on the device. They are
    the executor's own memory: the next run writes over them."""

    outputs: tuple[Any, ...]
    """What the module returns, flat; of a training step, the loss first."""
    gradients: dict[str, Any]
    """By parameter; those of a weight that was cut into slices are put together on the host."""
    updates: dict[str, Any]
    """New values of buffers, by name; the buffers themselves are left as they were."""
    seconds: float
    peak_bytes: int
    """Most fast memory that was in use."""
    reserved_bytes: int
    """Most fast memory that the allocator held."""
    op_seconds: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Start and end of each op since the start of the run, if timings are asked for."""


def gradients_of(results: Sequence[Result], values: Sequence[Any]) -> dict[str, Any]:
    """Gradients by parameter. Slices of one weight are many leaves with one name."""
    torch = require("torch", "torch")
    whole: dict[str, Any] = {}
    slices: dict[str, list[tuple[int, Any]]] = {}
    for result, value in zip(results, values, strict=True):
        if result.what != "gradient":
            continue
        if result.rows is None:
            whole[result.name] = value
        else:
            slices.setdefault(result.name, []).append((result.rows[0], value))
    for name, parts in slices.items():
        in_order = [value for _, value in sorted(parts, key=lambda part: part[0])]
        known = all(value is not None for value in in_order)
        whole[name] = torch.cat([value.to("cpu") for value in in_order]) if known else None
    return whole


@dataclass(frozen=True)
class Measured:
    """Several runs after some that don't count."""

    runs: Sequence[float]
    peak_bytes: int
    reserved_bytes: int
    last: Results

    @property
    def seconds(self) -> float:
        return median(self.runs)
