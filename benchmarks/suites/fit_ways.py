"""Ways to run a model in a memory budget that PyTorch users have today, for `benchmarks/fit_peers.py`.

    way = WAYS["prefetch-spread"]
    for setting in way.settings(case):      # from the fastest to the most frugal; the first that fits counts
        work = way.make(case, setting)
        work()

Inference: weights lie on the host (pinned) and come when they are needed. Training: forward, loss, backward and AdamW.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.suites.fit_models import (
    HostWeights,
    Spec,
    buffers_to,
    parameter_bytes,
    to_device,
    unique_parameters,
)
from benchmarks.suites.gpu_peers import Streamed, blocks, bytes_of, leading

RATE = 1e-3
Work = Callable[[], Any]


class NotHere(Exception):
    """The way cannot run here."""


class TooSmall(Exception):
    """The budget is too small, as is known without a run; `needs` bytes would do."""

    def __init__(self, needs: int) -> None:
        super().__init__(f"{needs} bytes are needed")
        self.needs = needs


@dataclass
class Case:
    """A model, its budget, and what its run with everything resident found."""

    spec: Spec
    device: torch.device
    tiny: bool
    inputs: dict[str, torch.Tensor]
    """On the device."""
    host: HostWeights | None = None
    budget: int | None = None
    libraries: int = 0
    """What the process has beside its context and its allocator's memory."""
    resident_peak: int = 0
    activation_bytes: int = 0
    """Beyond the weights; in training beyond weights, gradients and the optimizer's state."""
    closing: list[Callable[[], None]] = field(default_factory=list)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def on_host(self) -> Any:
        """A new module: weights on the host, buffers on the device."""
        module = self.spec.build(tiny=self.tiny, cache_device=self.device)
        if self.host is None:
            self.host = HostWeights(module)
        return buffers_to(self.host.bind(module), self.device)

    def on_device(self) -> Any:
        return to_device(self.spec.build(tiny=self.tiny, cache_device=self.device), self.device)

    def close(self) -> None:
        for each in self.closing:
            each()
        self.closing.clear()


def first_tensor(found: Any) -> torch.Tensor:
    """The logits, the loss or whatever comes first."""
    if isinstance(found, torch.Tensor):
        return found
    values = list(found.values()) if hasattr(found, "values") else list(found)
    return first_tensor(values[0])


def forward(case: Case, module: Any) -> Work:
    def work() -> Any:
        with torch.no_grad():
            return first_tensor(module(**case.inputs))

    return work


# Inference


def resident(case: Case, _setting: Any) -> Work:
    return forward(case, case.on_device())


def compiled(case: Case, _setting: Any) -> Work:
    return forward(case, torch.compile(case.on_device()))


def spread(sizes: Sequence[int], room: int) -> list[int]:
    """Which blocks are streamed, evenly over the model, so that the others fit into the room."""
    share = max(0.0, 1 - room / max(1, sum(sizes)))
    streamed, carry = [], 0.0
    for number, size in enumerate(sizes):
        carry += share * size
        if carry >= size:
            streamed.append(number)
            carry -= size
    left = sum(sizes) - sum(sizes[n] for n in streamed)
    for number in range(len(sizes) - 1, -1, -1):
        if left <= room:
            break
        if number not in streamed:
            streamed.append(number)
            left -= sizes[number]
    return sorted(streamed)


def last(sizes: Sequence[int], room: int) -> list[int]:
    """Which blocks are streamed, if as many first ones stay as fit."""
    return list(range(leading(sizes, room), len(sizes)))


def prefetched(case: Case, setting: float, *, choose: Callable[[Sequence[int], int], list[int]]) -> Work:
    """Blocks that do not fit come one ahead, on a stream of their own."""
    module = case.on_host()
    parts = own_blocks(module)
    sizes = [bytes_of(part) for part in parts]
    rest = parameter_bytes(module) - sum(sizes)
    pairs = max((sum(sizes[i : i + 2]) for i in range(len(sizes))), default=0)
    streamed: list[int] = []
    if case.budget is not None:
        room = case.budget - case.activation_bytes - rest
        if room < pairs:
            raise TooSmall(case.activation_bytes + rest + pairs)
        if sum(sizes) > room:
            streamed = choose(sizes, int((room - pairs) * setting))
    chosen = [parts[number] for number in streamed]
    stays = {id(p) for part in chosen for p in part.parameters()}
    for _, parameter in unique_parameters(module):
        if id(parameter) not in stays:
            parameter.data = parameter.data.to(case.device)
    streams = Streamed(chosen, case.device, ahead=True)

    def first(*_: Any) -> None:
        if chosen and 0 not in streams.coming:
            streams._fetch(0)

    module.register_forward_pre_hook(first)
    return forward(case, module)


