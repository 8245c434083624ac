"""Ops that run again: a forward op is repeated for the backward pass, so that its results need not be kept.

    found = repeat(program, [3, 5])
    found.program, found.origin, found.again

A repeat comes right before the first backward op that needs it, itself or for another repeat. Backward
ops and repeats read what was made again; forward ops and outputs keep what was made first. Tensors of
repeats are new rows behind those of the base program, whose numbers are still valid; op numbers shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.errors import BadProgram
from loadmaster.program.kinds import is_unknown
from loadmaster.program.measured_costs import costless_hash
from loadmaster.program.program import Bool, Int32, Int64, Labels, Program, Repeats, TensorKind, TieKind
from loadmaster.program.validate import validate

AGAIN = "@again"
"""Ends the names of repeats and of what they make."""
RANDOM = ("random", "dropout")
"""Kinds that would give other numbers the second time."""


@dataclass(frozen=True, eq=False)
class Repeated:
    """A program with repeats. Operands and results of an op stand as those of its origin do."""

    program: Program
    origin: Int32
    """[n_ops] the op of the base program that each op is, or repeats"""
    again: Bool
    """[n_ops] it is a repeat"""

    @property
    def ops(self) -> Int32:
        """The ops of the base program that are repeated, views left out."""
        return np.sort(self.origin[self.again & ~self.program.op_view])


def repeatable(program: Program) -> Bool:
    """[n_ops] forward ops that give the same again: not random, in no loop, on nothing that is written over."""
    free = ~program.op_view & ~program.op_backward & (program.op_loop < 0)
    kinds = program.op_kind
    bad = np.array([kind in RANDOM or is_unknown(kind) for kind in kinds.values], dtype=bool)
    free &= ~bad[kinds.codes]
    notes = program.op_attributes  # how a capture says that an op of another kind draws numbers
    free &= ~np.array(['"random"' in text for text in notes.values], dtype=bool)[notes.codes]
    tied = np.zeros(program.n_tensors, dtype=bool)
    tied[program.tensor_alias[np.concatenate([program.tie_source, program.tie_target])]] = True
    for ops, tensors in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor)):
        free[ops[tied[program.tensor_alias[tensors]]]] = False
    return free


def repeat(base: Program, ops: Sequence[int]) -> Repeated:
    """The base program with these ops (numbers) repeated; those that nothing would read are left out."""
    if base.repeats is not None:
        raise BadProgram(
            f"'{base.name}' has ops that run again already",
            object=base.name,
            number=len(base.repeats.ops),
            remedy="give the program that it was made from",
        )
    chosen = np.zeros(base.n_ops, dtype=bool)
    for op in ops:
        if not 0 <= op < base.n_ops:
            raise BadProgram(
                f"op {op} can't be repeated: '{base.name}' has {base.n_ops:,} ops",
                object=base.name,
                number=int(op),
                remedy="give numbers of its ops",
            )
        chosen[op] = True
    for op in np.flatnonzero(chosen & ~repeatable(base))[:1].tolist():
        raise BadProgram(
            f"op '{base.op_name[op]}' can't be repeated: it is random, a view, in a loop, of the backward "
            "pass, or on a tensor that is written over",
            object=base.op_name[op],
            number=op,
            remedy="leave it out",
        )
    if not chosen.any():
        return Repeated(base, np.arange(base.n_ops, dtype=np.int32), chosen)
    rows, made = _ordered(base, chosen)
    origin = np.array([op for op, _ in rows], dtype=np.int32)
    again = np.array([repeated for _, repeated in rows], dtype=bool)
    program = validate(_rewritten(base, origin, again, made))
    found = Repeated(program, origin, again)
    if not again.any():
        return found
    repeats = Repeats(costless_hash(base), tuple(found.ops.tolist()))
    return replace(found, program=replace(program, repeats=repeats))


def _ordered(base: Program, chosen: Bool) -> tuple[list[tuple[int, bool]], dict[int, int]]:
    """(ops in their new order and whether each is a repeat, base tensor -> the tensor made again)."""
    comes_again = chosen.copy()
    for op in np.flatnonzero(base.op_view & ~base.op_backward).tolist():  # after what they show
        maker = base.producer[base.reads(op)[0]]
        comes_again[op] = maker >= 0 and comes_again[maker]
    maker_of, reads = base.producer.tolist(), [base.reads(op).tolist() for op in range(base.n_ops)]
    rows: list[tuple[int, bool]] = []
    made: dict[int, int] = {}

    def needed(op: int) -> list[int]:
        makers = (maker_of[tensor] for tensor in reads[op])
        return [maker for maker in makers if maker >= 0 and comes_again[maker]]

    def make(op: int) -> None:
        waiting, seen = [op], {op}
        for each in waiting:  # it grows
            for maker in needed(each):
                if maker not in seen and int(base.writes(maker)[0]) not in made:
                    seen.add(maker)
                    waiting.append(maker)
        for each in sorted(waiting):  # the order of the base program is a good one
            rows.append((each, True))
            for tensor in base.writes(each).tolist():
                made[tensor] = base.n_tensors + len(made)

    for op, span in enumerate(_spans(base)):
        for inside in range(op, span):  # what a loop needs is made before it
            if base.op_backward[inside]:
                for maker in needed(inside):
                    if int(base.writes(maker)[0]) not in made:
                        make(maker)
        rows.append((op, False))
    return rows, made


def _spans(base: Program) -> list[int]:
    """For each op the end of what begins with it: of itself, of an outermost loop, or nothing within one."""
    outer = np.full(base.n_loops + 1, -1, dtype=np.int64)  # the last: outside all
    for loop in range(base.n_loops):  # parents come before their loops
        parent = int(base.loop_parent[loop])
        outer[loop] = loop if parent < 0 else outer[parent]
    loops = outer[base.op_loop]
    ends = list(range(1, base.n_ops + 1))
    for loop in np.unique(loops[loops >= 0]).tolist():
        inside = np.flatnonzero(loops == loop).tolist()
        for op in inside[1:]:
            ends[op] = op
        ends[inside[0]] = inside[-1] + 1
    return ends


def _take_rows(base: Program, ops: Int32 | Int64, tensors: Int64) -> Program:
    """These rows of the tables of ops and tensors, in this order; what they refer to by number is as before,
    so the result is no valid program yet."""

    def labels(column: Labels, rows: Int32 | Int64) -> Labels:
        return Labels(column.values, column.codes[rows])  # still by first appearance

    read_start, read = _take_entries(base.read_start, ops)
    write_start, write = _take_entries(base.write_start, ops)
    shape_start, shape = _take_entries(base.tensor_shape_start, tensors)
    return replace(
        base,
        op_name=tuple(base.op_name[op] for op in ops.tolist()),
        op_kind=labels(base.op_kind, ops),
        op_dtype=labels(base.op_dtype, ops),
        op_scope=labels(base.op_scope, ops),
        op_attributes=labels(base.op_attributes, ops),
        op_flops=base.op_flops[ops],
        op_other_bytes=base.op_other_bytes[ops],
        op_backward=base.op_backward[ops],
        op_view=base.op_view[ops],
        op_loop=base.op_loop[ops],
        op_group=base.op_group[ops],
        op_source=base.op_source[ops],
        tensor_name=tuple(base.tensor_name[tensor] for tensor in tensors.tolist()),
        tensor_bytes=base.tensor_bytes[tensors],
        tensor_dtype=labels(base.tensor_dtype, tensors),
        tensor_kind=base.tensor_kind[tensors],
        tensor_shape_start=shape_start,
        tensor_shape=base.tensor_shape[shape],
        tensor_group=base.tensor_group[tensors],
        tensor_fast=base.tensor_fast[tensors],
        tensor_alias=base.tensor_alias[tensors],
        read_start=read_start,
        read_tensor=base.read_tensor[read],
        read_bytes=base.read_bytes[read],
        write_start=write_start,
        write_tensor=base.write_tensor[write],
        write_bytes=base.write_bytes[write],
        costs=None if base.costs is None else base.costs[ops],
    )


def _take_entries(start: Int64, rows: Int32 | Int64) -> tuple[Int64, Int64]:
    """(starts of the chosen rows, the entries of all of them) of compressed rows."""
    count = np.diff(start)[rows]
    starts = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    entries = np.arange(starts[-1]) + np.repeat(start[rows] - starts[:-1], count)
    return starts, entries


def _mark(names: tuple[str, ...], second: Bool, mark: str) -> tuple[str, ...]:
    return tuple(name + mark if marked else name for name, marked in zip(names, second.tolist(), strict=True))


def _rewritten(base: Program, origin: Int32, again: Bool, made: dict[int, int]) -> Program:
    source = np.fromiter(made, dtype=np.int64, count=len(made))
    new = np.arange(base.n_tensors, dtype=np.int32)
    new[source] = base.n_tensors + np.arange(len(source), dtype=np.int32)
    rows = _take_rows(base, origin, np.concatenate([np.arange(base.n_tensors), source]))
    is_new = np.arange(rows.n_tensors) >= base.n_tensors
    place = np.empty(base.n_ops, dtype=np.int32)
    place[origin[~again]] = np.flatnonzero(~again)
    inplace = base.tie_kind == TieKind.INPLACE
    tie_at = base.tie_at.copy()
    tie_at[inplace] = place[tie_at[inplace]]
    backward = rows.op_backward | again
    read_tensor = np.where(backward[rows.read_op], new[rows.read_tensor], rows.read_tensor)
    write_tensor = np.where(again[rows.write_op], new[rows.write_tensor], rows.write_tensor)
    alias = np.arange(rows.n_tensors, dtype=np.int32)
    for op in np.flatnonzero(rows.op_view).tolist():  # in order: a view may show a view
        written = write_tensor[rows.write_start[op] : rows.write_start[op + 1]]
        alias[written] = alias[read_tensor[rows.read_start[op]]]
    return replace(
        rows,
        op_name=_mark(rows.op_name, again, AGAIN),
        op_backward=backward,
        tensor_name=_mark(rows.tensor_name, is_new, AGAIN),
        tensor_kind=np.where(is_new, np.int8(TensorKind.ACTIVATION), rows.tensor_kind),
        tensor_alias=alias,
        read_tensor=read_tensor,
        write_tensor=write_tensor,
        tie_at=tie_at,
    )
