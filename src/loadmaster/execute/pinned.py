"""Host memory that a device can copy from and to by itself, the weights that lie in it, and whether they are what they
were."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from loadmaster.errors import BadProgram, require
from loadmaster.plan.plan import Plan, lifetimes_in_loops
from loadmaster.program.importers.torch.captured import Captured, Given
from loadmaster.program.importers.torch.graph import placeholders
from loadmaster.program.program import PERSISTENT, TensorKind

_SAMPLES, _ELEMENT = 4, 8
"""How many pieces of a tensor are looked at to see whether it has changed, and of how many bytes."""


class Layout(NamedTuple):
    """What makes a tensor out of `bytes` bytes."""

    dtype: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Of the first element, in elements."""
    bytes: int
    """From the start of the storage to the end of the last element."""


def layout_of(tensor: Any) -> Layout:
    """How a tensor lies in its storage, and how many bytes that spans."""
    size, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    elements = 0 if 0 in size else last + 1
    return Layout(tensor.dtype, size, stride, offset, elements * tensor.element_size())


def flat(tensor: Any, layout: Layout) -> Any:
    """The bytes of a tensor that lies as `layout` says."""
    elements = layout.bytes // tensor.element_size()
    # A tensor may be read as the conjugate, or the negative, of what its bytes are.
    tensor = tensor.conj() if tensor.is_conj() else tensor
    tensor = require("torch", "torch")._neg_view(tensor) if tensor.is_neg() else tensor
    return tensor.as_strided((elements,), (1,), 0).view(_byte())


def shaped(row: Any, layout: Layout) -> Any:
    """The tensor that lies in a flat row of bytes (at its start, which is aligned)."""
    typed = row[: layout.bytes].view(layout.dtype)
    start = typed.storage_offset() + layout.offset
    return typed.as_strided(layout.size, layout.stride, start)


def dense_parts(tensor: Any) -> list[Any]:
    """The tensors with a storage of their own that a tensor consists of: itself; several where it is of a subclass that
    wraps others, as quantized weights are; none where it is sparse: those stay where they are."""
    if wraps_others(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in dense_parts(getattr(tensor, name))]
    return [tensor] if tensor.layout == require("torch", "torch").strided else []


def wraps_others(tensor: Any) -> bool:
    """Whether a tensor is of a subclass that has no bytes of its own but other tensors, and says which."""
    require("torch", "torch")
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(tensor))


def own_layout(tensor: Any) -> Any:
    """The tensor, or a copy if it is a part of a larger storage, or its bytes are not what it is read as."""
    tensor = tensor.resolve_conj().resolve_neg()
    layout = layout_of(tensor)
    whole = layout.offset == 0 and layout.bytes == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.contiguous().clone()


def _byte() -> Any:
    return require("torch", "torch").uint8


LARGE = 2**20
"""Bytes from which a tensor's own memory is pinned where it is; smaller ones are put together."""


def is_whole(tensor: Any) -> bool:
    """Whether a tensor has its storage to itself, without holes."""
    layout = layout_of(tensor)
    whole = layout.bytes == tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    return bool(whole and not layout.offset)


def lock_pages(storage: Any) -> bool:
    """Pin memory where it is; False: the driver can't, as with a file's."""
    torch = require("torch", "torch")
    try:
        return int(torch.cuda.cudart().cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0)) == 0
    except RuntimeError:
        return False


_LEFT: list[Any] = []
"""Storages with locked pages that their model does not need any more."""


def leave_locked(storages: Sequence[Any]) -> None:
    """Keep storages whose pages are locked until `unlock_left`: others must not be given those pages. It asks no device."""
    _LEFT.extend(storages)


def unlock_left() -> None:
    """Unlock what models have left behind and nobody else has any more."""
    torch = require("torch", "torch")
    for storage in [_LEFT.pop() for _ in range(len(_LEFT))]:
        if torch._C._storage_Use_Count(storage._cdata) > 1:
            _LEFT.append(storage)
        else:
            torch.cuda.cudart().cudaHostUnregister(storage.data_ptr())


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
                raise BadProgram(
                    f"weight '{given.source}' is {value.dtype} {tuple(value.shape)} and was "
                    f"captured as {dtype} {shape}",
                    object=given.source,
                    remedy="capture the module as it is now",
                )
            layout = layout_of(value)
            row = memory.take(layout.bytes)
            row.copy_(flat(value.detach(), layout))
            found.rows[given.tensor], found.layouts[given.tensor] = row, layout
    return found