def own_blocks(module: Any) -> list[Any]:
    """Blocks that share no weight with another: shared ones stay."""
    found = blocks(module)
    owners: dict[int, int] = {}
    for part in found:
        for parameter in part.parameters():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return [part for part in found if all(owners[id(p)] == 1 for p in part.parameters())]


def repeated(module: Any) -> list[Any]:
    """Blocks of which there are several of a kind: a transformer's layers."""
    found = blocks(module)
    kinds = [type(part) for part in found]
    many = [part for part in found if kinds.count(type(part)) > 1]
    return [part for part in many if list(part.children())] or many


def map_settings(case: Case) -> list[int]:
    """Bytes of weights that Accelerate may put on the device, most first."""
    room = (case.budget or case.resident_peak) - case.activation_bytes
    steps = [room - 2**26, room - int(0.08 * (case.budget or 0)), room - int(0.2 * (case.budget or 0))]
    return [each for each in steps if each > 0]


def mapped(case: Case, setting: int) -> Work:
    """Accelerate's device map under `max_memory`."""
    accelerate = library("accelerate")
    module = case.on_host()
    names = sorted({type(part).__name__ for part in repeated(module)})
    places = accelerate.infer_auto_device_map(
        module, max_memory={0: setting, "cpu": 2**40}, no_split_module_classes=names
    )
    if not case.is_cuda:
        raise NotHere("needs CUDA: a device map of one device has no hooks")
    if 0 not in places.values():
        places = {}
    if not places:
        raise NotHere("no layer fits on the device: this is sequential offloading")
    accelerate.dispatch_model(module, places, main_device=0, skip_keys="past_key_values")
    return forward(case, module)


def offloaded(case: Case, _setting: Any) -> Work:
    """Accelerate's sequential offloading."""
    accelerate = library("accelerate")
    module = case.on_host()
    accelerate.cpu_offload(module, execution_device=case.device, offload_buffers=False)
    return forward(case, module)


def grouped(case: Case, _setting: Any, *, level: str) -> Work:
    """Diffusers' group offloading. Blocks are found only directly below a module, so it is given those that hold them."""
    hooks = library("diffusers.hooks")
    module = case.on_host()
    more: dict[str, Any] = {"use_stream": case.is_cuda, "non_blocking": case.is_cuda}
    if level == "leaf_level":
        hooks.apply_group_offloading(module, case.device, offload_type=level, **more)
        return forward(case, module)
    holders = holders_of_blocks(module)
    if not holders:
        raise NotHere("the model has no lists of blocks")
    inside = {id(p) for each in holders for p in each.parameters()}
    for _, parameter in unique_parameters(module):
        if id(parameter) not in inside:
            parameter.data = parameter.data.to(case.device)
    for each in holders:
        hooks.apply_group_offloading(each, case.device, offload_type=level, num_blocks_per_group=1, **more)
    return forward(case, module)


def holders_of_blocks(module: Any) -> list[Any]:
    """The outermost modules with a list of blocks right below them."""
    found: list[Any] = []

    def walk(part: Any) -> None:
        lists = (torch.nn.ModuleList, torch.nn.Sequential)
        if any(isinstance(child, lists) and len(child) > 1 for child in part.children()):
            found.append(part)
            return
        for child in part.children():
            walk(child)

    walk(module)
    return found


def parts_settings(case: Case) -> list[int]:
    if not case.spec.split:
        return [1]
    batch = next(iter(case.inputs.values())).shape[0]
    return [parts for parts in (2, 4, 8, 16) if parts <= batch]


