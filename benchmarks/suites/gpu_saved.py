"""What training keeps for its backward pass, on the host: PyTorch's ways, and one with streams."""

from __future__ import annotations

from collections import deque
from typing import Any

from benchmarks.suites.gpu_streamed import blocks
from loadmaster.errors import require

_LEAST_BYTES = 2**20
_IN_FLIGHT = 4
"""Tensors that may wait at a time for their copies out; more would hold the memory that is to be
saved."""


class OffloadedOnStream:
    """Saved tensors go to pinned memory on a stream of their own and come back when they are
    needed. Parameters and small tensors stay. A context for the forward pass."""

    def __init__(self, module: Any, device: Any) -> None:
        self.torch = require("torch", "torch")
        self.device = device
        self.stays = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.out, self.back = (self.torch.cuda.Stream(device) for _ in range(2))
        self.leaving: deque[tuple[Any, Any]] = deque()

    def context(self) -> Any:
        return self.torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: Any) -> Any:
        small = tensor.numel() * tensor.element_size() < _LEAST_BYTES
        if small or not tensor.is_cuda or tensor.untyped_storage().data_ptr() in self.stays:
            return tensor
        cuda = self.torch.cuda
        host = self.torch.empty_like(tensor, device="cpu", pin_memory=True)
        self.out.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(self.out):
            host.copy_(tensor, non_blocking=True)
            done = self.out.record_event()
        self.leaving.append((tensor, done))
        if len(self.leaving) > _IN_FLIGHT:
            self._let_go()
        return host, done

    def unpack(self, packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        while self.leaving:
            self._let_go()
        host, done = packed
        cuda = self.torch.cuda
        here = cuda.current_stream(self.device)
        tensor = self.torch.empty_like(host, device=self.device)
        self.back.wait_stream(here)
        self.back.wait_event(done)
        with cuda.stream(self.back):
            tensor.copy_(host, non_blocking=True)
            back = self.back.record_event()
        here.wait_event(back)
        return tensor

    def _let_go(self) -> None:
        """Drop the oldest tensor; its room may be used by what runs after its copy."""
        _tensor, done = self.leaving.popleft()
        self.torch.cuda.current_stream(self.device).wait_event(done)


def wrap_blocks(module: Any, how: str) -> Any:
    """The module with each block wrapped: 'offload' keeps what a block saves on the host,
    'checkpoint' keeps only a block's inputs and computes it again."""
    wrappers = require("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "torch")
    chosen = {id(block) for block in blocks(module)}
    wrap = wrappers.offload_wrapper if how == "offload" else wrappers.checkpoint_wrapper
    wrappers.apply_activation_checkpointing(
        module, checkpoint_wrapper_fn=wrap, check_fn=lambda part: id(part) in chosen
    )
    return module
