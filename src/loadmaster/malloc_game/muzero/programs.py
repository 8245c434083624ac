"""Programs made from others, to train on: a part of one, and the training step of a net."""

from __future__ import annotations

import numpy as np

from loadmaster.arrays import Int32, Int64
from loadmaster.program.build import Access, Builder
from loadmaster.program.program import Program, TensorKind, TieKind

ELEMENTWISE = frozenset({"add", "concat", "pool"})
"""Kinds of ops whose gradient needs nothing of what they read."""


def cut(program: Program, first: int, last: int) -> Program:
    """Ops `first` to `last` alone: what they read and do not make is given, what is read later is an output.
    Of a program without loops and views."""
    build = Builder(f"{program.name}-{first}-{last}")
    reads, writes = program.read_op, program.write_op
    inside = [(at >= first) & (at <= last) for at in (reads, writes)]
    used = np.union1d(program.read_tensor[inside[0]], program.write_tensor[inside[1]])
    read_later = np.isin(used, program.read_tensor[reads > last])
    made = np.isin(used, program.write_tensor[inside[1]])
    names: dict[int, int] = {}
    for tensor, is_made, is_read_later in zip(used.tolist(), made.tolist(), read_later.tolist(), strict=True):
        kind = TensorKind(program.tensor_kind[tensor])
        if is_made:
            kind = TensorKind.OUTPUT if is_read_later else kind
        elif kind in (TensorKind.ACTIVATION, TensorKind.OUTPUT):
            kind = TensorKind.INPUT
        size, fast = int(program.tensor_bytes[tensor]), bool(program.tensor_fast[tensor])
        names[tensor] = build.tensor(f"t{tensor}", bytes=size, kind=kind, fast=fast)
    for op in range(first, last + 1):
        _copy_op(build, program, op, names)
    for kind, source, target, at in zip(
        program.tie_kind.tolist(),
        program.tie_source.tolist(),
        program.tie_target.tolist(),
        program.tie_at.tolist(),
        strict=True,
    ):
        if kind == TieKind.INPLACE and first <= at <= last:
            build.tie(TieKind.INPLACE, names[source], names[target], at - first)
        elif kind == TieKind.DONATED and source in names and target in names:
            build.tie(TieKind.DONATED, names[source], names[target])
    return build.build()


def train_step(program: Program) -> Program:
    """The forward pass and, in reverse, for every op one that makes the gradients of what it read, and one that
    changes its weights (gradient descent)."""
    build = Builder(f"{program.name}-train")
    names: dict[int, int] = {}
    kinds = [TensorKind(kind) for kind in program.tensor_kind.tolist()]
    sizes = program.tensor_bytes.tolist()
    for tensor, kind in enumerate(kinds):
        kept = TensorKind.ACTIVATION if kind == TensorKind.OUTPUT else kind
        names[tensor] = build.tensor(f"t{tensor}", bytes=sizes[tensor], kind=kept)
    for op in range(program.n_ops):
        _copy_op(build, program, op, names)
    gradients: dict[int, int] = {}
    count = 0

    def new(size: int, kind: TensorKind = TensorKind.ACTIVATION) -> int:
        nonlocal count
        count += 1
        return build.tensor(f"g{count}", bytes=size, kind=kind)

    for op in reversed(range(program.n_ops)):
        written = program.write_tensor[program.write_start[op] : program.write_start[op + 1]].tolist()
        for tensor in written:
            if tensor not in gradients:  # the loss
                gradients[tensor] = new(sizes[tensor])
                build.op(
                    f"loss{tensor}", "loss", reads=[names[tensor]], writes=[gradients[tensor]], dtype="i8"
                )
        read = program.read_tensor[program.read_start[op] : program.read_start[op + 1]].tolist()
        weights = [tensor for tensor in read if kinds[tensor] == TensorKind.WEIGHT]
        values = [tensor for tensor in read if kinds[tensor] in (TensorKind.ACTIVATION, TensorKind.OUTPUT)]
        given = [gradients[tensor] for tensor in written]
        flops = dict(zip(("matrix", "vector", "transcendental"), program.op_flops[op].tolist(), strict=True))
        word = program.op_kind[op]
        if values:
            needed = [] if word in ELEMENTWISE else [names[tensor] for tensor in read]
            summed = [gradients[tensor] for tensor in values if tensor in gradients]
            for tensor in values:
                gradients[tensor] = new(sizes[tensor])
            made = [gradients[tensor] for tensor in values]
            reads = list(dict.fromkeys([*given, *needed, *summed]))
            build.op(f"b{op}", word, reads=reads, writes=made, dtype="i8", backward=True, **flops)
        for weight in weights:
            after = new(sizes[weight], TensorKind.OUTPUT)
            reads = [*given, *(names[tensor] for tensor in read)]
            build.op(f"u{op}.{weight}", word, reads=reads, writes=[after], dtype="i8", backward=True, **flops)
            build.tie(TieKind.DONATED, names[weight], after)
    return build.build()


def _copy_op(build: Builder, program: Program, op: int, names: dict[int, int]) -> None:
    def accesses(start: Int64, tensor: Int32, size: Int64) -> list[Access]:
        rows = slice(int(start[op]), int(start[op + 1]))
        return [(names[t], b) for t, b in zip(tensor[rows].tolist(), size[rows].tolist(), strict=True)]

    matrix, vector, transcendental = program.op_flops[op].tolist()
    build.op(
        f"o{op}",
        program.op_kind[op],
        reads=accesses(program.read_start, program.read_tensor, program.read_bytes),
        writes=accesses(program.write_start, program.write_tensor, program.write_bytes),
        matrix=matrix,
        vector=vector,
        transcendental=transcendental,
        other_bytes=int(program.op_other_bytes[op]),
        dtype=program.op_dtype[op],
        backward=bool(program.op_backward[op]),
    )
