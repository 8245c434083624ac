"""How a tensor lies in its storage, and its bytes as one flat row, so that copies keep strides."""

from __future__ import annotations

from typing import Any, NamedTuple

from loadmaster.errors import require


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
    size, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    elements = 0 if 0 in size else last + 1
    return Layout(tensor.dtype, size, stride, offset, elements * tensor.element_size())


def flat(tensor: Any, layout: Layout) -> Any:
    """The bytes of a tensor that lies as `layout` says."""
    elements = layout.bytes // tensor.element_size()
    return tensor.as_strided((elements,), (1,), 0).view(_byte())


def shaped(row: Any, layout: Layout) -> Any:
    """The tensor that lies in a flat row of bytes (at its start, which is aligned)."""
    typed = row[: layout.bytes].view(layout.dtype)
    start = typed.storage_offset() + layout.offset
    return typed.as_strided(layout.size, layout.stride, start)


def own_layout(tensor: Any) -> Any:
    """The tensor, or a copy if it is a part of a larger storage."""
    layout = layout_of(tensor)
    whole = layout.offset == 0 and layout.bytes == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.contiguous().clone()


def _byte() -> Any:
    return require("torch", "torch").uint8
