"""A user's function as something to run: captured, with weights and inputs, and the ordinary run.

Large models are never made for real: with random weights only their shapes are taken, from the meta
device, and numbers are made up where they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.errors import require
from loadmaster.execute.executor import Results
from loadmaster.execute.pinned import RandomWeights
from loadmaster.program.importers import load_function
from loadmaster.program.importers.torch.captured import Captured, capture_spec
from loadmaster.program.importers.torch.importer import made_on_meta, model_and_inputs

WEIGHTS = ("module", "random")
CLOSE = {2: 5e-2, 4: 1e-3, 8: 1e-6}
"""By bytes of an element: differences, as a share of the largest value, that kernels may make which
add in another order."""


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
    torch = require("torch", "torch")
    function = load_function(spec)
    if weights == "random":
        result = made_on_meta(function)
    else:
        with torch.device("cpu"):
            result = function()
    module, args, kwargs = model_and_inputs(result, spec)
    captured = capture_spec(spec, device, (module, args, kwargs), training=training, split_over=split_over)
    if weights == "random":
        args, kwargs = _made_up(args, kwargs, seed)
        return Ready(module, args, kwargs, captured, RandomWeights(captured, device, seed), training)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
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


def ordinary_run(ready: Ready, device: str) -> dict[str, Any]:
    """What the module itself gives with everything on the device, by name, moved to the host."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves, tree_map_only

    args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(device), (ready.args, ready.kwargs))
    trained = {name for name, p in ready.module.named_parameters() if p.requires_grad}
    values: dict[str, Any] = {}
    for given in ready.captured.given:
        if given.tensor >= 0 and given.source in ready.weights and given.source not in values:
            there = ready.weights[given.source].detach().to(device, copy=True)
            values[given.source] = there.requires_grad_(ready.training and given.source in trained)
    with torch.set_grad_enabled(ready.training):
        found = torch.func.functional_call(ready.module, values, args, kwargs)
        leaves = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        if ready.training:
            leaves[0].backward()
    named = {f"output {i}": leaf.detach().to("cpu") for i, leaf in enumerate(leaves)}
    if ready.training:
        grads = {name: values[name].grad for name in trained if name in values}
        named |= {f"gradient {n}": g.to("cpu") for n, g in grads.items() if g is not None}
    return named


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
    """Compare value by value; NaN equals NaN."""
    found = {f"output {i}": value for i, value in enumerate(results.outputs)}
    found |= {f"gradient {name}": value for name, value in results.gradients.items()}
    names = [name for name in expected if found.get(name) is not None]
    identical, close, largest, where = True, True, 0.0, ""
    for name in names:
        one, other = found[name].to("cpu"), expected[name]
        allowed = CLOSE.get(one.element_size(), 0.0) if one.dtype.is_floating_point else 0.0
        share = difference(one, other)
        identical &= share == 0.0
        close &= share <= allowed
        if share > largest:
            largest, where = share, name
    return Agreement(len(names), identical, largest, where, close)


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
