"""Where a fitted model's parameters and buffers lie: on the host, where a GPU can copy from, or on the device.

to_host(model, session)      # plans bring them
to_device(model, session)    # plans have the rest of the memory
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loadmaster.errors import BadMachine, require
from loadmaster.execute.pinned import (
    LARGE,
    HostMemory,
    copy_rate,
    dense_parts,
    flat,
    is_whole,
    layout_of,
    lock_pages,
    shaped,
    wraps_others,
)
from loadmaster.execute.session import Session, Static

LIKELY_SHARE = 0.9
"""Of the memory that weights and all that an optimizer needs may take."""


def to_host(model: Any, session: Session, then: Callable[[], None] = lambda: None) -> None:
    """Parameters and buffers into host memory that a GPU can copy from: large ones where they are, if the driver can
    lock their pages, the others in few pieces; tensors that share memory still do. Pages of large ones are locked while
    the model is traced; `then` is called afterwards, on the device's thread."""
    torch = require("torch", "torch")
    session.wait_for_begun()
    session.hold_statics, session.deliver, session.held_bytes = False, False, 0
    if not session.is_cuda:
        know_statics(model, session)
        return
    there = [each for each in _named_statics(model).values() if each.is_cuda]
    with torch.no_grad():
        for each in there:
            if each.layout == torch.strided and not wraps_others(each):  # shared ones stay so
                each.data = each.detach().cpu()
                each.grad = None if each.grad is None else each.grad.cpu()
    if there:
        _move(model, session, torch.device("cpu"))
    every = dense_statics(model)
    with torch.no_grad():
        large = {
            each.untyped_storage().data_ptr(): each.untyped_storage()
            for each in every
            if each.untyped_storage().nbytes() >= LARGE and is_whole(each) and not each.is_pinned()
        }
        _move_to_pinned(every, large)
    torch.cuda.empty_cache()
    know_statics(model, session)

    def lock() -> None:
        with ThreadPoolExecutor(8) as pool:
            locked = list(pool.map(lock_pages, large.values()))
        kept = {address for address, done in zip(large, locked, strict=True) if done}
        session.pinned += [large[address] for address in kept]
        if len(kept) < len(large):  # some lie in a file, or were locked by somebody else
            _move_to_pinned(every, kept)
            know_statics(model, session)

    session.begin(lock, then)


def _move_to_pinned(tensors: Sequence[Any], stay: Collection[int]) -> None:
    """Copy tensors into few pieces of locked memory, but for those whose storages have these addresses."""
    torch, memory, moved = require("torch", "torch"), HostMemory(pinned=True), dict[int, Any]()
    with torch.no_grad():
        for each in tensors:
            address = each.untyped_storage().data_ptr()
            if address in stay or not each.numel() or (is_whole(each) and each.is_pinned()):
                continue
            if not is_whole(each):
                each.data = each.detach().contiguous().clone()
                address = each.untyped_storage().data_ptr()
            layout = layout_of(each)
            if address not in moved:
                moved[address] = torch.from_numpy(memory.take(layout.bytes).numpy())
                shaped(moved[address], layout).copy_(each.detach())
            each.data = shaped(moved[address], layout)


def likely_on_device(session: Session) -> bool:
    """Whether weights, gradients and the optimizer's state leave enough of the memory for a training step to be faster
    with them on the device than with them coming and going. Where this guess is wrong the model is traced twice."""
    held = session.static_bytes + session.trained_bytes + session.state_bytes
    known = session.choose_weights and session.memory is not None and session.state_bytes
    return bool(known) and held <= LIKELY_SHARE * (session.memory or 0)


def measure_link(model: Any, session: Session) -> None:
    """Weights may come slower than a fresh buffer does: it depends on which pages they lie in."""
    large = [each.detach() for each in dense_statics(model) if each.is_pinned() and is_whole(each)]
    rate = copy_rate([flat(each, layout_of(each)) for each in large], session.device)
    if rate is not None:
        session.slow_down(int(rate))


def to_device(model: Any, session: Session) -> None:
    """Parameters and buffers onto the device, beside the plans."""
    session.wait_for_begun()
    session.hold_statics = session.deliver = True
    if session.is_cuda:
        _move(model, session, session.device)
        know_statics(model, session)
        session.held_bytes = session.static_bytes + session.trained_bytes + session.state_bytes


def apply_to_all(model: Any, change: Callable[[Any], Any], *args: Any, **kwargs: Any) -> None:
    """`nn.Module._apply`. It exchanges what is in a weight that wraps others for something new only as long as nobody
    else knows it, and what was traced does: frozen ones are put anew."""
    torch, fresh = require("torch", "torch"), dict[int, tuple[Any, Any]]()
    for layer in model.modules():
        for name, each in layer._parameters.items() if type(layer._parameters) is dict else ():
            if each is None or each.requires_grad or not wraps_others(each):
                continue
            if id(each) not in fresh:
                new = torch.nn.Parameter(change(each.detach()), requires_grad=False)
                fresh[id(each)] = each, new
            layer._parameters[name] = fresh[id(each)][1]
    type(model)._apply(model, change, *args, **kwargs)


def _move(model: Any, session: Session, device: Any) -> None:
    """All of a model to another device, as its own classes do that: quantized weights have more than they show."""
    try:
        with require("torch", "torch").no_grad():
            apply_to_all(model, lambda each: each.to(device))
    except (RuntimeError, NotImplementedError) as error:
        raise BadMachine(
            f"the weights of '{session.name}' can't be moved to {device} ({str(error)[:200]})",
            object=session.name,
            remedy='load it on the CPU and fit it there, with weights="host"',
        ) from error


def know_statics(model: Any, session: Session) -> None:
    """Let graphs know parameters and buffers by where they lie."""
    session.statics = {}
    for name, each in _named_statics(model).items():
        know(session, name, each)


def _named_statics(model: Any) -> dict[str, Any]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def dense_statics(model: Any) -> list[Any]:
    """What parameters and buffers consist of."""
    return [part for each in _named_statics(model).values() for part in dense_parts(each)]


def know(session: Session, name: str, static: Any) -> None:
    """One of them."""
    for part in dense_parts(static):
        if part.numel():
            storage = part.untyped_storage()
            session.statics[storage.data_ptr()] = Static(name, bool(static.requires_grad), storage.nbytes())
