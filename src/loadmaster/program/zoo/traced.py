"""The workloads that are traced from model functions, by name.

    program = trace(TRACED["rnnlm-2"])

`python -m loadmaster.program.zoo.traced [name ...]` prints what they are. JAX is imported when a
workload is made, not before.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadmaster.program.program import Program, TensorKind

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A train step, the shapes of its arguments and the options of `import_jax` for it."""


@dataclass(frozen=True)
class Workload:
    """A model in one size. `name`, `family` and `parameters` say all that its Program depends on."""

    name: str
    family: str
    """The module of the zoo, and the function in it."""
    parameters: dict[str, Any]
    machine: str
    """The preset it is meant for."""
    devices: int
    """How many of its devices a plan uses by default."""
    summary: str

    def make(self) -> Made:
        """Build the model; imports JAX."""
        zoo = "loadmaster.program.zoo"
        family = getattr(importlib.import_module(f"{zoo}.{self.family}"), self.family)
        made: Made = importlib.import_module(f"{zoo}.training").train_step(family(**self.parameters))
        return made

    def with_parameters(self, **parameters: Any) -> Workload:
        """The same family in another size, named after what was changed: 'gnmt-8:steps=5'."""
        changes = ",".join(f"{key}={value}" for key, value in parameters.items())
        return dataclasses.replace(
            self, name=f"{self.name}:{changes}", parameters={**self.parameters, **parameters}
        )


def _workloads() -> list[Workload]:
    rows = []
    for layers in (2, 4, 8):
        machine, size = f"p100x{layers}", {"layers": layers}
        rows += [
            Workload(
                f"rnnlm-{layers}",
                "rnnlm",
                size,
                machine,
                layers,
                f"language model, {layers} LSTM layers of 2,048, 40 steps, batch 64",
            ),
            Workload(
                f"gnmt-{layers}",
                "gnmt",
                {**size, "steps": 76},
                machine,
                layers,
                f"translation, {layers} + {layers} LSTM layers of 1,024 with attention, 76 + 76 steps, batch 64",
            ),
            Workload(
                f"txl-{layers}",
                "transformer_xl",
                size,
                machine,
                layers,
                f"Transformer-XL, {layers} layers of 1,024, 4 segments of 128, batch 32",
            ),
        ]
    rows += [
        Workload(
            f"inception-b{batch}",
            "inception",
            {"batch": batch},
            "p100x2",
            2,
            f"Inception-v3 with auxiliary head, 299 × 299, batch {batch}",
        )
        for batch in (32, 64)
    ]
    rows += [
        Workload(
            "amoebanet",
            "amoebanet",
            {},
            "p100x4",
            4,
            "AmoebaNet-D-like, 18 normal cells and 4 reductions, 256 filters, 224 × 224, batch 32",
        ),
        Workload(
            "wavenet-2x9",
            "wavenet",
            {"stacks": 2},
            "p100x2",
            2,
            "WaveNet, 2 stacks of 9 layers, 256 channels, 16,000 samples, batch 4",
        ),
        Workload(
            "wavenet-4x9",
            "wavenet",
            {"stacks": 4},
            "p100x4",
            4,
            "WaveNet, 4 stacks of 9 layers, 256 channels, 16,000 samples, batch 4",
        ),
        Workload(
            "llama",
            "llama",
            {},
            "a100-40x4",
            4,
            "Llama-like, 16 layers of 2,048, 1,024 tokens, batch 8, bf16",
        ),
        Workload(
            "vit-l16", "vit", {}, "a100-40x4", 4, "ViT-L/16, 24 blocks of 1,024, 224 × 224, batch 64, bf16"
        ),
        Workload(
            "unet",
            "unet",
            {},
            "a100-40x4",
            4,
            "U-Net of latent diffusion, 64 × 64 × 4, 320 channels × (1, 2, 4, 4), batch 16, bf16",
        ),
        Workload(
            "moe",
            "moe",
            {},
            "a100-40x4",
            4,
            "mixture of experts, 12 layers of 1,024 with 16 experts, 1,024 tokens, batch 8, bf16",
        ),
        Workload(
            "mamba",
            "mamba",
            {},
            "a100-40x4",
            4,
            "Mamba-like, 24 layers of 2,048, 8 chunks of 128 tokens, batch 8, bf16",
        ),
    ]
    return rows


TRACED: dict[str, Workload] = {workload.name: workload for workload in _workloads()}


def trace(workload: Workload) -> Program:
    """The workload's train step as a Program. Takes from half a second to half a minute."""
    from loadmaster.program.importers.jax.importer import import_jax

    function, args, options = workload.make()
    return import_jax(function, args, name=workload.name, **options)


def weight_count(program: Program) -> int:
    """How many numbers a program's weights hold."""
    weights = (program.tensor_kind == TensorKind.WEIGHT).nonzero()[0]
    return sum(math.prod(program.shape(tensor)) for tensor in weights)


def main(names: list[str]) -> None:
    """Print one line per workload, as it is traced."""
    import time

    print(f"{'workload':<16}{'ops':>8}{'weights M':>11}{'TFLOP':>8}{'seconds':>9}  machine")
    for name in names or list(TRACED):
        started = time.perf_counter()
        program = trace(TRACED[name])
        seconds = time.perf_counter() - started
        millions, tera = weight_count(program) / 1e6, program.op_flops[:, 0].sum() / 1e12
        print(
            f"{name:<16}{program.n_ops:>8,}{millions:>11.1f}{tera:>8.2f}{seconds:>9.1f}"
            f"  {TRACED[name].machine}",
            flush=True,
        )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
