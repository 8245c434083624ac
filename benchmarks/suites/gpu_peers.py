"""Ways of running a model under a budget that are no plans of ours: eager PyTorch with everything
resident, weights streamed by hooks, Accelerate, and what PyTorch has for training.

    found = measure_peer("prefetch-hooks", setting)

Every peer gets the same module, weights, inputs and budget as the executor.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.errors import LoadmasterError, Refused, require
from loadmaster.execute.op_times import Clock, median
from loadmaster.units import show_bytes


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
        self.resident = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.out, self.back = (self.torch.cuda.Stream(device) for _ in range(2))
        self.leaving: deque[tuple[Any, Any]] = deque()

    def context(self) -> Any:
        return self.torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: Any) -> Any:
        small = tensor.numel() * tensor.element_size() < _LEAST_BYTES
        if small or not tensor.is_cuda or tensor.untyped_storage().data_ptr() in self.resident:
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


Pass = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """A model on a device, with what every peer is given."""

    build: Callable[[], Any]
    """A new module on the meta device."""
    values: Mapping[str, Any]
    """Parameters and buffers by name, in (pinned) host memory."""
    inputs: Sequence[Any]
    """On the device."""
    device: Any
    training: bool
    capacity: int | None = None
    """Bytes of the device that may be used; None: all."""
    activation_bytes: int = 0
    """Beyond the weights, as measured with everything resident."""
    leading_share: float = 1.0
    """Of the room that seems to be left for leading blocks: allocators need some too."""


@dataclass(frozen=True)
class PeerRun:
    """What a peer took."""

    name: str
    status: str
    """'ok', 'out of memory', 'refused' or 'not here'."""
    seconds: float = -1.0
    repeats: int = 0
    allocated: int = 0
    """Peak bytes of tensors."""
    reserved: int = 0
    """Peak bytes that the allocator held."""
    note: str = ""
    result: Any = field(default=None, repr=False, compare=False)


def resident(setting: Setting) -> tuple[Pass, Callable[[], None]]:
    module = setting.build()
    place(module, setting.values, setting.device)
    return _pass(module, setting), _nothing


def layerwise(setting: Setting, *, ahead: bool = False) -> tuple[Pass, Callable[[], None]]:
    """The first blocks resident, as many as fit into their share of the room; the others copied in before
    they run."""
    module = setting.build()
    place(module, setting.values)
    parts = blocks(module)
    sizes = [bytes_of(part) for part in parts]
    inside = {id(p) for part in parts for p in part.parameters()}
    rest = sum(p.numel() * p.element_size() for p in module.parameters() if id(p) not in inside)
    count = len(parts)
    if setting.capacity is not None:
        here = 2 if ahead else 1  # blocks that are on the device at a time
        streamed = max((sum(sizes[i : i + here]) for i in range(len(sizes))), default=0)
        room = setting.capacity - setting.activation_bytes - rest
        kept = room if sum(sizes) <= room else room - streamed
        count = leading(sizes, int(kept * setting.leading_share))
        if room < streamed:
            raise Refused(
                f"{show_bytes(setting.activation_bytes + rest + streamed)} are needed beside the streamed "
                f"weights, more than {show_bytes(setting.capacity)}",
                object="capacity",
                number=setting.capacity,
                remedy="give it more",
            )
    on_host = {id(p) for part in parts[count:] for p in part.parameters()}
    for tensor in [*module.parameters(), *module.buffers()]:
        if id(tensor) not in on_host:
            tensor.data = tensor.data.to(setting.device)
    streams = Streamed(parts[count:], setting.device, ahead=ahead)
    return _pass(module, setting), streams.close


def accelerated(setting: Setting) -> tuple[Pass, Callable[[], None]]:
    """Accelerate's cpu_offload: every layer's own weights before it runs."""
    accelerate = require("accelerate", "torch")
    module = setting.build()
    place(module, setting.values)
    for buffer in module.buffers():
        buffer.data = buffer.data.to(setting.device)
    accelerate.cpu_offload(module, execution_device=setting.device, offload_buffers=False)
    return _pass(module, setting), _nothing


def saved_on_cpu(setting: Setting) -> tuple[Pass, Callable[[], None]]:
    torch = require("torch", "torch")
    module = setting.build()
    place(module, setting.values, setting.device)
    pinned = setting.device.type == "cuda"
    return _pass(module, setting, lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned)), _nothing


def saved_on_stream(setting: Setting) -> tuple[Pass, Callable[[], None]]:
    module = setting.build()
    place(module, setting.values, setting.device)
    saved = OffloadedOnStream(module, setting.device)
    return _pass(module, setting, saved.context), _nothing


def wrapped(setting: Setting, *, how: str) -> tuple[Pass, Callable[[], None]]:
    module = setting.build()
    place(module, setting.values, setting.device)
    return _pass(wrap_blocks(module, how), setting), _nothing


INFERENCE: dict[str, Callable[[Setting], tuple[Pass, Callable[[], None]]]] = {
    "eager": resident,
    "layerwise-hooks": layerwise,
    "prefetch-hooks": lambda setting: layerwise(setting, ahead=True),
    "accelerate": accelerated,
}
LEADING_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6)
"""One after another, as long as memory runs out."""
HOOKS = ("layerwise-hooks", "prefetch-hooks")
"""Peers that keep leading blocks."""
TRAINING: dict[str, Callable[[Setting], tuple[Pass, Callable[[], None]]]] = {
    "eager": resident,
    "save_on_cpu": saved_on_cpu,
    "offload_wrapper": lambda setting: wrapped(setting, how="offload"),
    "saved-on-stream": saved_on_stream,
    "checkpoint": lambda setting: wrapped(setting, how="checkpoint"),
}
"""'eager' is the limit: it is measured without a budget."""


def measure_peer(
    name: str, setting: Setting, *, repeats: int = 7, most_seconds: float = 3.0, keep_result: bool = False
) -> PeerRun:
    """Run a peer under the budget: two warm-ups, then repeats until the time is up, at least 3. Where memory runs
    out, those that keep leading blocks try again with fewer; the note says so."""
    shares = LEADING_SHARES if name in HOOKS and setting.capacity is not None else (1.0,)
    for share in shares:
        found = _measured(name, replace(setting, leading_share=share), repeats, most_seconds, keep_result)
        if found.status != "out of memory":
            break
    if share == 1.0:
        return found
    fewer = f"leading blocks in {share:.0%} of the room that there seemed to be"
    return replace(found, note=f"{found.note}; {fewer}" if found.note else fewer)


def _measured(name: str, setting: Setting, repeats: int, most_seconds: float, keep_result: bool) -> PeerRun:
    make = (TRAINING if setting.training else INFERENCE)[name]
    clock = Clock(setting.device)
    _tidy(clock)
    try:
        with MemoryLimit(clock, setting.capacity) as held:
            work, close = make(setting)
            try:
                result, times = _timed(clock, work, repeats, most_seconds)
            finally:
                close()
            allocated, reserved = held.peaks()
    except clock.torch.OutOfMemoryError:
        return PeerRun(name, "out of memory", note=f"of {show_bytes(setting.capacity or 0)}")
    except Refused as error:
        return PeerRun(name, "refused", note=error.message)
    except (LoadmasterError, ImportError) as error:
        return PeerRun(name, "not here", note=str(error))
    finally:
        _tidy(clock)
    return PeerRun(
        name, "ok", median(times), len(times), allocated, reserved, result=result if keep_result else None
    )


def _timed(clock: Clock, work: Pass, repeats: int, most_seconds: float) -> tuple[Any, list[float]]:
    result = None
    for _ in range(2):
        result = work()
    clock.wait()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < repeats and (len(times) < 3 or time.perf_counter() - began < most_seconds):
        times += clock.seconds(work, repeats=1, warmups=0)
    return result, times


class MemoryLimit:
    """A context in which PyTorch gets no more of the GPU than `capacity` beyond what it has."""

    def __init__(self, clock: Clock, capacity: int | None) -> None:
        self.clock, self.capacity, self.before = clock, capacity, 0

    def __enter__(self) -> MemoryLimit:
        if self.clock.is_cuda:
            cuda, device = self.clock.torch.cuda, self.clock.device
            self.before = cuda.memory_allocated(device)
            cuda.reset_peak_memory_stats(device)
            if self.capacity is not None:
                total = cuda.get_device_properties(device).total_memory
                share = (self.capacity + cuda.memory_reserved(device)) / total
                cuda.set_per_process_memory_fraction(min(1.0, share), device)
        return self

    def __exit__(self, *_: object) -> None:
        if self.clock.is_cuda and self.capacity is not None:
            self.clock.torch.cuda.set_per_process_memory_fraction(1.0, self.clock.device)

    def peaks(self) -> tuple[int, int]:
        """Peak bytes allocated and reserved, without what was there before."""
        if not self.clock.is_cuda:
            return 0, 0
        cuda, device = self.clock.torch.cuda, self.clock.device
        return (
            cuda.max_memory_allocated(device) - self.before,
            cuda.max_memory_reserved(device) - self.before,
        )


def _pass(module: Any, setting: Setting, context: Callable[[], Any] | None = None) -> Pass:
    """One pass: outputs, or the loss and gradients by name."""
    torch = require("torch", "torch")
    module.train(setting.training)

    def infer() -> Any:
        with torch.no_grad():
            return module(*setting.inputs)

    def step() -> Any:
        for parameter in module.parameters():
            parameter.grad = None
        with context() if context is not None else contextlib.nullcontext():
            found = module(*setting.inputs)
            loss = found[0] if isinstance(found, tuple | list) else found
        loss.backward()
        return loss.detach(), {name: p.grad for name, p in module.named_parameters()}

    return step if setting.training else infer


def _nothing() -> None:
    return None


def _tidy(clock: Clock) -> None:
    gc.collect()
    if clock.is_cuda:
        clock.torch.cuda.empty_cache()
        clock.wait()


def peer_names(training: bool) -> Iterator[str]:
    yield from (TRAINING if training else INFERENCE)
