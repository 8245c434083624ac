"""Random small training steps: a forward pass, then backward ops that read what it made."""

from __future__ import annotations

import numpy as np

from loadmaster.program import Builder, Program

Rng = np.random.Generator


def random_training(rng: Rng, forward: int = 10, backward: int = 8) -> Program:
    """Views, ops with several results, outputs and random ops now and then; sizes are whole 256 bytes."""
    build = Builder("training")
    known = [
        build.tensor(f"given{i}", bytes=size(rng), kind=kind) for i, kind in enumerate(("input", "weight"))
    ]
    for op in range(int(rng.integers(1, forward + 1))):
        known += add_op(rng, build, f"f{op}", known, backward=False)
    made = list(known)
    gradients: list[int] = []
    for op in range(int(rng.integers(1, backward + 1))):  # rarely, a forward op is among them
        made += (new := add_op(rng, build, f"b{op}", made, backward=rng.random() < 0.9))
        gradients += new
    for tensor in gradients[-1:]:
        build.set_kind(tensor, "output")
    costs = [[float(rng.integers(0, 9)) * 1e-9] for _ in range(build.n_ops)]
    return build.build(costs=costs)


def add_op(rng: Rng, build: Builder, name: str, known: list[int], *, backward: bool) -> list[int]:
    if rng.random() < 0.25:
        shown = int(rng.choice(known))
        view = build.tensor(f"{name}.v", bytes=256, alias=shown)
        build.op(name, "reshape", reads=[shown], writes=[view], view=True, backward=backward)
        return [view]
    near = known[-5:] if rng.random() < 0.7 else known
    reads = [int(t) for t in rng.choice(near, size=int(rng.integers(1, 4)))]
    kind = "output" if rng.random() < 0.1 else "activation"
    writes = [
        build.tensor(f"{name}.{i}", bytes=size(rng), kind=kind if i == 0 else "activation")
        for i in range(1 + int(rng.random() < 0.25))
    ]
    what = "random" if rng.random() < 0.1 else "add"
    build.op(name, what, reads=reads, writes=writes, backward=backward)
    return writes


def size(rng: Rng) -> int:
    return 256 * int(rng.integers(1, 9))
