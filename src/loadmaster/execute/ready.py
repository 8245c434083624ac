"""A user's function as something to run: captured, with weights and inputs, and the ordinary run.

Large models are never made for real: with random weights only their shapes are taken, from the meta
device, and numbers are made up where they are needed.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

from loadmaster.errors import require
from loadmaster.execute.devices import CudaBackend
from loadmaster.execute.executor import Results
from loadmaster.execute.op_times import Clock, median
from loadmaster.execute.pinned import RandomWeights, made_up
from loadmaster.program.importers import load_function
from loadmaster.program.importers.torch.captured import Captured, capture_spec
from loadmaster.program.importers.torch.importer import (
    keeps_cache,
    made_on_cpu,
    made_on_meta,
    model_and_inputs,
    plain_result,
)
from loadmaster.program.importers.torch.nested import has_nested
from loadmaster.program.program import TensorKind

WEIGHTS = ("module", "random")
CLOSE = {2: 5e-2, 4: 1e-3, 8: 1e-6}
"""By bytes of an element: differences, as a share of the largest value, that kernels may make which
add in another order."""
VANISHING = 1e-3
"""Of the largest gradient of all: a parameter's counts as at least that large. Below are rounding errors of zeros, as of a
bias before a batch norm."""


@dataclass(frozen=True)
class Ready:
    """A model that can be run as a plan says, and as it is."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    captured: Captured
    weights: Mapping[str, Any]
    training: bool

    @property
    def inputs(self) -> list[Any]:
        return self.captured.inputs(self.args, self.kwargs)

    @property
    def input_names(self) -> list[str]:
        """What the module calls its inputs, in the same order; of a part of a nested one, its path."""
        from torch.utils._pytree import keystr, tree_flatten_with_path

        parameters = list(inspect.signature(self.module.forward).parameters)
        leaves, _ = tree_flatten_with_path((self.args, dict(self.kwargs)))
        names = []
        for (place, key, *rest), _ in leaves:
            by_place = place.idx == 0 and key.idx < len(parameters)
            own = parameters[key.idx] if by_place else str(key.idx if place.idx == 0 else key.key)
            names.append(f"{own}{keystr(tuple(rest))}")
        return [names[given.position] for given in self.captured.given if given.kind == TensorKind.INPUT]

    def fed(self, inputs: Sequence[Any]) -> Ready:
        """The same with other inputs."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, shape = tree_flatten((self.args, self.kwargs))
        positions = [given.position for given in self.captured.given if given.kind == TensorKind.INPUT]
        for position, value in zip(positions, inputs, strict=True):
            leaves[position] = value
        args, kwargs = tree_unflatten(leaves, shape)
        return replace(self, args=args, kwargs=kwargs)


def make_ready(
    spec: str,
    device: str,
    *,
    training: bool = False,
    weights: str = "module",
    split_over: int | None = None,
    seed: int = 0,
) -> Ready:
    """Call 'module:function', on the CPU for its own weights or on the meta device for random ones,
    and capture what it gives for a device."""
    require("torch", "torch")
    function = load_function(spec)
    result = made_on_meta(function) if weights == "random" else made_on_cpu(function)
    module, args, kwargs = model_and_inputs(result, spec, training=training)
    captured = capture_spec(spec, device, (module, args, kwargs), training=training, split_over=split_over)
    if weights == "random":
        args, kwargs = _made_up(args, kwargs, seed)
        return Ready(module, args, kwargs, captured, RandomWeights(captured, device, seed), training)
    # A tracer may call what is shared by any of its names.
    own = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    return Ready(module, args, kwargs, captured, own, training)


def _made_up(args: Any, kwargs: Any, seed: int) -> Any:
    """Inputs of these shapes: normal numbers, and 0 or 1 where they count or choose."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_map_only

    random = torch.Generator().manual_seed(seed)

    def value(like: Any) -> Any:
        if like.dtype.is_floating_point:
            return torch.randn(like.shape, generator=random).to(like.dtype)
        return torch.randint(2, like.shape, generator=random).to(like.dtype)

    return tree_map_only(torch.Tensor, value, (args, kwargs))


SEED = 0
"""Of random numbers in runs that are compared."""


@dataclass(frozen=True)
class OrdinaryRun:
    """The module itself with everything on the device."""

    values: Mapping[str, Any]
    """What it gives, by name, on the host."""
    peak_bytes: int | None
    """Most that was in use, weights and inputs included; None: it can't be counted."""
    seconds: float | None
    """The median of several runs; None if none were asked for."""


