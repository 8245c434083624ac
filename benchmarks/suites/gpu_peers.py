"""Ways of running a model under a budget that are no plans of ours: eager PyTorch with everything
resident, weights streamed by hooks, Accelerate, and what PyTorch has for training.

    found = measure_peer("prefetch-hooks", setting)

Every peer gets the same module, weights, inputs and budget as the executor.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.suites.gpu_saved import OffloadedOnStream, wrap_blocks
from benchmarks.suites.gpu_streamed import Streamed, blocks, bytes_of, leading, place
from loadmaster.errors import LoadmasterError, Refused, require
from loadmaster.execute.op_times import Clock, median
from loadmaster.units import show_bytes

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
    told = f"leading blocks in {share:.0%} of the room that there seemed to be"
    return replace(found, note=f"{found.note}; {told}" if found.note else told)


def _measured(name: str, setting: Setting, repeats: int, most_seconds: float, keep_result: bool) -> PeerRun:
    make = (TRAINING if setting.training else INFERENCE)[name]
    clock = Clock(setting.device)
    _tidy(clock)
    try:
        with held_to(clock, setting.capacity) as held:
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


class held_to:
    """A context in which PyTorch gets no more of the GPU than `capacity` beyond what it has."""

    def __init__(self, clock: Clock, capacity: int | None) -> None:
        self.clock, self.capacity, self.before = clock, capacity, 0

    def __enter__(self) -> held_to:
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