def add_rooms(weights: HostWeights, captured: Captured, plan: Plan, fast: int, memory: HostMemory) -> None:
    """Rows for inputs and for what a plan copies out, beside the weights; those that are there stay."""
    moved = {copy.tensor for copy in plan.copy_rows if copy.source == fast}
    moved |= {
        given.tensor for given in captured.given if given.kind == TensorKind.INPUT and given.tensor >= 0
    }
    for tensor in sorted(moved - set(weights.rows)):
        weights.rows[tensor] = memory.take(int(captured.program.storage_bytes[tensor]))


def shared_rows(captured: Captured, memory: HostMemory) -> dict[int, Any]:
    """Rows for all that ops make and is no result, for plans that keep the program's order: those share one of
    which the first is used last before the second is made. (All copies of the one have ended by then: it
    was there for its last use, and copies out follow one another.)"""
    program = captured.program
    first, last = lifetimes_in_loops(program)
    made = program.tensor_kind == TensorKind.ACTIVATION
    made &= program.tensor_alias == np.arange(program.n_tensors)
    made[[program.tensor_alias[result.tensor] for result in captured.results if result.tensor >= 0]] = False
    rows: dict[int, Any] = {}
    free: list[Any] = []
    ends: dict[int, list[Any]] = {}
    reached = -1
    for tensor in sorted(np.flatnonzero(made & (last >= first)).tolist(), key=lambda each: first[each]):
        for op in range(reached, int(first[tensor])):
            free += ends.pop(op, [])
        reached = int(first[tensor])
        size = int(program.storage_bytes[tensor])
        fitting = [row for row in free if size <= len(row) <= 2 * size]
        row = min(fitting, key=len) if fitting else memory.take(size)
        free = [each for each in free if each is not row]
        ends.setdefault(int(last[tensor]), []).append(row)
        rows[tensor] = row[:size]
    return rows


def _value(given: Given, weights: Mapping[str, Any], constants: Mapping[str, Any]) -> Any:
    known = weights if given.source in weights else constants
    if given.source not in known:
        raise BadProgram(
            f"there is no weight '{given.source}'",
            object=given.source,
            remedy="give all parameters and buffers of the module by name",
        )
    value = known[given.source]
    return value if given.rows is None else value[slice(*given.rows)]


