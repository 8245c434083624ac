"""Programs for TPU v4i as data: compiled before, read without JAX.

The functions that they were compiled from, and the extraction itself, are no part of the package:
`tools/tpu` in a checkout.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

from loadmaster.errors import BadProgram
from loadmaster.program.program import Program
from loadmaster.program.storage import load

DATA = resources.files("loadmaster.program.zoo.tpu") / "data"
MANIFEST = "manifest.json"
SUMMARIES = {
    "alexnet-inf": "AlexNet, batch 32, f32",
    "alexnet-train": "AlexNet, batch 32, f32, one step of SGD",
    "resnet50-inf": "ResNet-50, batch 32, bf16",
    "resnet50-train": "ResNet-50, batch 16, bf16, one step of SGD",
    "bert-base": "BERT-base, 8 × 384 tokens, bf16",
    "transformer-6": "6 transformer blocks of 2,048, inner 8,192, 8 × 512 tokens, bf16",
    "transformer-2-train": "2 transformer blocks of 1,024, 8 × 512 tokens, bf16, one step of Adam",
    "gpt-prefill": "GPT-like, 12 layers of 1,024, reads 4 × 512 tokens, bf16",
    "gpt-decode": "GPT-like, 12 layers of 1,024, one token for 16 texts, caches of 1,024 positions, bf16",
    "wavenet": "WaveNet, 30 layers of 64 channels, 16,000 samples, f32",
    "alphatensor-net": "axial attention on 4 × 4 × 4 tensors, policy and value, batch 256, bf16",
    "inception-v3": "Inception-v3, batch 16, bf16",
    "vit-b16": "ViT-B/16, batch 16, bf16",
    "mixer-b16": "MLP-Mixer-B/16, batch 16, bf16",
    "diffusion-unet": "U-Net of a diffusion model, 64 × 64, 128 channels, batch 8, bf16",
    "moe-4": "4 blocks of 1,024 with 8 experts, 2 a token, 8 × 256 tokens, bf16",
}
"""Name -> what it is; the order is that of `loadmaster models`."""


def task_of(name: str) -> str:
    """'training' or 'inference'."""
    return "training" if name.endswith("-train") else "inference"


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """What was compiled, how, and how it was checked; `docs/tpu.md` lists the fields."""
    document: dict[str, Any] = json.loads((DATA / MANIFEST).read_text(encoding="utf-8"))
    return document


def load_tpu(name: str) -> Program:
    """A program of the suite, as the compiler scheduled it."""
    with resources.as_file(DATA / f"{name}.npz") as path:
        if not path.is_file():
            raise BadProgram(
                f"'{name}' has not been compiled",
                object=name,
                remedy=f"run 'python tools/extract_tpu.py {name}'",
            )
        return load(path)
