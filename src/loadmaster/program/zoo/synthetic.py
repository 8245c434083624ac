"""Small made-up programs with fixed seeds: chains with skips, weights and in-place updates, small
enough for exact solvers. Sizes suit a fast memory of 1 MiB."""

from __future__ import annotations

import re

import numpy as np

from loadmaster.program.build import Builder
from loadmaster.program.program import Program, TensorKind, TieKind

COUNT = 50
SIZES = (32, 64, 96, 128, 256, 384, 512)
"""KiB"""
FLOPS_PER_BYTE = (20, 150, 400, 900)
"""Some ops wait for memory on every machine, some compute on every machine."""


def synthetic(number: int) -> Program:
    """Program `number` of `COUNT`; 4 to 22 ops, so 8 to about 60 uses of tensors."""
    rng = np.random.default_rng([20_000, number])
    build = Builder(f"synthetic-{number:02d}")
    bytes_of: dict[int, int] = {}
    overwritable: set[int] = set()

    def tensor(name: str, kind: TensorKind, size: int | None = None) -> int:
        size = size or int(rng.choice(SIZES)) * 1024
        added = build.tensor(name, bytes=size, kind=kind)
        bytes_of[added] = size
        return added

    readable = [tensor("input", TensorKind.INPUT)]
    ops = 4 + number * 18 // COUNT
    for op in range(ops):
        newest, is_last = readable[-1], op == ops - 1
        reads = {newest}
        if len(readable) > 1 and rng.random() < 0.45:  # a skip
            reads.add(int(rng.choice(readable[:-1])))
        if rng.random() < 0.5:
            reads.add(tensor(f"weight{op}", TensorKind.WEIGHT))
        in_place = rng.random() < 0.15 and newest in overwritable
        kind = TensorKind.OUTPUT if is_last or rng.random() < 0.08 else TensorKind.ACTIVATION
        result = tensor(f"t{op}", kind, bytes_of[newest] if in_place else None)
        moved = sum(bytes_of[each] for each in (result, *reads))
        build.op(
            f"op{op}",
            "fusion",
            reads=sorted(reads),
            writes=[result],
            matrix=moved * int(rng.choice(FLOPS_PER_BYTE)),
        )
        if kind == TensorKind.ACTIVATION:
            overwritable.add(result)
        if in_place:
            build.tie(TieKind.INPLACE, newest, result, op)
            readable.remove(newest)
        readable = [*readable, result][-6:]
    return build.build()


def find_synthetic(name: str) -> Program | None:
    """The program of a name such as 'synthetic-07', else None."""
    number = re.fullmatch(r"synthetic-([0-9]{2})", name)
    return synthetic(int(number[1])) if number and int(number[1]) < COUNT else None
