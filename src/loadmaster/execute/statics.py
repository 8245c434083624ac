"""Where a fitted model's parameters and buffers lie: on the host, where a GPU can copy from, or on the device.

to_host(model, session)      # plans bring them
to_device(model, session)    # plans have the rest of the memory
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loadmaster.errors import require
from loadmaster.execute.pinned import (
    LARGE,
    HostMemory,
    copy_rate,
    flat,
    is_whole,
    layout_of,
    lock_pages,
    shaped,
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
    every = list(dense_statics(model).values())
    with torch.no_grad():
        for each in every:
            if each.is_cuda:
                each.data = each.detach().cpu()
                each.grad = None if each.grad is None else each.grad.cpu()
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
    large = [each.detach() for each in model.parameters() if each.is_pinned() and is_whole(each)]
    rate = copy_rate([flat(each, layout_of(each)) for each in large], session.device)
    if rate is not None:
        session.slow_down(int(rate))


def to_device(model: Any, session: Session) -> None:
    """Parameters and buffers onto the device, beside the plans."""
    session.wait_for_begun()
    session.hold_statics = session.deliver = True
    if session.is_cuda:
        type(model)._apply(model, lambda each: each.to(session.device))
        know_statics(model, session)
        session.held_bytes = session.static_bytes + session.trained_bytes + session.state_bytes


def know_statics(model: Any, session: Session) -> None:
    """Let graphs know parameters and buffers by where they lie."""
    session.statics = {}
    for name, each in dense_statics(model).items():
        if each.numel():
            know(session, name, each)


def dense_statics(model: Any) -> dict[str, Any]:
    """Parameters and buffers that have a storage of their own; sparse ones stay where they are."""
    torch, named = require("torch", "torch"), dict([*model.named_parameters(), *model.named_buffers()])
    return {name: each for name, each in named.items() if each.layout == torch.strided}


def know(session: Session, name: str, static: Any) -> None:
    """One of them."""
    storage = static.untyped_storage()
    session.statics[storage.data_ptr()] = Static(name, bool(static.requires_grad), storage.nbytes())