def ordinary_run(ready: Ready, device: str, *, repeats: int = 0, warmups: int = 0) -> OrdinaryRun:
    """Run the module as PyTorch does: once for its results and its peak, then for its time."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_map_only

    at = torch.device(device)
    with _Peak(at) as most:
        values = values_on(ready, device)
        args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(device), (ready.args, ready.kwargs))

        def step() -> list[Any]:
            for value in values.values():
                value.grad = None
            with torch.set_grad_enabled(ready.training):
                found = torch.func.functional_call(ready.module, values, args, kwargs)
                leaves = _outputs(found, ready)
                if ready.training:
                    leaves[0].backward()
            return leaves

        torch.manual_seed(SEED)
        counted = at.type == "cuda" or not has_nested(ready.captured.graph)
        with most.watching(values, args, kwargs) if counted else nullcontext():
            leaves = step()
    named = {
        f"output {i}": leaf.detach().to("cpu")
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
    }
    grads = {name: value.grad for name, value in values.items() if value.grad is not None}
    named |= {f"gradient {name}": gradient.to("cpu") for name, gradient in grads.items()}
    del leaves, grads
    seconds = None
    if repeats:
        seconds = median(Clock(at).seconds(step, repeats=repeats, warmups=warmups))
    return OrdinaryRun(named, most.bytes if counted else None, seconds)


def values_on(ready: Ready, device: str) -> dict[str, Any]:
    """All parameters and buffers of the module, those that no op reads too."""
    found: dict[str, Any] = {}
    for name, own in [*ready.module.named_parameters(), *ready.module.named_buffers()]:
        if name in ready.weights:
            value = ready.weights[name].detach().to(device, copy=True)
        elif own.device.type == "meta":
            value = made_up(name, own.shape, own.dtype, device)
        else:
            value = own.detach().to(device, copy=True)
        found[name] = value.requires_grad_(ready.training and own.requires_grad)
    return found


def _outputs(found: Any, ready: Ready) -> list[Any]:
    """What a module gave, flat, as the captured graph gives it: of a training step the tensors alone."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(plain_result(found, keeps_cache(ready.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) or not ready.training]


class _Peak:
    """Bytes in use, at most: on a CPU those of the tensors, on a GPU what the allocator says."""

    def __init__(self, device: Any) -> None:
        self.bytes = self._now = 0
        self._seen: set[int] = set()
        self._backend = CudaBackend(device) if device.type == "cuda" else None

    def __enter__(self) -> Self:
        if self._backend is not None:
            self._backend.open()
            self._backend.reset_peaks()
        return self

    def __exit__(self, *_: object) -> None:
        if self._backend is not None:
            self.bytes = self._backend.peaks()[0]
            self._backend.close()

    @contextmanager
    def watching(self, *there: Any) -> Iterator[None]:
        """Count storages, those of `there` first, until they are gone; a GPU's allocator counts by itself."""
        from torch.utils._python_dispatch import TorchDispatchMode

        add = self._add

        class Watch(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                made = func(*args, **(kwargs or {}))
                add(made)
                return made

        if self._backend is not None:
            yield
            return
        add(there)
        with Watch():
            yield

    def _add(self, tensors: Any) -> None:
        torch = require("torch", "torch")
        from torch.utils._pytree import tree_leaves

        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
                continue  # a sparse one has no storage
            storage = tensor.untyped_storage()
            if storage._cdata not in self._seen:
                key, size = storage._cdata, int(storage.nbytes())
                self._seen.add(key)
                self._now += size
                self.bytes = max(self.bytes, self._now)
                weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._now -= size


@dataclass(frozen=True)
class Agreement:
    """How close results are to those of the ordinary run."""

    compared: int
    identical: bool
    largest: float
    """Largest difference as a share of the largest value of its tensor."""
    where: str
    close: bool


def agreement(results: Results, expected: Mapping[str, Any]) -> Agreement:
    """Compare value by value; NaN equals NaN. Gradients that vanish are compared with the largest of all."""
    found = {f"output {i}": value for i, value in enumerate(results.outputs)}
    found |= {f"gradient {name}": value for name, value in results.gradients.items()}
    names = [name for name in expected if found.get(name) is not None]
    gradients = [expected[name] for name in names if name.startswith("gradient ")]
    scale = VANISHING * max((_largest(each) for each in gradients), default=0.0)
    identical, close, largest, where = True, True, 0.0, ""
    for name in names:
        one, other = found[name].to("cpu"), expected[name]
        allowed = CLOSE.get(one.element_size(), 0.0) if one.dtype.is_floating_point else 0.0
        share = difference(one, other, scale if name.startswith("gradient ") else 0.0)
        identical &= share == 0.0
        close &= share <= allowed
        if share > largest:
            largest, where = share, name
    return Agreement(len(names), identical, largest, where, close)


def _largest(value: Any) -> float:
    """The largest finite magnitude."""
    finite = value[value.isfinite()] if value.dtype.is_floating_point else value.new_zeros(0)
    return float(finite.double().abs().max()) if finite.numel() else 0.0


def difference(one: Any, other: Any, scale: float = 0.0) -> float:
    """The largest difference as a share of the largest value, or of a larger scale; infinite for other
    shapes and types, whole numbers, and NaNs in one alone."""
    torch = require("torch", "torch")
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if torch.equal(one, other):
        return 0.0
    if not one.dtype.is_floating_point:
        return float("inf")
    a, b = one.double(), other.double()
    odd = ~(a.isfinite() & b.isfinite())
    if bool((odd & (a != b) & ~(a.isnan() & b.isnan())).any()):
        return float("inf")
    apart = float(torch.where(odd, 0.0, a - b).abs().max())
    largest = max(scale, float(torch.where(odd, 0.0, b).abs().max()))
    return apart / largest if largest else (float("inf") if apart else 0.0)
