"""Weights streamed block by block with hooks, as offloading libraries do it: copied in before a
block runs and dropped after, at once or one block ahead on a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadmaster.errors import require


def owned(module: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """(name, module that holds it, its name there, tensor) of every parameter and buffer, shared
    ones under each of their names."""
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for table in (owner._parameters, owner._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield f"{prefix}.{key}" if prefix else key, owner, key, tensor


def place(module: Any, values: Mapping[str, Any], device: Any = None) -> None:
    """Give a module (on the meta device) its values; those of one tensor stay one tensor. Without
    a device they stay where they are."""
    torch = require("torch", "torch")
    made: dict[int, Any] = {}
    for name, owner, key, tensor in list(owned(module)):
        if id(tensor) not in made:
            given = values.get(name)
            if given is None:
                given = torch.zeros(tensor.shape, dtype=tensor.dtype, device=device or "cpu")
            elif device is not None:
                given = given.to(device)
            if isinstance(tensor, torch.nn.Parameter):
                given = torch.nn.Parameter(given, requires_grad=tensor.requires_grad)
            made[id(tensor)] = given
        table = owner._parameters if key in owner._parameters else owner._buffers
        table[key] = made[id(tensor)]


def blocks(module: Any) -> list[Any]:
    """The layers that are streamed one by one: members of lists and sequences of modules
    that hold no further lists, and whatever else has weights of its own, in the order of the module."""
    torch = require("torch", "torch")
    containers = (torch.nn.ModuleList, torch.nn.Sequential)
    found: list[Any] = []

    def walk(part: Any, member: bool) -> None:
        lists = (m for m in part.modules() if isinstance(m, torch.nn.ModuleList))
        nested = any(each is not part and len(each) > 1 for each in lists)
        whole = member and not nested
        if whole or not list(part.children()):
            if any(True for _ in part.parameters()):
                found.append(part)
            return
        for child in part.children():
            walk(child, isinstance(part, containers))

    for child in module.children():
        walk(child, isinstance(module, containers))
    return found


def bytes_of(module: Any) -> int:
    """Bytes of its parameters, shared ones once."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def leading(sizes: Sequence[int], room: int) -> int:
    """How many of the first fit into the room."""
    count = 0
    for size in sizes:
        if size > room:
            break
        room -= size
        count += 1
    return count


class Streamed:
    """Blocks whose weights lie on the host; hooks bring them in. `ahead`: the next block comes
    while one runs. `close` takes the hooks off."""

    def __init__(self, parts: Sequence[Any], device: Any, *, ahead: bool) -> None:
        self.torch = require("torch", "torch")
        self.parts, self.device = list(parts), device
        self.is_cuda = device.type == "cuda"
        self.ahead = ahead and self.is_cuda
        self.host = [[(p, p.data) for p in part.parameters()] for part in self.parts]
        self.coming: dict[int, tuple[list[Any], Any]] = {}
        self.side = self.torch.cuda.Stream(device) if self.ahead else None
        self.hooks = []
        for number, part in enumerate(self.parts):
            self.hooks.append(part.register_forward_pre_hook(self._before(number)))
            self.hooks.append(part.register_forward_hook(self._after(number)))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _before(self, number: int) -> Any:
        def enter(*_: Any) -> None:
            if number not in self.coming:
                self._fetch(number)
            tensors, event = self.coming.pop(number)
            if event is not None:
                self.torch.cuda.current_stream(self.device).wait_event(event)
            for (parameter, _host), tensor in zip(self.host[number], tensors, strict=True):
                parameter.data = tensor
            if self.ahead and number + 1 < len(self.parts):
                self._fetch(number + 1)

        return enter

    def _after(self, number: int) -> Any:
        def leave(*_: Any) -> None:
            for parameter, host in self.host[number]:
                parameter.data = host

        return leave

    def _fetch(self, number: int) -> None:
        # Room is taken on the stream that computes: what was freed there may be used again at
        # once, and the copy waits for all work before it.
        tensors = [self.torch.empty_like(host, device=self.device) for _, host in self.host[number]]
        if self.side is None:
            for (_, host), tensor in zip(self.host[number], tensors, strict=True):
                tensor.copy_(host, non_blocking=True)
            self.coming[number] = tensors, None
            return
        self.side.wait_stream(self.torch.cuda.current_stream(self.device))
        with self.torch.cuda.stream(self.side):
            for (_, host), tensor in zip(self.host[number], tensors, strict=True):
                tensor.copy_(host, non_blocking=True)
            event = self.torch.cuda.Event()
            event.record(self.side)
        self.coming[number] = tensors, event
