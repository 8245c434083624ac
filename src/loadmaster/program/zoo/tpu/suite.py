"""The TPU programs by name: which function, on which arguments.

JAX is imported by `make` alone; their Programs, compiled before, need none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PACKAGE = "tools.tpu"
Shapes = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class TpuProgram:
    """A model in one size: `function(weights, batch)` in a module of this package."""

    name: str
    function: str
    """'module:function'"""
    batch: Shapes
    summary: str
    dtype: str = "bfloat16"
    step: str = ""
    """'sgd': one step on the cross-entropy of what the function returns; 'adam': one step on the
    loss that it returns; else the function itself."""
    options: dict[str, Any] = field(default_factory=dict)
    caches: tuple[int, tuple[int, ...]] = (0, ())
    """How many arrays of which shape are given and come back changed."""

    @property
    def task(self) -> str:
        return "training" if self.step else "inference"

    def make(self) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]:
        """The function, its arguments as shapes, and which of them are donated. Imports JAX."""
        steps = importlib.import_module(f"{PACKAGE}.steps")
        module, _, name = self.function.partition(":")
        function = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        return steps.made(self, function)  # type: ignore[no-any-return]


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
        TpuProgram(
            "alexnet-inf", "vision:alexnet", _images(32, 227, "float32"), "AlexNet, batch 32, f32", "float32"
        ),
        TpuProgram(
            "alexnet-train",
            "vision:alexnet",
            _images(32, 227, "float32") | _LABELLED,
            "AlexNet, batch 32, f32, one step of SGD",
            "float32",
            "sgd",
        ),
        TpuProgram("resnet50-inf", "vision:resnet50", _images(32), "ResNet-50, batch 32, bf16"),
        TpuProgram(
            "resnet50-train",
            "vision:resnet50",
            _images(16) | {"labels": ("int32", (16,))},
            "ResNet-50, batch 16, bf16, one step of SGD",
            step="sgd",
            options={"training": True},
        ),
        TpuProgram(
            "bert-base",
            "language:bert_base",
            _text(8, 384, "tokens", "kinds"),
            "BERT-base, 8 × 384 tokens, bf16",
        ),
        TpuProgram(
            "transformer-6",
            "language:transformer",
            _vectors(8, 512, 2048),
            "6 transformer blocks of 2,048, inner 8,192, 8 × 512 tokens, bf16",
        ),
        TpuProgram(
            "transformer-2-train",
            "language:language_model",
            _text(8, 512, "tokens", "labels"),
            "2 transformer blocks of 1,024, 8 × 512 tokens, bf16, one step of Adam",
            step="adam",
        ),
        TpuProgram(
            "gpt-prefill",
            "language:gpt_prefill",
            _text(4, 512, "tokens"),
            "GPT-like, 12 layers of 1,024, reads 4 × 512 tokens, bf16",
        ),
        TpuProgram(
            "gpt-decode",
            "language:gpt_decode",
            _text(16, 1, "tokens") | {"position": ("int32", ())},
            "GPT-like, 12 layers of 1,024, one token for 16 texts, caches of 1,024 positions, bf16",
            caches=(24, (16, 1024, 16, 64)),
        ),
        TpuProgram(
            "wavenet",
            "others:wavenet",
            {"sound": ("float32", (1, 16_000, 1))},
            "WaveNet, 30 layers of 64 channels, 16,000 samples, f32",
            "float32",
        ),
        TpuProgram(
            "alphatensor-net",
            "others:alphatensor_net",
            {"tensors": ("bfloat16", (256, 4, 4, 4, 8)), "factors": ("bfloat16", (256, 12, 64))},
            "axial attention on 4 × 4 × 4 tensors, policy and value, batch 256, bf16",
        ),
        TpuProgram("inception-v3", "vision:inception_v3", _images(16, 299), "Inception-v3, batch 16, bf16"),
        TpuProgram("vit-b16", "vision:vit_b16", _images(16), "ViT-B/16, batch 16, bf16"),
        TpuProgram("mixer-b16", "vision:mixer_b16", _images(16), "MLP-Mixer-B/16, batch 16, bf16"),
        TpuProgram(
            "diffusion-unet",
            "vision:diffusion_unet",
            _images(8, 64) | {"level": ("bfloat16", (8, 128))},
            "U-Net of a diffusion model, 64 × 64, 128 channels, batch 8, bf16",
        ),
        TpuProgram(
            "moe-4",
            "language:experts",
            _vectors(8, 256, 1024),
            "4 blocks of 1,024 with 8 experts, 2 a token, 8 × 256 tokens, bf16",
        ),
    )
}