def in_parts(case: Case, setting: int) -> Work:
    """Weights resident, the batch computed in parts."""
    if not case.spec.split:
        raise NotHere("the batch cannot be split")
    weights = case.resident_peak - case.activation_bytes
    if case.budget is not None and weights > case.budget:
        raise TooSmall(weights + case.activation_bytes // setting)
    module = case.on_device()
    parts = split_inputs(case.inputs, setting)

    def work() -> Any:
        with torch.no_grad():
            return torch.cat([first_tensor(module(**part)) for part in parts])

    return work


def split_inputs(inputs: dict[str, torch.Tensor], parts: int) -> list[dict[str, torch.Tensor]]:
    pieces = {name: value.chunk(parts) for name, value in inputs.items()}
    return [{name: each[i] for name, each in pieces.items()} for i in range(parts)]


# Training


class HostAdamW:
    """AdamW whose state lies in pinned memory: it comes bucket by bucket, one ahead, and goes back."""

    def __init__(self, parameters: Sequence[Any], device: torch.device, bucket: int = 2**27) -> None:
        from torch.optim.adamw import adamw

        self.update, self.device, self.is_cuda = adamw, device, device.type == "cuda"
        self.parameters = list(parameters)
        self.leaving: list[list[Any]] | None = None
        self.buckets: list[list[Any]] = [[]]
        for parameter in self.parameters:
            held = sum(p.numel() * p.element_size() for p in self.buckets[-1])
            if held + parameter.numel() * parameter.element_size() > bucket and self.buckets[-1]:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
        self.state = [
            [[torch.zeros(p.shape, dtype=p.dtype, pin_memory=self.is_cuda) for p in bucket] for _ in range(2)]
            for bucket in self.buckets
        ]
        self.count = torch.zeros((), dtype=torch.float32, device=device)
        self.inward, self.outward = (torch.cuda.Stream(device) if self.is_cuda else None for _ in range(2))

    def step(self) -> None:
        coming, leaving = self._fetch(0), None
        for number, bucket in enumerate(self.buckets):
            state, ready = coming
            self._wait(leaving)
            self.leaving = None  # the room of the bucket before may be used again
            if number + 1 < len(self.buckets):
                coming = self._fetch(number + 1)
            self._wait(ready)
            self._update(bucket, state)
            leaving = self._copy(state, self.state[number], self.outward)
            self.leaving = state  # keeps the room until the copy is over
        self._wait(leaving)
        self.leaving = None
        self.count += 1

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _update(self, bucket: list[Any], state: list[list[Any]]) -> None:
        known = [(p, p.grad, m, v) for p, m, v in zip(bucket, *state, strict=True) if p.grad is not None]
        if not known:
            return
        parameters, gradients, first, second = (list(each) for each in zip(*known, strict=True))
        with torch.no_grad():
            self.update(
                parameters,
                gradients,
                first,
                second,
                [],
                [self.count.clone() for _ in parameters],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=RATE,
                weight_decay=0.01,
                eps=1e-8,
                maximize=False,
            )

    def _fetch(self, number: int) -> tuple[list[list[Any]], Any]:
        room = [[torch.empty_like(t, device=self.device) for t in half] for half in self.state[number]]
        return room, self._copy(self.state[number], room, self.inward)

    def _wait(self, event: Any) -> None:
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def _copy(self, source: list[list[Any]], target: list[list[Any]], stream: Any) -> Any:
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            for old, new in zip(source, target, strict=True):
                for one, other in zip(old, new, strict=True):
                    other.copy_(one, non_blocking=True)
            return stream.record_event() if stream is not None else None


@dataclass(frozen=True)
class Step:
    """How a training step saves memory."""

    checkpointed: float = 0.0
    """Share of the blocks that are computed again."""
    parts: int = 1
    """Micro-batches."""
    host_optimizer: bool = False
    saved_on_cpu: bool = False
    memory_budget: float | None = None
    """AOTAutograd's; it is compiled then."""
    compile: bool = False

    def __str__(self) -> str:
        words = [
            f"{self.checkpointed:.0%} of the blocks computed again" if self.checkpointed else "",
            f"{self.parts} micro-batches" if self.parts > 1 else "",
            "saved tensors on the host" if self.saved_on_cpu else "",
            "optimizer state on the host" if self.host_optimizer else "",
            f"memory budget {self.memory_budget:.2f}" if self.memory_budget is not None else "",
        ]
        return ", ".join(word for word in words if word)


def trained(case: Case, setting: Step) -> Work:
    """One step, as `setting` says; its result is the loss."""
    module = case.on_device()
    if setting.checkpointed:
        checkpoint_blocks(module, setting.checkpointed)
    parameters = [p for _, p in unique_parameters(module)]
    if setting.host_optimizer:
        optimizer: Any = HostAdamW(parameters, case.device)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=RATE, fused=True)
    call = module
    if setting.compile or setting.memory_budget is not None:
        torch._dynamo.reset()
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = 1.0 if setting.memory_budget is None else setting.memory_budget
        call = torch.compile(module)
    parts = split_inputs(case.inputs, setting.parts)

    def work() -> Any:
        total = None
        for part in parts:
            with (
                torch.autograd.graph.save_on_cpu(pin_memory=case.is_cuda)
                if setting.saved_on_cpu
                else contextlib.nullcontext()
            ):
                loss = first_tensor(call(**part)) / len(parts)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
            del loss
        optimizer.step()
        optimizer.zero_grad()
        return total

    return work


