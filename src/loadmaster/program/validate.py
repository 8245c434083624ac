"""What must hold for every Program, whoever made it: a builder, an importer or a file.

Everything behind this check may trust the columns (the native core indexes with them),
so a hostile file is refused here. Each rule is one vectorised test that names a culprit, in time
and memory linear in the columns. Sums and differences wrap round where a file makes them:
neighbours are compared, and sums are taken as floats.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from loadmaster.errors import BadProgram
from loadmaster.json_text import check_encodable
from loadmaster.program.hazards import refuse_hazards
from loadmaster.program.kinds import BITS
from loadmaster.program.program import CANNOT_RUN, Labels, Program, TensorKind, TieKind
from loadmaster.units import UNLIMITED

MOST_ROWS = 2**22
"""Ops or tensors."""
MOST_TIES = 8
"""For each tensor."""
MOST_GROUPS = 2**20
"""Groups are numbered below it."""
MOST_LOOPS = 4096
MOST_DEPTH = 64
"""Of loops in loops."""
MOST_DEVICES = 1024
"""Columns of a cost table."""
MOST_NAME = 2**16
"""Characters."""


MOST_AMOUNT = 2**60
"""Of bytes and of flops in all: rounded up to an alignment and added, they still fit the core's integers."""


def validate(program: Program) -> Program:
    """Return the program, or raise `BadProgram` that names the object, the number, the remedy."""
    _columns(program)
    _texts(program)
    _names(program)
    _groups(program)
    _sizes(program)
    _accesses(program)
    _dataflow(program)
    _aliases_and_ties(program)
    _empty(program)
    refuse_hazards(program)
    _loops(program)
    _costs(program)
    return program


def _refuse(message: str, name: str, number: int | float | None, remedy: str) -> BadProgram:
    return BadProgram(message, object=name, number=number, remedy=remedy)


def _columns(p: Program) -> None:
    lengths = {"op": p.n_ops, "tensor": p.n_tensors, "loop": len(p.loop_parent)}
    lengths |= {"tie": len(p.tie_kind)}
    limits = {"loop": MOST_LOOPS, "tie": MOST_TIES * p.n_tensors}
    for what, count in lengths.items():
        limit = limits.get(what, MOST_ROWS)
        if count > limit:
            why = f"the program has {count:,} {what}s, above the limit {limit:,}"
            raise _refuse(why, p.name, count, "split it")
    for column in fields(Program):
        value = getattr(p, column.name)
        table = column.name.split("_")[0]
        if (
            isinstance(value, np.ndarray | Labels) and table in lengths and "shape" not in column.name
        ) and len(value) != lengths[table]:
            raise _refuse(
                f"column '{column.name}' has {len(value)} rows and the table has {lengths[table]}",
                column.name,
                len(value),
                "give one row per " + table,
            )
        if isinstance(value, Labels) and len(value.values) > len(value):
            why = f"column '{column.name}' has {len(value.values):,} texts for {len(value):,} rows"
            raise _refuse(why, column.name, len(value.values), "keep the texts that rows have")
        if isinstance(value, Labels) and not _codes_in_range(value):
            raise _refuse(
                f"column '{column.name}' has a code out of range",
                column.name,
                int(value.codes.max()),
                "save the program again",
            )
    if p.op_flops.shape != (p.n_ops, 3):
        raise _refuse("column 'op_flops' must be [ops, 3]", "op_flops", None, "one column per class")
    for name, entries, rows in (
        ("read", len(p.read_tensor), p.n_ops),
        ("write", len(p.write_tensor), p.n_ops),
        ("tensor_shape", len(p.tensor_shape), p.n_tensors),
    ):
        start = getattr(p, f"{name}_start")
        ends = len(start) == rows + 1 and start[0] == 0 and start[-1] == entries
        if not ends or (start[1:] < start[:-1]).any():  # their difference may wrap round
            raise _refuse(
                f"column '{name}_start' does not cut {entries} entries into {rows} rows",
                f"{name}_start",
                entries,
                "save the program again",
            )
    if len(p.read_bytes) != len(p.read_tensor) or len(p.write_bytes) != len(p.write_tensor):
        raise _refuse("reads and writes need one byte count each", "read_bytes", None, "save it again")


def _codes_in_range(labels: Labels) -> bool:
    codes = labels.codes
    return not len(codes) or bool(codes.min() >= 0 and codes.max() < len(labels.values))


def _texts(p: Program) -> None:
    labels = (p.op_kind, p.op_dtype, p.op_scope, p.tensor_dtype)
    named = [text for column in labels for text in column.values]
    for text in (p.name, p.order_source, *p.op_name, *p.tensor_name, *named):
        if len(text) > MOST_NAME:
            why = f"the name '{text[:40]}…' has {len(text):,} characters, above {MOST_NAME:,}"
            raise _refuse(why, text[:40], len(text), "shorten it")
        _encodable(p, text)
    for text in (*p.op_attributes.values, *p.warnings):
        _encodable(p, text)


