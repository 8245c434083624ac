"""Recurrent layers (LSTM, GRU, plain ones) as one op each, with the kernels that the module itself has.

    keep_recurrent(module)       # in a graph of torch.compile
    with recurrent_ops(): ...    # where a module is traced as it is called

Traced, PyTorch takes such a layer apart into some ten ops a step of the sequence, or into a kernel whose workspace for
the backward pass has no size. Here the backward op computes the layer once more: between the passes nothing is kept but
what the layer reads.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any

from loadmaster.errors import require

KINDS = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""How many tensors the state of each has."""

_NAMESPACE = "loadmaster"
_LAYER = "Tensor data, Tensor[] state, Tensor[] weights, bool has_biases"


def keep_recurrent(module: Any) -> None:
    """Let a graph of torch functions call recurrent layers as one op each."""
    torch = require("torch", "torch")
    own = {getattr(torch, kind): function for kind, function in _functions().items()}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in own and not _is_packed(node.args):
            node.target = own[node.target]


@contextmanager
def recurrent_ops() -> Iterator[None]:
    """Let recurrent modules that are called meanwhile call one op each."""
    torch = require("torch", "torch")
    functions = torch._VF  # where PyTorch's modules find them
    before = {kind: getattr(functions, kind) for kind in KINDS}

    def either(kind: str) -> Callable[..., Any]:
        return lambda *args: (before if _is_packed(args) else _functions())[kind](*args)

    for kind in KINDS:
        setattr(functions, kind, either(kind))
    try:
        yield
    finally:
        for kind in KINDS:
            delattr(functions, kind)  # it looks them up again


def _is_packed(args: Sequence[Any]) -> bool:
    """Whether a call is that of sequences of several lengths, which has their numbers in second place."""
    return len(args) > 3 and not isinstance(args[2], list | tuple)


@functools.cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    """In place of torch.lstm and its like, with their arguments."""
    _define_ops()
    return {kind: _function(kind) for kind in KINDS}


def _function(kind: str) -> Callable[..., Any]:
    def recurrent(
        input: Any,
        hx: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Any, ...]:
        torch = require("torch", "torch")
        data, state, weights = input, list(hx) if KINDS[kind] > 1 else [hx], list(params)
        if torch.is_autocast_enabled(data.device.type):
            dtype = torch.get_autocast_dtype(data.device.type)
            data, *rest = (each.to(dtype) for each in (data, *state, *weights))
            state, weights = rest[: len(state)], rest[len(state) :]
        data = data.transpose(0, 1) if batch_first else data
        options = has_biases, num_layers, dropout, train, bidirectional
        output, *last = _layers(kind, data, state, weights, *options)
        return output.transpose(0, 1) if batch_first else output, *last

    recurrent.__name__ = recurrent.__qualname__ = kind
    return recurrent


def _layers(
    kind: str,
    data: Any,
    state: Sequence[Any],
    weights: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
) -> list[Any]:
    """An op for each layer: less needs to be there at once, and no op draws the numbers of dropouts, so that every one
    can be run again."""
    torch = require("torch", "torch")
    own, directions = len(weights) // num_layers, 2 if bidirectional else 1
    last = []
    for layer in range(num_layers):
        if layer and dropout and training:
            data = torch.dropout(data, dropout, True)
        its_state = [each[layer * directions : (layer + 1) * directions] for each in state]
        its_weights = weights[layer * own : (layer + 1) * own]
        data, *found = _op(kind)(data, its_state, its_weights, has_biases, training, bidirectional)
        last.append(found)
    return [data, *(torch.cat(each) if num_layers > 1 else each[0] for each in zip(*last, strict=True))]


def _op(name: str) -> Any:
    return getattr(require("torch", "torch").ops.loadmaster, name)


def _define_ops() -> None:
    torch = require("torch", "torch")
    # It copies weights that do not lie side by side, and tells users to put them there. Here the plan says where they lie.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    for kind, states in KINDS.items():
        _define_backward(kind)
        results = ", ".join(["Tensor"] * (1 + states))
        op = torch.library.custom_op(
            f"{_NAMESPACE}::{kind}",
            functools.partial(_forward, kind),
            mutates_args=(),
            schema=f"({_LAYER}, bool training, bool bidirectional) -> ({results})",
        )
        op.register_fake(_forward_fake)
        op.register_autograd(functools.partial(_gradients, kind), setup_context=_remember)