def checkpoint_blocks(module: Any, share: float) -> None:
    """Evenly over the model. What transformers' `gradient_checkpointing_enable` does to its layers, for any model."""
    carry = 0.0
    for part in repeated(module):
        carry += share
        if carry >= 1 - 1e-9:
            carry -= 1
            part.forward = partial(torch.utils.checkpoint.checkpoint, part.forward, use_reentrant=False)


def checkpoint_settings(_case: Case) -> list[Step]:
    return [Step(0.34), Step(0.67), Step(1.0), Step(1.0, host_optimizer=True)]


def accumulation_settings(case: Case) -> list[Step]:
    counts = parts_settings(case)[:3]
    most = counts[-1]
    return [*(Step(parts=parts) for parts in counts), Step(1.0, most), Step(1.0, most, host_optimizer=True)]


def memory_budget_settings(case: Case) -> list[Step]:
    """The share of the activations for which there is room, less of it, then the least."""
    static = case.resident_peak - case.activation_bytes
    room = ((case.budget or case.resident_peak) - static) / max(1, case.activation_bytes)
    shares = [round(part * room, 2) for part in (0.85, 0.5)]
    return [Step(memory_budget=share) for share in (*(each for each in shares if each > 0.05), 0.0)]


def library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotHere(f"'{name}' cannot be imported: {error}") from None


# All of them


def nothing_to_set(_case: Case) -> list[Any]:
    return [None]


@dataclass(frozen=True)
class Way:
    """One way: how it is made, what can be set, what it costs to try."""

    name: str
    make: Callable[[Case, Any], Work]
    settings: Callable[[Case], list[Any]] = nothing_to_set
    unlimited: bool = False
    """Everything resident: an upper line, without a budget."""
    fixed: bool = False
    """It needs the same whatever the budget is: measured once, for all budgets."""
    compiles: bool = False
    """In a process of its own, with more time."""
    better: Callable[[Case, Any, int], Any] | None = None
    """From a setting that worked and what it held: one that holds more of the budget."""
    weak: bool = False
    """Rarely the best: last."""


def larger_map(case: Case, setting: int, held: int) -> int | None:
    left = (case.budget or 0) - held
    return setting + int(0.9 * left) if left > 0.08 * (case.budget or 0) else None


def one(step: Step) -> Callable[[Case], list[Step]]:
    return lambda _case: [step]


INFERENCE = {
    way.name: way
    for way in (
        Way("eager", resident, unlimited=True),
        Way("prefetch-spread", partial(prefetched, choose=spread), lambda _case: [1.0, 0.9, 0.7]),
        Way("prefetch-first", partial(prefetched, choose=last), lambda _case: [1.0, 0.9, 0.7]),
        Way("split-batch", in_parts, parts_settings),
        Way("accelerate-map", mapped, map_settings, better=larger_map),
        Way("group-block", partial(grouped, level="block_level"), fixed=True),
        Way("group-leaf", partial(grouped, level="leaf_level"), fixed=True),
        Way("accelerate-offload", offloaded, fixed=True, weak=True),
        Way("inductor", compiled, unlimited=True, compiles=True, weak=True),
    )
}
TRAINING = {
    way.name: way
    for way in (
        Way("eager", trained, one(Step()), unlimited=True),
        Way("checkpoint", trained, checkpoint_settings),
        Way("grad-accumulation", trained, accumulation_settings),
        Way("host-optimizer", trained, one(Step(host_optimizer=True))),
        Way(
            "save_on_cpu",
            trained,
            lambda _case: [Step(saved_on_cpu=True), Step(saved_on_cpu=True, host_optimizer=True)],
        ),
        Way("activation-budget", trained, memory_budget_settings, compiles=True),
        Way("inductor", trained, one(Step(compile=True)), unlimited=True, compiles=True, weak=True),
    )
}
OURS = "loadmaster"


def ways(training: bool) -> dict[str, Way]:
    return TRAINING if training else INFERENCE
