"""The TPU programs by name: which function, on which arguments. JAX is imported by `make` alone."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.program import zoo

PACKAGE = "tools.tpu"
Shapes = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class TpuProgram:
    """A model in one size: `function(weights, batch)` in a module of this package."""

    name: str
    function: str
    """'module:function'"""
    batch: Shapes
    dtype: str = "bfloat16"
    step: str = ""
    """'sgd': one step on the cross-entropy of what the function returns; 'adam': one step on the
    loss that it returns; else the function itself."""
    options: dict[str, Any] = field(default_factory=dict)
    caches: tuple[int, tuple[int, ...]] = (0, ())
    """How many arrays of which shape are given and come back changed."""

    def make(self) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]:
        """The function, its arguments as shapes, and which of them are donated. Imports JAX."""
        steps = importlib.import_module(f"{PACKAGE}.steps")
        module, _, name = self.function.partition(":")
        function = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        return steps.made(self, function)


def _images(batch: int, side: int = 224, dtype: str = "bfloat16") -> Shapes:
    return {"images": (dtype, (batch, side, side, 3))}


def _text(batch: int, tokens: int, *names: str) -> Shapes:
    return dict.fromkeys(names, ("int32", (batch, tokens)))


def _vectors(batch: int, tokens: int, width: int) -> Shapes:
    return {"x": ("bfloat16", (batch, tokens, width))}


_LABELLED: Shapes = {"labels": ("int32", (32,))}

SUITE: dict[str, TpuProgram] = {
    program.name: program
    for program in (
        TpuProgram("alexnet-inf", "vision:alexnet", _images(32, 227, "float32"), "float32"),
        TpuProgram(
            "alexnet-train", "vision:alexnet", _images(32, 227, "float32") | _LABELLED, "float32", "sgd"
        ),
        TpuProgram("resnet50-inf", "vision:resnet50", _images(32)),
        TpuProgram(
            "resnet50-train",
            "vision:resnet50",
            _images(16) | {"labels": ("int32", (16,))},
            step="sgd",
            options={"training": True},
        ),
        TpuProgram("bert-base", "language:bert_base", _text(8, 384, "tokens", "kinds")),
        TpuProgram("transformer-6", "language:transformer", _vectors(8, 512, 2048)),
        TpuProgram(
            "transformer-2-train", "language:language_model", _text(8, 512, "tokens", "labels"), step="adam"
        ),
        TpuProgram("gpt-prefill", "language:gpt_prefill", _text(4, 512, "tokens")),
        TpuProgram(
            "gpt-decode",
            "language:gpt_decode",
            _text(16, 1, "tokens") | {"position": ("int32", ())},
            caches=(24, (16, 1024, 16, 64)),
        ),
        TpuProgram("wavenet", "others:wavenet", {"sound": ("float32", (1, 16_000, 1))}, "float32"),
        TpuProgram(
            "alphatensor-net",
            "others:alphatensor_net",
            {"tensors": ("bfloat16", (256, 4, 4, 4, 8)), "factors": ("bfloat16", (256, 12, 64))},
        ),
        TpuProgram("inception-v3", "vision:inception_v3", _images(16, 299)),
        TpuProgram("vit-b16", "vision:vit_b16", _images(16)),
        TpuProgram("mixer-b16", "vision:mixer_b16", _images(16)),
        TpuProgram(
            "diffusion-unet", "vision:diffusion_unet", _images(8, 64) | {"level": ("bfloat16", (8, 128))}
        ),
        TpuProgram("moe-4", "language:experts", _vectors(8, 256, 1024)),
    )
}


def source_hash() -> str:
    """SHA-256 of the model functions: data made from others is out of date."""
    digest = hashlib.sha256()
    here, shared = Path(__file__).parent, Path(zoo.__file__).parent
    paths = [shared / f"{name}.py" for name in ("layers", "convolution", "training", "inception", "unet")]
    paths += [here / f"{name}.py" for name in ("blocks", "vision", "language", "others", "steps", "suite")]
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