def _define_backward(kind: str) -> None:
    op = require("torch", "torch").library.custom_op(
        f"{_NAMESPACE}::{kind}_backward",
        functools.partial(_backward, kind),
        mutates_args=(),
        schema=f"(Tensor[] gradients, {_LAYER}, bool bidirectional, bool[] needed) -> Tensor[]",
    )
    op.register_fake(_backward_fake)


def _call(
    kind: str, data: Any, state: Sequence[Any], weights: Sequence[Any], *options: Any
) -> tuple[Any, ...]:
    """PyTorch's own, of data with the steps first. `options`: has_biases, training, bidirectional."""
    has_biases, training, bidirectional = options
    given = list(state) if KINDS[kind] > 1 else state[0]
    own = getattr(require("torch", "torch"), kind)
    found = own(data, given, list(weights), has_biases, 1, 0.0, training, bidirectional, False)
    return tuple(found)


def _forward(kind: str, data: Any, state: Sequence[Any], weights: Sequence[Any], *options: Any) -> Any:
    found, places = [], set()
    for each in _call(kind, data, state, weights, *options):
        place = each.untyped_storage()._cdata
        shared = place in places or any(place == own.untyped_storage()._cdata for own in state)
        found.append(each.clone() if shared else each.contiguous())  # results lie apart, as they are traced
        places.add(place)
    return tuple(found)


def _forward_fake(data: Any, state: Sequence[Any], weights: Sequence[Any], *options: Any) -> tuple[Any, ...]:
    directions = 2 if options[-1] else 1
    output = data.new_empty((*data.shape[:-1], state[0].shape[-1] * directions))
    return output, *(data.new_empty(each.shape) for each in state)


def _remember(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    data, state, weights, has_biases, _, bidirectional = inputs
    ctx.save_for_backward(data, *state, *weights)
    ctx.options = has_biases, bidirectional


def _gradients(kind: str, ctx: Any, *gradients: Any) -> Any:
    """Those of an op's arguments."""
    states = KINDS[kind]
    data, *rest = ctx.saved_tensors
    state, weights = rest[:states], rest[states:]
    of_data, of_state, of_weights, *_ = ctx.needs_input_grad
    needed = [of_data, *of_state, *of_weights]
    found = iter(_op(f"{kind}_backward")(list(gradients), data, state, weights, *ctx.options, needed))
    every = [next(found) if each else None for each in needed]
    return every[0], every[1 : 1 + states], every[1 + states :], None, None, None


def _backward(
    kind: str,
    gradients: Sequence[Any],
    data: Any,
    state: Sequence[Any],
    weights: Sequence[Any],
    has_biases: bool,
    bidirectional: bool,
    needed: Sequence[bool],
) -> list[Any]:
    torch = require("torch", "torch")
    with _recording():
        own = [_ordinary(each) for each in (data, *state, *weights)]
        for each in compress(own, needed):
            each.requires_grad_()
        own_state, own_weights = own[1 : 1 + len(state)], own[1 + len(state) :]
        found = _call(kind, own[0], own_state, own_weights, has_biases, True, bidirectional)
        results = torch.autograd.grad(found, list(compress(own, needed)), list(gradients))
    return [each.contiguous() for each in results]


def _ordinary(tensor: Any) -> Any:
    """The same memory as a tensor that autograd takes, even if it was made in inference mode."""
    new = require("torch", "torch").empty(0, dtype=tensor.dtype, device=tensor.device)
    return new.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


@contextmanager
def _recording() -> Iterator[None]:
    """Let autograd record what is computed: inside an op it does not, whatever the gradient mode."""
    torch = require("torch", "torch")
    tls = torch._C
    excluded = tls._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(tls.DispatchKey, key))
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        tls._ForceDispatchKeyGuard(tls._dispatch_tls_local_include_set(), excluded),
    ):
        yield


def _backward_fake(
    _: Any, data: Any, state: Sequence[Any], weights: Sequence[Any], *options: Any
) -> list[Any]:
    needed = options[-1]
    return [each.new_empty(each.shape) for each in compress([data, *state, *weights], needed)]
