"""Host memory that a device can copy from and to by itself, and the weights that lie in it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.execute.layout import Layout, flat, layout_of, own_layout, shaped
from loadmaster.program.importers.torch.captured import Captured, Given
from loadmaster.program.importers.torch.roles import placeholders
from loadmaster.program.program import PERSISTENT

SLAB = 2**30
"""Pinning takes the system's time, and PyTorch keeps blocks of powers of two: so few and even ones."""
_ALIGNED = 512


class HostMemory:
    """Rows of bytes on the host, pinned if a device copies from them. `expected`: about how many."""

    def __init__(self, pinned: bool, expected: int = SLAB) -> None:
        self._torch, self.pinned = require("torch", "torch"), pinned
        self._size = min(SLAB, 1 << max(20, (expected - 1).bit_length() + 1))
        self._slab: Any = None
        self._free = 0

    def take(self, count: int) -> Any:
        """A row of `count` bytes, never given back as long as somebody holds it."""
        if not self.pinned or count > self._size // 2:
            return self._new(count)
        if self._slab is None or self._free + count > self._size:
            self._slab, self._free = self._new(self._size), 0
        low = self._free
        self._free += -(-count // _ALIGNED) * _ALIGNED
        return self._slab[low : low + count]

    def _new(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.uint8, pin_memory=self.pinned)


@dataclass(frozen=True)
class HostWeights:
    """A model's weights on the host, tensor by tensor; executors of one model can share them."""

    rows: dict[int, Any]
    layouts: dict[int, Layout]

    def value(self, tensor: int) -> Any:
        return shaped(self.rows[tensor], self.layouts[tensor])


def host_weights(captured: Captured, weights: Mapping[str, Any], memory: HostMemory) -> HostWeights:
    """Copies of the weights that the graph reads; missing or misshapen ones are refused."""
    found = HostWeights({}, {})
    shapes = given_shapes(captured)
    for given in captured.given:
        if given.kind in PERSISTENT and given.tensor >= 0:
            value = own_layout(_value(given, weights, captured.constants))
            shape, dtype = shapes[given.node]
            if (tuple(value.shape), value.dtype) != (shape, dtype):
                raise BadProgram(f"weight '{given.source}' is {value.dtype} {tuple(value.shape)} and was "
                                 f"captured as {dtype} {shape}", object=given.source,
                                 remedy="capture the module as it is now")  # fmt: skip
            layout = layout_of(value)
            row = memory.take(layout.bytes)
            row.copy_(flat(value.detach(), layout))
            found.rows[given.tensor], found.layouts[given.tensor] = row, layout
    return found


def _value(given: Given, weights: Mapping[str, Any], constants: Mapping[str, Any]) -> Any:
    known = weights if given.source in weights else constants
    if given.source not in known:
        raise BadProgram(f"there is no weight '{given.source}'", object=given.source,
                         remedy="give all parameters and buffers of the module by name")  # fmt: skip
    value = known[given.source]
    return value if given.rows is None else value[slice(*given.rows)]


def given_shapes(captured: Captured) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Node -> shape and element type of what is given."""
    values = {name: node.meta.get("val") for name, node in placeholders(captured.graph).items()}
    return {given.node: (tuple(map(int, values[given.node].shape)), values[given.node].dtype)
            for given in captured.given}  # fmt: skip


class RandomWeights(Mapping[str, Any]):
    """Weights of a captured graph made up on the device when asked for, the same for a name each time.

    Products keep the size of numbers about as it is; integers are 0 and flags are set, so that they
    are valid wherever they count or choose.
    """

    def __init__(self, captured: Captured, device: Any, seed: int = 0) -> None:
        self._torch, self._device, self._seed = require("torch", "torch"), device, seed
        shapes = given_shapes(captured)
        self._shape: dict[str, tuple[tuple[int, ...], Any]] = {}
        for given in captured.given:
            if given.kind in PERSISTENT and given.source not in captured.constants:
                shape, dtype = shapes[given.node]
                if given.rows is not None:  # slices come in order: the last one tells the whole
                    shape = (given.rows[1], *shape[1:])
                self._shape[given.source] = (shape, dtype)
        self._newest: tuple[str, Any] = ("", None)

    def __getitem__(self, name: str) -> Any:
        if self._newest[0] != name:
            self._newest = ("", None)  # free it before the next one is made
            self._newest = (name, self._made(name))
        return self._newest[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shape)

    def __len__(self) -> int:
        return len(self._shape)

    def _made(self, name: str) -> Any:
        torch, (shape, dtype) = self._torch, self._shape[name]
        if not dtype.is_floating_point:
            whole = torch.ones if dtype == torch.bool else torch.zeros
            return whole(shape, dtype=dtype, device=self._device)
        random = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) + self._seed)
        value = torch.empty(shape, dtype=dtype, device=self._device)
        if len(shape) < 2:  # biases, scales and variances
            return value.uniform_(0.5, 1.5, generator=random)
        fan_in = value[0].numel()
        return value.normal_(0.0, fan_in**-0.5, generator=random)