def _encodable(p: Program, text: str) -> None:
    """Half a character can't be printed, nor written to a file."""
    try:
        check_encodable(text)
    except ValueError as error:
        raise _refuse(str(error), p.name, None, "name it in whole characters") from None


def _names(p: Program) -> None:
    for what, names in (("op", p.op_name), ("tensor", p.tensor_name)):
        if len(set(names)) != len(names):
            seen: set[str] = set()
            twice = next(n for n in names if n in seen or seen.add(n))  # type: ignore[func-returns-value]
            raise _refuse(f"two {what}s are named '{twice}'", twice, names.count(twice), "rename one")
        if "" in names:
            raise _refuse(f"{what} {names.index('')} has no name", what, names.index(""), "name it")


def _groups(p: Program) -> None:
    for what, names in (("op", p.op_name), ("tensor", p.tensor_name)):
        group = getattr(p, f"{what}_group")
        bad = np.flatnonzero((group < -1) | (group >= MOST_GROUPS))
        if len(bad):
            name, number = names[bad[0]], int(group[bad[0]])
            remedy = f"number groups from 0 to {MOST_GROUPS - 1}, or -1 for none"
            raise _refuse(f"{what} '{name}' is in group {number}", name, number, remedy)


def _sizes(p: Program) -> None:
    for column, names, remedy in (
        ("tensor_bytes", p.tensor_name, "give its bytes, at least 0"),
        ("op_other_bytes", p.op_name, "give its bytes, at least 0"),
    ):
        value = getattr(p, column)
        bad = np.flatnonzero(value < 0)
        if len(bad):
            name = names[bad[0]]
            raise _refuse(
                f"{column.split('_')[0]} '{name}' has {value[bad[0]]} bytes", name, int(value[bad[0]]), remedy
            )
    if (p.op_flops < 0).any():
        op = int(np.argwhere(p.op_flops < 0)[0][0])
        raise _refuse(
            f"op '{p.op_name[op]}' has {p.op_flops[op].min()} flops",
            p.op_name[op],
            int(p.op_flops[op].min()),
            "give at least 0",
        )
    for what, values in (("bytes of all tensors", p.tensor_bytes), ("flops of all ops", p.op_flops)):
        total = float(values.sum(dtype=np.float64))
        if total >= MOST_AMOUNT:  # at least: what is a little more is rounded to it
            raise _refuse(
                f"the {what} add up to {total:.4g}, above the limit 2^60", p.name, total, "check the shapes"
            )
    if (p.tensor_shape < 0).any():
        row = int(np.argmin(p.tensor_shape))
        tensor = int(np.searchsorted(p.tensor_shape_start, row, side="right")) - 1
        name, size = p.tensor_name[tensor], int(p.tensor_shape[row])
        raise _refuse(f"tensor '{name}' has a dimension of {size}", name, size, "give at least 0")
    for dtype in p.tensor_dtype.values:
        if dtype not in BITS:
            raise _refuse(
                f"element type '{dtype}' is not known", dtype, None, f"use one of {', '.join(BITS)}"
            )
    kinds = p.tensor_kind
    if len(kinds) and (kinds.min() < 0 or kinds.max() > max(TensorKind)):
        raise _refuse("a tensor has an unknown kind", p.name, int(kinds.max()), "use TensorKind")


def _accesses(p: Program) -> None:
    for verb, tensors, sizes, ops in (
        ("reads", p.read_tensor, p.read_bytes, p.read_op),
        ("writes", p.write_tensor, p.write_bytes, p.write_op),
    ):
        bad = np.flatnonzero((tensors < 0) | (tensors >= p.n_tensors))
        if len(bad):
            op = p.op_name[ops[bad[0]]]
            raise _refuse(
                f"op '{op}' {verb} tensor {tensors[bad[0]]} and there are {p.n_tensors}",
                op,
                int(tensors[bad[0]]),
                "add the tensor first",
            )
        bad = np.flatnonzero(sizes < 0)
        if len(bad):
            op = p.op_name[ops[bad[0]]]
            raise _refuse(
                f"op '{op}' {verb} {sizes[bad[0]]} bytes of '{p.tensor_name[tensors[bad[0]]]}'",
                op,
                int(sizes[bad[0]]),
                "give at least 0",
            )
        if float(sizes.sum(dtype=np.float64)) >= MOST_AMOUNT:
            raise _refuse(f"the bytes of all {verb} exceed 2^60", p.name, None, "check the shapes")


