"""A model of the GPU suite made ready on a device, and what is measured of it before any plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.suites.gpu_peers import PeerRun, Setting, measure_peer
from loadmaster.errors import require
from loadmaster.execute.op_times import OpTimes, measure_ops
from loadmaster.execute.pinned import RandomWeights, given_shapes
from loadmaster.program.importers.torch.captured import Captured, capture
from loadmaster.program.importers.torch.importer import made_on_meta
from loadmaster.program.program import TensorKind


@dataclass(frozen=True)
class Workload:
    """A captured model whose parameters have shapes and no data."""

    name: str
    training: bool
    build: Callable[[], tuple[Any, tuple[Any, ...]]]
    """(module, args), called with the meta device as the default."""
    captured: Captured
    device: Any

    def module(self) -> Any:
        """A new module on the meta device, in the mode in which it was captured."""
        return made_on_meta(self.build)[0].train(self.training)

    def setting(self, values: Mapping[str, Any], inputs: Sequence[Any], **more: Any) -> Setting:
        return Setting(self.module, values, inputs, self.device, self.training, **more)


def prepare(
    name: str,
    build: Callable[[], Any],
    device: Any,
    *,
    training: bool,
    split_over: int | None = None,
    batch_slices: int = 1,
) -> Workload:
    """Capture a model for a device; nothing is computed."""
    module, args = made_on_meta(build)[:2]
    captured = capture(
        module.train(training),
        args,
        name=name,
        training=training,
        split_over=split_over,
        batch_slices=batch_slices,
        device=device.type,
    )
    return Workload(name, training, build, captured, device)


def random_inputs(captured: Captured, device: Any, seed: int = 0) -> list[Any]:
    """The graph's input tensors."""
    shapes = given_shapes(captured)
    return inputs_like(
        [shapes[given.node] for given in captured.given if given.kind == TensorKind.INPUT], device, seed
    )


def inputs_like(shapes: Sequence[tuple[Sequence[int], Any]], device: Any, seed: int = 0) -> list[Any]:
    """Tensors of these shapes and types: floats are normal, integers 0 or 1, which every table has."""
    torch = require("torch", "torch")
    random = torch.Generator(device).manual_seed(seed)
    made = []
    for shape, dtype in shapes:
        if dtype.is_floating_point:
            value = torch.randn(shape, device=device, generator=random).to(dtype)
        else:
            value = torch.randint(0, 2, tuple(shape), device=device, generator=random).to(dtype)
        made.append(value)
    return made


def device_weights(workload: Workload) -> dict[str, Any]:
    """All weights by name, made up on the device."""
    made = RandomWeights(workload.captured, workload.device)
    return {name: made[name] for name in made}


@dataclass(frozen=True)
class Measured:
    """A model with everything resident."""

    times: OpTimes
    eager: PeerRun
    weight_bytes: int

    @property
    def activation_bytes(self) -> int:
        """What eager PyTorch needs beside the weights."""
        return max(0, self.eager.allocated - self.weight_bytes)


def measure_model(workload: Workload, *, passes: int = 7) -> Measured:
    """Every op's time, and the ordinary run."""
    weights, inputs = device_weights(workload), random_inputs(workload.captured, workload.device)
    captured = workload.captured
    times = measure_ops(captured, weights, inputs, workload.device, passes=passes)
    held = sum(value.numel() * value.element_size() for value in weights.values())
    eager = measure_peer("eager", workload.setting(weights, inputs))
    # The weights were there before: they are shared with the module and count.
    peak = eager.allocated + (held if workload.device.type == "cuda" else 0)
    return Measured(times, replace(eager, allocated=peak), held)
