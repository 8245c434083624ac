"""An optimizer's step for a model whose parameters, gradients and states stay on the host.

    streamed = stream_optimizer(optimizer, "cuda", room=STREAM_BYTES)
    for batch in batches:
        loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(streamed.where, streamed.host_seconds, streamed.device_seconds)

A step runs on the host, or on the device: then parameters, gradients and states are copied through a small
block of device memory chunk by chunk. While chunk k is updated, chunk k + 1 is copied in and chunk k - 1 out.
The update itself is PyTorch's own in both places: a second optimizer of the same class and the same options
steps on the pieces that lie in the block. So it works for every optimizer that treats each element alone, and
the numbers are PyTorch's up to the rounding of its implementations: for float32 and float64 the fused one is
used where there is one and the user has not chosen, for all else the one that goes parameter by parameter.

Idea, not done: gradients that are still on the device need not travel to the host and back.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, NamedTuple

from loadmaster import clock
from loadmaster.errors import BadMachine, Refused, require
from loadmaster.execute.devices import Backend
from loadmaster.execute.executor import backend_for
from loadmaster.execute.pinned import HostMemory, dense_parts, layout_of, own_layout, shaped

PLACES = ("auto", "host", "device")
ELEMENTWISE = (
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
"""Classes of `torch.optim` whose update of an element depends on no other element: cutting is exact."""
FUSED = {"cpu": ("Adagrad", "Adam", "AdamW", "SGD"), "cuda": ("Adam", "AdamW", "SGD")}
"""Those with a fused implementation in every PyTorch that we support, by kind of device."""
LOW_BITS = {"8bit": 8, "fp8": 8, "4bit": 4}
"""How names of optimizers end whose states have so many bits an element."""
ONE_STATE = ("Adagrad", "Lion", "Muon", "RMSprop", "SGD")
"""Words in the names of those that keep one number for each element; others keep two."""
SCALARS = frozenset(("step", "mu_product", "eta", "mu"))
"""States that are one number for a whole parameter; all other tensors have the parameter's shape."""

PARAMETER, GRADIENT = "parameter", "gradient"
"""Keys beside those of states."""

SLOTS = 3
"""Chunks in the block at once: one comes in, one is updated, one goes out."""
SLOT_BYTES = 64 * 2**20
"""Of a chunk at the most: larger ones make copies no faster, and the first and last overlap with nothing."""
STREAM_BYTES = SLOTS * SLOT_BYTES
"""A step on the device makes no use of more room than this."""
PIECE_BYTES = 4 * 2**20
"""Of one tensor of a piece at the most, where the update isn't fused and so has temporaries of that size."""
WORKSPACE_BYTES = 5 * PIECE_BYTES
"""What updates that are not fused may allocate beside the room: three such temporaries, and PyTorch rounds."""
_ALIGNED = 128
_TRIALS = ("host", "device", "host", "device")
"""The first step in a place sets things up, so each has two and the faster one counts."""


def stream_optimizer(
    optimizer: Any,
    device: Any,
    *,
    room: Callable[[], Any] | int,
    where: str = "auto",
    clock: Callable[[], float] = clock.now,
    delay: Callable[[], float] | None = None,
) -> StreamedOptimizer:
    """Patch this optimizer's `step`; everything else of it stays as it is.

    Gradients must have arrived on the host when `step` is called, and when it returns all host tensors have
    their new values and a higher `_version`. States are made as PyTorch makes them; before the first step on a
    GPU they move to pinned memory, as do those of a loaded state dict. What can't be streamed (sparse or
    complex parameters, no elements, a momentum buffer that the first step makes, parameters on a device)
    steps on the host, as PyTorch does it; so do optimizers that aren't among `ELEMENTWISE`.

    Args:
      optimizer: of `torch.optim`, with its parameters on the host.
      device: 'cuda', 'cuda:1', or 'cpu' for tests.
      room: bytes of device memory to allocate for the time of a step, or a function that gives the block for
        a step (uint8, flat, on the device, nobody else's until the step returns). `STREAM_BYTES` are plenty.
      where: 'host', 'device', or 'auto': the first four steps go to the host and the device in turn and are
        timed, all later ones to the place of the fastest. The choice then depends on the day, and with it the
        last bits of the numbers; with the other two nothing is measured.
      clock: seconds, for 'auto'.
      delay: on a CPU, seconds that each copy is late.

    Returns:
      What it decided and measured, and `restore()`.
    """
    if where not in PLACES:
        raise BadMachine(
            f"an optimizer's step can't run on '{where}'",
            object="where",
            number=where,
            remedy=f"use {', '.join(PLACES)}",
        )
    scheduled = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if isinstance(getattr(optimizer.step, "streamed", None), StreamedOptimizer):
        optimizer.step.streamed.restore()
    streamed = StreamedOptimizer(optimizer, device, room, where, clock, delay)
    if streamed.host_only is None:
        streamed.patch()
        if scheduled:  # a scheduler looks whether somebody has put another step in place of its own
            optimizer.step.__func__._wrapped_by_lr_sched = True
    return streamed