def _dataflow(p: Program) -> None:
    writes = np.bincount(p.write_tensor, minlength=p.n_tensors)
    if (writes > 1).any():
        tensor = int(np.argmax(writes))
        name = p.tensor_name[tensor]
        raise _refuse(
            f"tensor '{name}' is written by {writes[tensor]} ops",
            name,
            int(writes[tensor]),
            "give each its own tensor and tie them",
        )
    given = p.is_given
    bad = np.flatnonzero(given & (writes > 0))
    if len(bad):
        name, kind = p.tensor_name[bad[0]], TensorKind(p.tensor_kind[bad[0]]).name.lower()
        raise _refuse(
            f"op '{p.op_name[p.producer[bad[0]]]}' writes '{name}', which is {kind}",
            name,
            int(bad[0]),
            "write a tensor of its own and tie it in place",
        )
    bad = np.flatnonzero(~given & (writes == 0))
    if len(bad):
        name = p.tensor_name[bad[0]]
        raise _refuse(
            f"tensor '{name}' is read before any write: no op writes it",
            name,
            int(bad[0]),
            "make it an input, a weight or state, or add the op that writes it",
        )
    early = np.flatnonzero(p.producer[p.read_tensor] > p.read_op)
    if len(early):
        op, tensor = p.op_name[p.read_op[early[0]]], p.read_tensor[early[0]]
        raise _refuse(
            f"op '{op}' reads '{p.tensor_name[tensor]}' before op '{p.op_name[p.producer[tensor]]}' writes it",
            op,
            int(p.read_op[early[0]]),
            "order the ops, or build(sort=True)",
        )


def _aliases_and_ties(p: Program) -> None:
    alias = p.tensor_alias
    if len(alias) and (alias.min() < 0 or alias.max() >= p.n_tensors or (alias[alias] != alias).any()):
        raise _refuse(
            "column 'tensor_alias' must name the root of each view",
            "tensor_alias",
            None,
            "let a view's root be the tensor that owns the storage",
        )
    bad = np.flatnonzero(np.diff(p.read_start)[p.op_view] != 1)
    if len(bad):
        op = p.op_name[np.flatnonzero(p.op_view)[bad[0]]]
        raise _refuse(f"view op '{op}' must read exactly one tensor", op, None, "make it a real op")
    view_write = p.op_view[p.write_op]
    is_view = alias != np.arange(p.n_tensors)
    for bad, what in (
        (np.flatnonzero(is_view & (p.producer < 0)), "is a view that no op makes"),
        (p.write_tensor[~view_write & is_view[p.write_tensor]], "is a view that an op fills"),
        (
            p.write_tensor[view_write & ~is_view[p.write_tensor]],
            "is made by a view op and has storage of its own",
        ),
    ):
        if len(bad):
            name = p.tensor_name[bad[0]]
            raise _refuse(
                f"tensor '{name}' {what}", name, int(bad[0]), "let view ops, and no others, make views"
            )
    source = p.read_tensor[p.read_start[p.write_op[view_write]]]
    bad = np.flatnonzero(alias[p.write_tensor[view_write]] != alias[source])
    if len(bad):
        name = p.tensor_name[p.write_tensor[view_write][bad[0]]]
        raise _refuse(
            f"view '{name}' shows another tensor than its op reads",
            name,
            int(bad[0]),
            "alias what the op reads",
        )
    _ties(p)


def _ties(p: Program) -> None:
    kind, at = p.tie_kind, p.tie_at
    known = (kind >= 0) & (kind <= max(TieKind))
    row = np.where(known, kind, 0)
    least, limit = np.array([-1, 0, -1])[row], np.array([p.n_ops, p.n_loops, 0])[row]
    there = known & (at >= least) & (at < limit)
    for end in (p.tie_source, p.tie_target):
        there &= (end >= 0) & (end < p.n_tensors)
    for tie in np.flatnonzero(~there)[:1].tolist():
        raise _refuse(f"tie {tie} is out of range", f"tie {tie}", int(at[tie]), "tie tensors that exist")
    inplace = np.flatnonzero(kind == TieKind.INPLACE)
    for tie in inplace[p.producer[p.tie_target[inplace]] != at[inplace]][:1].tolist():
        name = p.tensor_name[p.tie_target[tie]]
        raise _refuse(
            f"in-place tensor '{name}' is not written by op {at[tie]}",
            name,
            int(at[tie]),
            "tie it at the op that writes it",
        )


def _empty(p: Program) -> None:
    for verb, tensors, sizes, ops in (
        ("reads", p.read_tensor, p.read_bytes, p.read_op),
        ("writes", p.write_tensor, p.write_bytes, p.write_op),
    ):
        bad = np.flatnonzero((sizes > 0) & (p.storage_bytes[tensors] == 0))
        if len(bad):
            op, name = p.op_name[ops[bad[0]]], p.tensor_name[tensors[bad[0]]]
            raise _refuse(
                f"op '{op}' {verb} {sizes[bad[0]]} bytes of '{name}', which has none",
                op,
                int(sizes[bad[0]]),
                "give the tensor its bytes, or the access none",
            )


