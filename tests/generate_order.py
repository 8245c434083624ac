"""Random programs without loops, for the order: branches, views, in-place ops, outputs, weights."""

from __future__ import annotations

import numpy as np

from loadmaster.program.build import Builder
from loadmaster.program.program import Program, TensorKind, TieKind


def random_straight(rng: np.random.Generator, ops: int) -> Program:
    """A program of so many ops (and some views) in which much can change places."""
    b = Builder("straight", order_source="trace")
    made: list[int] = []
    free: list[int] = []  # activations that nobody has read
    sizes: dict[int, int] = {}

    def tensor(kind: TensorKind, size: int, alias: int | None = None) -> int:
        number = b.tensor(f"t{b.n_tensors}", shape=(size,), dtype="i8", bytes=size, kind=kind, alias=alias)
        sizes[number] = size
        return number

    given = [tensor(TensorKind.INPUT, int(rng.integers(1, 50))) for _ in range(2)]
    given.append(tensor(TensorKind.WEIGHT, 64))
    for number in range(ops):
        pool = given + made
        reads = sorted({pool[int(i)] for i in rng.integers(0, len(pool), int(rng.integers(1, 4)))})
        last = number == ops - 1
        kind = TensorKind.OUTPUT if last or rng.random() < 0.1 else TensorKind.ACTIVATION
        in_place = [t for t in reads if t in free]
        if in_place and rng.random() < 0.4:
            source = in_place[0]
            result = tensor(kind, sizes[source])
            b.op(f"op{number}", "add", reads=reads, writes=[result])
            b.tie(TieKind.INPLACE, source, result, b.n_ops - 1)
            made.remove(source)
        else:
            result = tensor(kind, int(rng.integers(1, 100)))
            b.op(f"op{number}", "add", reads=reads, writes=[result])
        free = [t for t in free if t not in reads]
        made.append(result)
        if kind == TensorKind.ACTIVATION:
            free.append(result)
            if rng.random() < 0.2:
                view = tensor(TensorKind.ACTIVATION, sizes[result], alias=result)
                b.op(f"view{number}", "reshape", reads=[(result, 0)], writes=[(view, 0)], view=True)
                free.remove(result)  # its view may be read
                made.append(view)
    return b.build()
