"""Loadmaster's own allocator in place of PyTorch's on CUDA: only with it do results lie where a plan says.

A process can be given another allocator only before it first uses CUDA, so `install` comes first. Then
PyTorch's own figures (`torch.cuda.memory_allocated` and others) are not there any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loadmaster import _core
from loadmaster.errors import require
from loadmaster.execute.nvml import process_bytes

NO_ROOM = "loadmaster: no room"
"""How its errors begin where memory does not suffice."""
_KEPT: list[Any] = []
"""PyTorch's handle of the allocator; empty: it is not installed."""
_COMPUTE: dict[int, Compute] = {}


@dataclass(frozen=True)
class Compute:
    """The stream that plans run on, with what libraries keep for it: made once, before any plan."""

    stream: Any
    kept_bytes: int
    bare_bytes: int
    """`outside_bytes` of a process that has done nothing yet but make its context."""


def fewer_holes() -> None:
    """Before PyTorch is first imported: its own allocator, where it stays, lets blocks grow."""
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def install() -> bool:
    """Whether the process has this allocator now. False: CUDA was used before, or isn't there."""
    if _KEPT:
        return True
    torch = require("torch", "torch")
    if not torch.cuda.is_available() or torch.cuda.is_initialized():
        return False
    made = torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "loadmaster_alloc", "loadmaster_free")
    try:
        torch.cuda.memory.change_current_allocator(made)
    except RuntimeError:  # somebody was first
        return False
    _KEPT.append(made)
    return True


def current() -> _core.OwnAllocator | None:
    """The allocator, if it is installed."""
    return _core.device_allocator() if _KEPT else None


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error, or one behind it, says that memory did not suffice; in any allocator's words."""
    torch = require("torch", "torch")
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or NO_ROOM in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def compute(device: Any) -> Compute:
    """The stream for plans. Libraries keep workspaces per thread and stream for good, so they make them here and not
    within a plan."""
    if device.index not in _COMPUTE:
        torch, own = require("torch", "torch"), _core.device_allocator()
        torch.cuda.synchronize(device)
        bare = outside_bytes(device)
        stream, before = torch.cuda.Stream(device), own.held
        make_workspaces(device, stream)
        _COMPUTE[device.index] = Compute(stream, own.held - before, bare)
    return _COMPUTE[device.index]


def make_workspaces(device: Any, stream: Any) -> None:
    """Let libraries take what they keep for this thread and a stream: a second model has a thread of its own, and
    nothing may be taken for good within its plans."""
    torch = require("torch", "torch")
    with torch.cuda.stream(stream), torch.inference_mode():
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            square = torch.ones(64, 64, dtype=dtype, device=device)
            torch.mm(square, square)
            torch.addmm(square[0], square, square)
            torch.bmm(square[None], square[None])
            torch.nn.functional.linear(square, square, square[0])
        del square
    torch.cuda.synchronize(device)


def outside_bytes(device: Any) -> int:
    """What the process has on the device and this allocator does not: its context, kernels that were loaded, CUDA
    graphs; and where the driver can't tell processes apart, whatever others have."""
    own = _core.device_allocator()
    return used_bytes(device) - own.held - own.cached


def used_bytes(device: Any) -> int:
    """What the process has on the device; where the driver can't tell processes apart, what all of them have."""
    mine = process_bytes(device)
    if mine is not None:
        return mine
    free, total = require("torch", "torch").cuda.mem_get_info(device)
    return int(total - free)


@contextmanager
def on_compute(stream: Any) -> Iterator[None]:
    """Work of a plan on its stream, after what was asked of the one before."""
    torch = require("torch", "torch")
    before = torch.cuda.current_stream(stream.device)
    if before == stream:
        yield
        return
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