def _loops(p: Program) -> None:
    if (p.loop_trips < 1).any():
        loop = int(np.argmin(p.loop_trips))
        raise _refuse(
            f"loop {loop} has {p.loop_trips[loop]} trips",
            f"loop {loop}",
            int(p.loop_trips[loop]),
            "give at least 1",
        )
    if (p.loop_parent >= np.arange(p.n_loops)).any() or (p.n_loops and p.loop_parent.min() < -1):
        raise _refuse("a loop must come after the loop around it", "loop_parent", None, "number them so")
    if p.n_ops and (p.op_loop.min() < -1 or p.op_loop.max() >= p.n_loops):
        raise _refuse("an op is in a loop that does not exist", "op_loop", int(p.op_loop.max()), "add it")
    parent, nested = p.loop_parent.tolist(), p.loop_trips.tolist()
    trips, depth = [1] * (p.n_loops + 1), [0] * (p.n_loops + 1)  # the last: outside every loop
    for loop, around in enumerate(parent):
        trips[loop], depth[loop] = trips[around] * nested[loop], depth[around] + 1
        if trips[loop] > UNLIMITED:
            why = f"loop {loop} runs {trips[loop]:.4g} times, above the limit 2^62"
            raise _refuse(why, f"loop {loop}", float(trips[loop]), "check the trip counts")
        if depth[loop] > MOST_DEPTH:
            why = f"loop {loop} lies in {depth[loop] - 1} others, and {MOST_DEPTH} levels are the limit"
            raise _refuse(why, f"loop {loop}", depth[loop], "join loops")
    _together(p)
    moved = p.op_other_bytes.astype(np.float64)
    for ops, sizes in ((p.read_op, p.read_bytes), (p.write_op, p.write_bytes)):
        moved += np.bincount(ops, weights=sizes, minlength=p.n_ops)
    total = float((moved * p.op_repeat).sum())
    if total >= UNLIMITED:
        raise _refuse(
            f"the ops move {total:.4g} bytes in all their repeats, above the limit 2^62",
            p.name,
            total,
            "check the shapes and the trip counts",
        )


def _together(p: Program) -> None:
    """The ops of a loop, and of the loops in it, come one after another."""
    first = np.full(p.n_loops + 1, p.n_ops, dtype=np.int64)  # the last: outside every loop
    last, count = np.full(p.n_loops + 1, -1, dtype=np.int64), np.zeros(p.n_loops + 1, np.int64)
    numbers = np.arange(p.n_ops)
    np.minimum.at(first, p.op_loop, numbers)
    np.maximum.at(last, p.op_loop, numbers)
    np.add.at(count, p.op_loop, 1)
    for loop in range(p.n_loops - 1, -1, -1):  # parents come before their loops
        around = p.loop_parent[loop]
        first[around] = min(first[around], first[loop])
        last[around] = max(last[around], last[loop])
        count[around] += count[loop]
    apart = (count > 0) & (last - first + 1 != count)
    for loop in np.flatnonzero(apart[:-1])[:1].tolist():
        inside = np.zeros(p.n_loops + 1, dtype=bool)
        inside[loop] = True
        for inner in range(loop + 1, p.n_loops):
            inside[inner] = inside[p.loop_parent[inner]]
        between = ~inside[p.op_loop[first[loop] : last[loop]]]
        name = p.op_name[int(first[loop]) + int(np.argmax(between))]
        why = f"loop {loop} is interrupted by op '{name}'"
        raise _refuse(why, f"loop {loop}", int(count[loop]), "keep the ops of a loop together")


def _costs(p: Program) -> None:
    if p.costs is None:
        return
    if p.costs.ndim != 2 or p.costs.shape[0] != p.n_ops:
        raise _refuse("the cost table must be [ops, devices]", "costs", None, "give one row per op")
    if p.costs.shape[1] > MOST_DEVICES:
        why = f"the cost table has {p.costs.shape[1]:,} devices, above the limit {MOST_DEVICES:,}"
        raise _refuse(why, "costs", p.costs.shape[1], "give one column per device")
    bad = np.argwhere((p.costs < -1) | (p.costs > CANNOT_RUN))
    if len(bad):
        op = p.op_name[bad[0][0]]
        raise _refuse(
            f"op '{op}' costs {p.costs[tuple(bad[0])]} ps",
            op,
            int(p.costs[tuple(bad[0])]),
            "give seconds from 0 up",
        )
