"""A user's 'module:function' as it is captured: planning, measuring and running must mean one Program."""

from __future__ import annotations

from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.functions import load_function
from loadmaster.program.importers.torch.captured import Captured, capture
from loadmaster.program.importers.torch.importer import made_on_meta, model_and_inputs

DEVICES = ("cuda", "cpu")


def capture_spec(
    spec: str, device: str, result: Any = None, *, training: bool = False, split_over: int | None = None
) -> Captured:
    """`capture` of what a function gives, for the kind of a device ('cuda:1' is 'cuda'). It is called with the
    meta device as the default if its `result` isn't there yet."""
    require("torch", "torch")
    result = made_on_meta(load_function(spec)) if result is None else result
    module, args, kwargs = model_and_inputs(result, spec)
    module.train(training)
    return capture(
        module,
        args,
        kwargs,
        name=spec,
        training=training,
        split_over=split_over,
        device=device.partition(":")[0],
    )


def capture_device(name: str | None) -> str:
    """The device that a model is captured for: the named one, else a GPU if there is one. PyTorch can't trace
    for CUDA without one."""
    torch = require("torch", "torch")
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in DEVICES:
        raise BadProgram(
            f"there is no device '{name}' to capture for",
            object="--device",
            number=name,
            remedy=f"use {' or '.join(DEVICES)}",
        )
    if name != "cpu" and not torch.cuda.is_available():
        raise BadProgram(
            "this computer has no CUDA device that PyTorch can use",
            object="--device",
            number=name,
            remedy="capture where the GPU is ('loadmaster calibrate --program net.npz') and give "
            "net.npz here, or use --device cpu",
        )
    return name