def given_shapes(captured: Captured) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Node -> shape and element type of what is given."""
    values = {name: node.meta.get("val") for name, node in placeholders(captured.graph).items()}
    return {
        given.node: (tuple(map(int, values[given.node].shape)), values[given.node].dtype)
        for given in captured.given
    }


class RandomWeights(Mapping[str, Any]):
    """Weights of a captured graph made up on the device when asked for, the same for a name each time.

    Products keep the size of numbers about as it is; integers are 0 and flags are set, so that they
    are valid wherever they count or choose.
    """

    def __init__(self, captured: Captured, device: Any, seed: int = 0) -> None:
        self._device, self._seed = device, seed
        shapes = given_shapes(captured)
        self._shape: dict[str, tuple[tuple[int, ...], Any]] = {}
        for given in captured.given:
            if given.kind in PERSISTENT and given.source not in captured.constants:
                shape, dtype = shapes[given.node]
                if given.rows is not None:  # slices come in order: the last one tells the whole
                    shape = (given.rows[1], *shape[1:])
                self._shape[given.source] = (shape, dtype)
        self._newest: tuple[str | None, Any] = (None, None)  # not "": inputs have that name

    def __getitem__(self, name: str) -> Any:
        if self._newest[0] != name:
            self._newest = (None, None)  # free it before the next one is made
            self._newest = (name, self._made(name))
        return self._newest[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shape)

    def __len__(self) -> int:
        return len(self._shape)

    def _made(self, name: str) -> Any:
        shape, dtype = self._shape[name]
        return made_up(name, shape, dtype, self._device, self._seed)


def made_up(name: str, shape: Sequence[int], dtype: Any, device: Any, seed: int = 0) -> Any:
    """A weight that depends on nothing but its name, shape and type."""
    torch = require("torch", "torch")
    if not dtype.is_floating_point:
        whole = torch.ones if dtype == torch.bool else torch.zeros
        return whole(shape, dtype=dtype, device=device)
    random = torch.Generator(device).manual_seed(zlib.crc32(name.encode()) + seed)
    value = torch.empty(shape, dtype=dtype, device=device)
    if len(shape) < 2:  # biases, scales and variances
        return value.uniform_(0.5, 1.5, generator=random)
    fan_in = value[0].numel()
    return value.normal_(0.0, fan_in**-0.5, generator=random)


_PIECE, _MOST, _LEAST = 2**26, 2**30, 2**26


def copy_rate(rows: Sequence[Any], device: Any) -> float | None:
    """Bytes per second at which such rows of locked host memory come to the device one after another, the better of
    two tries; None: they are too small to say."""
    torch = require("torch", "torch")
    pieces, total = [], 0
    for row in sorted(rows, key=len, reverse=True):
        piece = row[: min(_PIECE, _MOST - total)]
        pieces.append(piece)
        total += len(piece)
        if total >= _MOST:
            break
    if total < _LEAST:
        return None
    there = torch.empty(len(pieces[0]), dtype=torch.uint8, device=device)
    times = []
    for _ in range(2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for piece in pieces:
            there[: len(piece)].copy_(piece, non_blocking=True)
        end.record()
        torch.cuda.synchronize(device)
        times.append(begin.elapsed_time(end) / 1e3)
    return float(total / min(times))


def version_of(tensor: Any) -> int:
    """How often PyTorch knows that a tensor was written over; of those made in inference mode it does not count."""
    return 0 if tensor.is_inference() else int(tensor._version)


class Fingerprint:
    """Whether a tensor on the host is what it was: by its address, its version and some of its bytes."""

    def __init__(self, value: Any) -> None:
        self._address, self._bytes = -1, np.zeros(0, dtype=np.uint8)
        self._seen = self._look(value)

    def changed(self, value: Any, expected: int = 0) -> bool:
        """Since this was last asked. `expected`: so many new versions are not the caller's."""
        before, self._seen = self._seen, self._look(value)
        same = before[0] == self._seen[0] and before[2] == self._seen[2]
        return not (same and 0 <= self._seen[1] - before[1] <= expected)

    def _look(self, value: Any) -> tuple[int, int, bytes]:
        address = int(value.data_ptr())
        if address != self._address and value.numel():
            row = flat(value.detach(), layout_of(value)).numpy()
            whole = (
                len(row) // _ELEMENT * _ELEMENT
            )  # some whole elements: a change may leave low bytes as they are
            some = row[:whole].reshape(-1, _ELEMENT)
            self._address, self._bytes = address, some[:: max(1, len(some) // _SAMPLES)] if whole else row
        # Not every change moves the version: `p.data.mul_` does not.
        return address, version_of(value), self._bytes.tobytes()

    @property
    def sampled(self) -> Any:
        """[n, 8] or [n]: the bytes that are looked at, where they lie."""
        return self._bytes


class Fingerprints:
    """Those of many tensors, which mostly are what they were: then all of them are looked at in one go."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._each = [Fingerprint(value) for value in values]
        self._note(values)

    def changed(self, values: Sequence[Any]) -> list[int]:
        """Which ones did since this was last asked."""
        # Bytes are read only where tensors still are.
        versions = self._versions(values)
        if versions == self._seen[0] and self._bytes() == self._seen[1]:
            return []
        found = [
            at for at, (own, value) in enumerate(zip(self._each, values, strict=True)) if own.changed(value)
        ]
        self._note(values)
        return found

    def _note(self, values: Sequence[Any]) -> None:
        every = [own.sampled for own in self._each]
        self._samples = [some for some in ([a for a in every if a.ndim == n] for n in (1, 2)) if some]
        self._seen = self._versions(values), self._bytes()

    def _versions(self, values: Sequence[Any]) -> list[tuple[int, int]]:
        return [(value.data_ptr(), version_of(value)) for value in values]

    def _bytes(self) -> list[bytes]:
        return [np.concatenate(some).tobytes() for some in self._samples]
