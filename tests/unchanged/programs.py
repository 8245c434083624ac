"""Content hashes of programs and machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unchanged import parts

SEEDS = range(6)
MADE: dict[str, Callable[[int], Any]] = {
    "random": lambda seed: parts.random_program(np.random.default_rng(seed)),
    "game": lambda seed: parts.random_game(np.random.default_rng(seed))[0],
    "graph": lambda seed: parts.random_graph(np.random.default_rng(seed))[0],
    "mapping": lambda seed: parts.random_mapping(np.random.default_rng(seed))[0],
    "straight": lambda seed: parts.random_straight(np.random.default_rng(seed), 24),
    "training": lambda seed: parts.random_training(np.random.default_rng(seed)),
    "synthetic": parts.synthetic,
    "layers": lambda seed: parts.layers(12 + seed),
    "stack": lambda seed: parts.offload_stack.stack(layers=4 + seed),
}
MADE_MACHINES: dict[str, Callable[[int], Any]] = {
    "random": lambda seed: parts.random_machine(np.random.default_rng(seed)),
    "game": lambda seed: parts.random_game(np.random.default_rng(seed))[1],
    "graph": lambda seed: parts.random_graph(np.random.default_rng(seed))[1],
    "mapping": lambda seed: parts.random_mapping(np.random.default_rng(seed))[1],
}
SIZES = [
    "resnet50:batch=16,element_bytes=2",
    "bert:layers=1",
    "gnmt-2:steps=2",
    "gnmt-8:steps=5",
    "rnnlm-2:steps=3",
    "txl-2:segments=1",
    "inception-b32:batch=2",
    "amoebanet:cells=1",
    "wavenet-2x9:stacks=1",
    "llama:layers=1",
    "vit-l16:layers=1",
    "moe:layers=1",
    "mamba:layers=1",
]
"""Workloads in other sizes: one of every family, small enough to be traced by each run of the test."""
VARIANTS = ["tpu-v4i:cmem=1MiB", "arena:64KiB", "h200:hbm=1GiB", "imxrt1170:tcm=1KiB,ocram=2KiB"]


def names() -> list[str]:
    """All workloads, some of each generator's programs, all machines."""
    return [
        *(f"zoo/{name}" for name in [*parts.MODELS, *SIZES]),
        *(f"made/{name}/{seed}" for name in MADE for seed in SEEDS),
        *(f"machine/{name}" for name in [*parts.preset_names(), *VARIANTS]),
        *(f"made-machine/{name}/{seed}" for name in MADE_MACHINES for seed in SEEDS),
    ]


def waits(name: str) -> str | None:
    """Why an entry is left to `--check`: a workload of full size takes up to half a minute to trace."""
    kind, _, rest = name.partition("/")
    if kind == "zoo" and rest not in SIZES and not parts.is_cached(rest):
        return f"'{rest}' is not in the cache of traced programs: python -m tests.unchanged --check"
    return None


def compute(name: str) -> dict[str, Any]:
    """The hashes of one entry."""
    kind, _, rest = name.partition("/")
    if kind == "machine":
        return {"hash": parts.load_machine(rest).hash}
    if kind == "made-machine":
        maker, _, seed = rest.rpartition("/")
        return {"hash": MADE_MACHINES[maker](int(seed)).hash}
    if kind == "zoo":
        program = parts.load_model(rest)
    else:
        maker, _, seed = rest.rpartition("/")
        program = MADE[maker](int(seed))
    return {
        "hash": program.hash,
        "named_hash": program.named_hash,
        "ops": program.n_ops,
        "tensors": program.n_tensors,
    }