class StreamedOptimizer:
    """An optimizer whose `step` is patched. `where`: 'auto' as long as it is not decided."""

    def __init__(
        self,
        optimizer: Any,
        device: Any,
        room: Callable[[], Any] | int,
        where: str,
        clock: Callable[[], float],
        delay: Callable[[], float] | None,
    ) -> None:
        self._torch = require("torch", "torch")
        self.optimizer, self.where = optimizer, where
        self.host_only: str | None = _host_only(optimizer)
        """Why it can only step on the host; None: it need not."""
        self.host_seconds: float | None = None
        self.device_seconds: float | None = None
        self._trials, self._clock = 0, clock
        self._device, self._room, self._delay = device, room, delay
        self._backend: Backend | None = None  # a host's step needs no GPU
        self._memory: dict[Any, HostMemory] = {}
        self._before = vars(optimizer).get("step")
        if self.host_only is not None:
            self.where = "host"
        else:
            self._update = type(optimizer).step.__wrapped__  # the step without hooks: ours has them

    def patch(self) -> None:
        """Ours in place of the optimizer's own step."""
        torch = self._torch

        def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
            optimizer._opt_called = True  # for learning rate schedulers
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with torch.no_grad():
                self._step()
            return loss

        # Somebody may compile what calls it: it has copies and a state of its own.
        hooked: Any = torch._dynamo.disable(torch.optim.Optimizer.profile_hook_step(step))
        hooked.hooked, hooked.streamed = True, self
        self.optimizer.step = MethodType(hooked, self.optimizer)

    def restore(self) -> None:
        """The optimizer's own step again, and no more threads or streams."""
        if self.host_only is None:
            vars(self.optimizer).pop("step", None)
            if self._before is not None:
                self.optimizer.step = self._before
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _step(self) -> None:
        trial = self.where == "auto"
        place = _TRIALS[self._trials] if trial else self.where
        self._create_states()
        if place == "device":
            self._pin_states()
        start = self._clock() if trial else 0.0
        if place == "device":
            self._device_step()
        else:
            self._host_step(self._with_gradients())
        if trial:
            self._note(place, self._clock() - start)

    def _note(self, place: str, seconds: float) -> None:
        """A trial's time; after the last one the choice, which is the host where both are alike."""
        name = f"{place}_seconds"
        known = getattr(self, name)
        setattr(self, name, seconds if known is None else min(known, seconds))
        self._trials += 1
        if self._trials == len(_TRIALS):
            assert self.host_seconds is not None and self.device_seconds is not None
            self.where = "host" if self.host_seconds <= self.device_seconds else "device"

    # What both places need.

    def _create_states(self) -> None:
        """States as PyTorch makes them, for parameters that have none yet."""
        make = self.optimizer._init_group
        lists = len(inspect.signature(make).parameters) - 1
        for group in self.optimizer.param_groups:
            make(group, *([] for _ in range(lists)))

    def _with_gradients(self) -> list[tuple[int, Any]]:
        """(group, parameter) of all that a step updates."""
        groups = enumerate(self.optimizer.param_groups)
        return [(number, p) for number, group in groups for p in group["params"] if p.grad is not None]

    def _twin(
        self, groups: Mapping[tuple[int, bool], list[Any]], state: Any, device: Any, *, whole: bool
    ) -> Any:
        """An optimizer of the same class and options for other tensors, by (group, fused). `whole`: what isn't
        fused may be updated all at once, as the user or PyTorch chooses, which takes more memory."""
        optimizer = self.optimizer
        kind: Any = type(optimizer)
        twin = kind.__new__(kind)
        vars(twin).update({name: value for name, value in vars(optimizer).items() if name != "step"})
        twin.state, twin.param_groups = state, []
        for (number, fused), params in groups.items():
            group = {**optimizer.param_groups[number], "params": params}
            if fused or group.get("fused"):
                group |= {"fused": fused, "foreach": False}
            elif not whole:
                group["foreach"] = False
            twin.param_groups.append(group)
        for name in ("grad_scale", "found_inf"):  # of a GradScaler; PyTorch would not wait for the copy
            value: Any = getattr(optimizer, name, None)
            if self._torch.is_tensor(value):
                setattr(twin, name, value.to(device))
        return twin

    def _fuses(self, group: Mapping[str, Any], p: Any, kind: str, *, flat: bool) -> bool:
        """Whether the fused implementation updates a parameter: where the user says so, or has not chosen
        and its numbers are those of the others up to rounding (of bfloat16 they are more exact). `flat`: it
        sees flat pieces; else tensors as they are, and on CPUs it takes no notice of their strides."""
        torch, chosen = self._torch, group.get("fused")
        if chosen and getattr(self.optimizer, "found_inf", None) is not None:
            return True  # no other knows a GradScaler
        supported = type(self.optimizer).__name__ in FUSED.get(kind, ()) and "fused" in group
        if not supported or chosen is False or (chosen is None and group.get("foreach")):
            return False
        state = self.optimizer.state.get(p, {})
        if _lacks_momentum(group, state) or not _are_plain(p, p.grad):
            return False
        others = [p.grad, *_elementwise(state).values()]
        if not flat and not (_is_dense(p) and all(other.stride() == p.stride() for other in others)):
            return False
        same = all(other.dtype == p.dtype for other in others) and p.dtype in (torch.float32, torch.float64)
        step = getattr(state.get("step"), "dtype", torch.float32)
        return bool(chosen) or (same and step == torch.float32)

    # On the host.

    def _host_step(self, params: Sequence[tuple[int, Any]]) -> None:
        groups: dict[tuple[int, bool], list[Any]] = {}
        for number, p in params:
            fused = self._fuses(self.optimizer.param_groups[number], p, p.device.type, flat=False)
            groups.setdefault((number, fused), []).append(p)
        if groups:
            self._update(self._twin(groups, self.optimizer.state, "cpu", whole=True))
            for p in itertools.chain.from_iterable(groups.values()):
                self._torch.autograd.graph.increment_version(p)  # fused updates don't

    # On the device.

    def _pin_states(self) -> None:
        """States of a GPU's optimizer lie where it can copy them by itself."""
        if self._backend is None:
            self._backend = backend_for(self._device, self._delay)
        if not self._backend.pinned:
            return
        found = [
            (state, key, value)
            for state in self.optimizer.state.values()
            for key, value in _elementwise(state).items()
            if value.device.type == "cpu" and value.numel() and not value.is_pinned()
        ]
        for dtype in {value.dtype for _, _, value in found} - set(self._memory):
            # One for each type: `torch.save` refuses two types in one storage.
            expected = sum(value.nbytes for _, _, value in found if value.dtype == dtype)
            self._memory[dtype] = HostMemory(True, expected)
        while found:
            state, key, value = found.pop()  # so that it is freed before the next one is pinned
            value = own_layout(value)
            layout = layout_of(value)
            state[key] = shaped(self._memory[value.dtype].take(layout.bytes), layout)
            state[key].copy_(value)

    def _device_step(self) -> None:
        streamed: list[_Streamed] = []
        rest: list[tuple[int, Any]] = []
        for number, p in self._with_gradients():
            entry = self._streamed(number, p)
            if entry is None:
                rest.append((number, p))
            else:
                streamed.append(entry)
        self._host_step(rest)
        if streamed:
            self._stream(streamed)

    def _streamed(self, number: int, p: Any) -> _Streamed | None:
        """How a parameter travels; None: it does not."""
        assert self._backend is not None
        torch, kind = self._torch, self._backend.device.type
        group, state = self.optimizer.param_groups[number], self.optimizer.state.get(p, {})
        each = _elementwise(state)
        if (
            not p.numel()
            or p.is_complex()
            or _lacks_momentum(group, state)
            or group.get("differentiable")
            or group.get("capturable")
            or not _are_plain(p, p.grad, *each.values())
            or (group.get("fused") and type(self.optimizer).__name__ not in FUSED[kind])
            or any(
                tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.shape != p.shape
                for tensor in (p, p.grad, *each.values())
            )
        ):
            return None
        order = _memory_order(p)
        whole = {PARAMETER: p, GRADIENT: p.grad, **each}
        flat = {key: tensor.detach().permute(order).reshape(-1) for key, tensor in whole.items()}
        copied = [
            (tensor.detach().permute(order), flat[key])
            for key, tensor in whole.items()
            if flat[key].data_ptr() != tensor.data_ptr()
        ]
        fused = self._fuses(group, p, kind, flat=True)
        return _Streamed(number, fused, flat, copied, state)

    def _stream(self, streamed: Sequence[_Streamed]) -> None:
        """All of them through the block."""
        torch, backend = self._torch, self._backend
        assert backend is not None
        block = self._block()
        slot = min(SLOT_BYTES, len(block) // SLOTS) // _ALIGNED * _ALIGNED
        chunks = cut([entry.size() for entry in streamed], slot)
        # The steps of fused updates are on the device: one vector, and one copy in each direction.
        order = [piece.parameter for chunk in chunks for piece in chunk]
        steps = torch.tensor([float(streamed[number].state.get("step", 0.0)) for number in order])
        steps = steps.to(backend.device, torch.float32)
        step_of_piece = iter(steps.unbind())
        states: dict[int, dict[str, Any]] = {}  # what is one number is alike in all pieces of a parameter

        def update(chunk: Sequence[Piece], tensors: Sequence[dict[str, Any]]) -> None:
            groups: dict[tuple[int, bool], list[Any]] = {}
            state: dict[Any, dict[str, Any]] = {}
            for piece, there in zip(chunk, tensors, strict=True):
                entry, step, p = streamed[piece.parameter], next(step_of_piece), there[PARAMETER]
                p.grad = there[GRADIENT]
                state[p] = states[piece.parameter] = entry.state_of(there, step if entry.fused else None)
                groups.setdefault((entry.group, entry.fused), []).append(p)
            self._update(self._twin(groups, state, backend.device, whole=False))

        # A fused update with a GradScaler changes gradients too.
        constant = () if getattr(self.optimizer, "grad_scale", None) is not None else (GRADIENT,)
        _Pipeline(backend, block, slot, streamed, chunks, constant).run(update)
        last_step = dict(zip(order, steps.to("cpu"), strict=True))
        for number, entry in enumerate(streamed):
            entry.finish(states[number] | ({"step": last_step[number]} if entry.fused else {}))

    def _block(self) -> Any:
        """The device memory for a step, from where tensors of every type can lie."""
        assert self._backend is not None
        torch, device = self._torch, self._backend.device
        if callable(self._room):
            block = self._room()
            if block.dtype != torch.uint8 or block.dim() != 1 or not block.is_contiguous():
                raise BadMachine(
                    f"the room for an optimizer's step is {block.dtype} {tuple(block.shape)}",
                    object="room",
                    remedy="give a flat block of bytes (uint8)",
                )
        else:
            block = torch.empty(min(self._room, STREAM_BYTES), dtype=torch.uint8, device=device)
        return block[-block.storage_offset() % _ALIGNED :]


def _host_only(optimizer: Any) -> str | None:
    torch = require("torch", "torch")
    name = type(optimizer).__name__
    if name not in ELEMENTWISE or type(optimizer) is not getattr(torch.optim, name, None):
        return f"{name} is not an optimizer of PyTorch that updates each element alone"
    if optimizer.defaults.get("differentiable"):
        return "its step is differentiable"
    return None


def _lacks_momentum(group: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """SGD makes its momentum buffers in the update itself."""
    return bool(group.get("momentum")) and state.get("momentum_buffer") is None


def _elementwise(state: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's states with a number for each of its elements."""
    is_tensor = require("torch", "torch").is_tensor
    return {key: value for key, value in state.items() if key not in SCALARS and is_tensor(value)}


def _are_plain(*tensors: Any) -> bool:
    """Whether they are dense and have bytes of their own: quantized ones wrap others."""
    return all(any(part is each for part in dense_parts(each)) for each in tensors)


def _memory_order(tensor: Any) -> list[int]:
    """Dimensions as they lie in memory, the one with the largest stride first."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)


def _is_dense(tensor: Any) -> bool:
    return bool(tensor.permute(_memory_order(tensor)).is_contiguous())


class _Streamed(NamedTuple):
    """A parameter that is copied through the block, piece by piece."""

    group: int
    fused: bool
    flat: dict[str, Any]
    """`PARAMETER`, `GRADIENT` and states on the host, flat and all in the same order of elements."""
    copied: list[tuple[Any, Any]]
    """(tensor, its flat copy) where no flat view is possible."""
    state: dict[str, Any]

    def size(self) -> Size:
        itemsizes = tuple(tensor.element_size() for tensor in self.flat.values())
        elements = self.flat[PARAMETER].numel()
        return Size(elements, itemsizes, elements if self.fused else PIECE_BYTES // max(itemsizes))

    def at(self, base: Any, piece: Piece) -> dict[str, Any]:
        """A piece's tensors on the device."""
        return {
            key: base[offset : offset + (piece.high - piece.low) * flat.element_size()].view(flat.dtype)
            for (key, flat), offset in zip(self.flat.items(), piece.offsets, strict=True)
        }

    def state_of(self, tensors: Mapping[str, Any], step: Any | None) -> dict[str, Any]:
        """For the update of a piece. `step`: on the device, as fused updates need it."""
        state = {
            key: tensors[key] if key in self.flat else value.clone() if hasattr(value, "clone") else value
            for key, value in self.state.items()
        }
        if step is not None and "step" in state:
            state["step"] = step
        return state

    def finish(self, last: Mapping[str, Any]) -> None:
        """After the last copy: states that are one number, and what was copied."""
        for key, value in self.state.items():
            if key in self.flat:
                continue
            if hasattr(value, "copy_"):
                value.copy_(last[key])
            else:
                self.state[key] = last[key]
        for tensor, flat in self.copied:
            tensor.copy_(flat.view(tensor.shape))


class _Pipeline:
    """Chunks through the slots of a block: while one is updated, the next comes in and the last goes out."""

    def __init__(
        self,
        backend: Backend,
        block: Any,
        slot: int,
        streamed: Sequence[_Streamed],
        chunks: Sequence[Sequence[Piece]],
        constant: Sequence[str],
    ) -> None:
        self._backend, self._block, self._slot = backend, block, slot
        self._streamed, self._chunks, self._constant = streamed, chunks, constant
        self._copies = 0
        self._in, self._out = [-1] * len(chunks), [-1] * len(chunks)  # the last copy of each chunk
        self._tensors: dict[int, list[dict[str, Any]]] = {}

    def run(self, update: Callable[[Sequence[Piece], Sequence[dict[str, Any]]], None]) -> None:
        """When it returns nothing is under way any more."""
        backend, chunks = self._backend, self._chunks
        backend.begin(2 * sum(len(piece.offsets) for chunk in chunks for piece in chunk))
        try:
            backend.mark(inward=True, outward=False)  # others may have used the block until now
            self._copy_in(0)
            for number, chunk in enumerate(chunks):
                if number + 1 < len(chunks):
                    self._copy_in(number + 1)
                backend.wait(self._in[number])
                update(chunk, self._tensors[number])
                backend.mark(inward=False, outward=True)
                self._copy_out(number)
            for last in self._out:
                backend.wait(last)
        finally:
            backend.settle()

    def _copy_in(self, number: int) -> None:
        base = self._block[number % SLOTS * self._slot :]
        self._tensors[number] = [
            self._streamed[piece.parameter].at(base, piece) for piece in self._chunks[number]
        ]
        after = (
            [self._out[number - SLOTS]] if number >= SLOTS else []
        )  # copies of a direction keep their order
        for piece, there in zip(self._chunks[number], self._tensors[number], strict=True):
            for key, flat in self._streamed[piece.parameter].flat.items():
                self._backend.copy(self._copies, True, there[key], flat[piece.low : piece.high], after)
                after, self._in[number] = [], self._copies
                self._copies += 1

    def _copy_out(self, number: int) -> None:
        for piece, there in zip(self._chunks[number], self._tensors.pop(number), strict=True):
            for key, flat in self._streamed[piece.parameter].flat.items():
                if key not in self._constant:
                    self._backend.copy(self._copies, False, flat[piece.low : piece.high], there[key], ())
                    self._out[number] = self._copies
                    self._copies += 1


class Size(NamedTuple):
    """What a parameter needs in a chunk."""

    elements: int
    itemsizes: tuple[int, ...]
    """Of its tensors: parameter, gradient, states."""
    most: int
    """Elements of a piece."""


class Piece(NamedTuple):
    """Elements `low` to `high` of a parameter in a chunk; each of its tensors has an offset."""

    parameter: int
    low: int
    high: int
    offsets: tuple[int, ...]


def cut(sizes: Sequence[Size], slot: int) -> list[list[Piece]]:
    """Chunks of at most `slot` bytes that hold all elements of all parameters, in order."""
    chunks: list[list[Piece]] = [[]]
    top = 0
    for number, size in enumerate(sizes):
        low = 0
        while low < size.elements:
            wanted = min(size.most, size.elements - low)
            count = min(wanted, _fitting(size.itemsizes, slot - top))
            if chunks[-1] and (not count or (count < wanted and top > slot // 8 * 7)):
                chunks.append([])  # rather than a sliver at the end
                top = 0
                continue
            if not count:
                need = SLOTS * sum(max(_ALIGNED, itemsize) for itemsize in size.itemsizes)
                raise Refused(
                    f"an optimizer's step needs a room of at least {need:,} bytes on the device",
                    object="room",
                    number=SLOTS * slot,
                    remedy=f"give it more, up to {STREAM_BYTES:,}, or step on the host",
                )
            offsets = []
            for itemsize in size.itemsizes:
                offsets.append(top)
                top += -(-count * itemsize // _ALIGNED) * _ALIGNED
            chunks[-1].append(Piece(number, low, low + count, tuple(offsets)))
            low += count
            if count < wanted:
                chunks.append([])
                top = 0
    return chunks if chunks[-1] else chunks[:-1]


def _fitting(itemsizes: Sequence[int], free: int) -> int:
    """Elements of which all tensors fit, each aligned; if there are many, such a number that the next piece
    is aligned on the host too."""
    count = max(0, free - len(itemsizes) * (_ALIGNED - 1)) // sum(itemsizes)
    if not count and free >= len(itemsizes) * _ALIGNED:
        count = _ALIGNED // max(itemsizes)
    return count if count < _ALIGNED else count // _ALIGNED * _ALIGNED


def state_bytes(optimizer: Any) -> int:
    """What an optimizer keeps beside the parameters: what it has already, else about what it will have."""
    is_tensor, name = require("torch", "torch").is_tensor, type(optimizer).__name__
    values = [value for state in optimizer.state.values() for value in state.values() if is_tensor(value)]
    if values:
        return sum(int(part.nbytes) for value in values for part in dense_parts(value))
    params = [each for group in optimizer.param_groups for each in group["params"]]
    low = next((bits for end, bits in LOW_BITS.items() if name.lower().endswith(end)), None)
    count = sum(int(each.numel()) * (low or 8 * int(each.element_size())) for each in params)
    return count * (1 if any(word in name for word in ONE_STATE) else 2) // 8


def fuse(optimizer: Any) -> None:
    """Let its steps take no memory of their own: the usual ones on a GPU take as much as the parameters."""
    for group in optimizer.param_groups:
        if (
            type(optimizer).__name__ in ("Adam", "AdamW", "SGD")
            and group.get("foreach") is group.get("fused") is None
        ):
            group["fused"] = all(each.is_floating_point() for each in group["params"])
