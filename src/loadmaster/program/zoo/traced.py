"""The workloads that are traced from model functions, by name.

    program = trace(TRACED["rnnlm-2"])

JAX is imported when a workload is made, not before.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from loadmaster.program.program import Program

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A train step, the shapes of its arguments and the options of `import_jax` for it."""


VISION = ("amoebanet", "inception", "unet", "vit")
"""Families of `zoo.vision`; the others are in `zoo.sequence`."""


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
        module = "vision" if self.family in VISION else "sequence"
        family = getattr(importlib.import_module(f"{zoo}.{module}"), self.family)
        made: Made = importlib.import_module(f"{zoo}.training").train_step(family(**self.parameters))
        return made

    def with_parameters(self, **parameters: Any) -> Workload:
        """The same family in another size, named after what was changed: 'gnmt-8:steps=5'."""
        changes = ",".join(f"{key}={value}" for key, value in parameters.items())
        return dataclasses.replace(
            self, name=f"{self.name}:{changes}", parameters={**self.parameters, **parameters}
        )


def _workloads() -> Iterator[Workload]:
    for layers in (2, 4, 8):
        machine, size = f"p100x{layers}", {"layers": layers}
        summary = f"language model, {layers} LSTM layers of 2,048, 40 steps, batch 64"
        yield Workload(f"rnnlm-{layers}", "rnnlm", size, machine, layers, summary)
        summary = (
            f"translation, {layers} + {layers} LSTM layers of 1,024 with attention, 76 + 76 steps, batch 64"
        )
        yield Workload(f"gnmt-{layers}", "gnmt", {**size, "steps": 76}, machine, layers, summary)
        summary = f"Transformer-XL, {layers} layers of 1,024, 4 segments of 128, batch 32"
        yield Workload(f"txl-{layers}", "transformer_xl", size, machine, layers, summary)
    for batch in (32, 64):
        summary = f"Inception-v3 with auxiliary head, 299 × 299, batch {batch}"
        yield Workload(f"inception-b{batch}", "inception", {"batch": batch}, "p100x2", 2, summary)
    summary = "AmoebaNet-D-like, 18 normal cells and 4 reductions, 256 filters, 224 × 224, batch 32"
    yield Workload("amoebanet", "amoebanet", {}, "p100x4", 4, summary)
    for stacks in (2, 4):
        summary = f"WaveNet, {stacks} stacks of 9 layers, 256 channels, 16,000 samples, batch 4"
        yield Workload(
            f"wavenet-{stacks}x9", "wavenet", {"stacks": stacks}, f"p100x{stacks}", stacks, summary
        )
    for name, family, summary in (
        ("llama", "llama", "Llama-like, 16 layers of 2,048, 1,024 tokens, batch 8, bf16"),
        ("vit-l16", "vit", "ViT-L/16, 24 blocks of 1,024, 224 × 224, batch 64, bf16"),
        (
            "unet",
            "unet",
            "U-Net of latent diffusion, 64 × 64 × 4, 320 channels × (1, 2, 4, 4), batch 16, bf16",
        ),
        ("moe", "moe", "mixture of experts, 12 layers of 1,024 with 16 experts, 1,024 tokens, batch 8, bf16"),
        ("mamba", "mamba", "Mamba-like, 24 layers of 2,048, 8 chunks of 128 tokens, batch 8, bf16"),
    ):
        yield Workload(name, family, {}, "a100-40x4", 4, summary)


TRACED: dict[str, Workload] = {workload.name: workload for workload in _workloads()}


def trace(workload: Workload) -> Program:
    """The workload's train step as a Program. Takes from a tenth of a second to three seconds."""
    from loadmaster.program.importers.jax.importer import import_jax

    function, args, options = workload.make()
    return import_jax(function, args, name=workload.name, **options)
