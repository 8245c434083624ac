"""What a run gives back, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Results:
    """Values are tensors on the host or, where the plan keeps them there, on the device. They are
    the executor's own memory: the next run writes over them."""

    outputs: tuple[Any, ...]
    """What the module returns, flat; of a training step, the loss first."""
    gradients: dict[str, Any]
    updates: dict[str, Any]
    """New values of buffers, by name; the buffers themselves are left as they were."""
    seconds: float
    peak_bytes: int
    """Most fast memory that was in use."""
    reserved_bytes: int
    """Most fast memory that the allocator held."""
    op_seconds: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Start and end of each op since the start of the run, if timings are asked for."""


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
