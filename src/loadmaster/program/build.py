"""`Builder`: add tensors and ops, get a checked `Program`.

build = Builder("tiny")
x = build.tensor("x", shape=(1, 64), dtype="f32", kind="input")
w = build.tensor("w", shape=(64, 10), dtype="f32", kind="weight")
y = build.tensor("y", shape=(1, 10), dtype="f32", kind="output")
build.op("fc", "matmul", reads=[x, w], writes=[y], matrix=2 * 64 * 10)
program = build.build()
"""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadProgram
from loadmaster.program.kinds import BITS, bytes_of
from loadmaster.program.program import CANNOT_RUN, COMPUTED, Labels, Program, TensorKind, TieKind
from loadmaster.program.validate import validate
from loadmaster.units import PICOSECONDS, UNLIMITED


def topological_order(inputs: Sequence[Sequence[int]], names: Sequence[str]) -> list[int]:
    """Order ops so that each follows the ops in `inputs[op]`; ties by position.

    Raises `BadProgram` with the ops of a cycle if there is one.
    """
    waiting = [len(sources) for sources in inputs]
    users: list[list[int]] = [[] for _ in inputs]
    for op, sources in enumerate(inputs):
        for source in sources:
            users[source].append(op)
    ready = [op for op, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for user in users[op]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) == len(inputs):
        return order
    cycle = _cycle(inputs, waiting)
    path = " -> ".join(names[op] for op in [*cycle[:8], cycle[0]])
    raise BadProgram(
        f"the ops form a cycle of {len(cycle)}: {path}",
        object=names[cycle[0]],
        number=len(cycle),
        remedy="break it, or unroll the loop it stands for",
    )


def _cycle(inputs: Sequence[Sequence[int]], waiting: Sequence[int]) -> list[int]:
    # Every op that still waits has an input that still waits: walk back until one repeats.
    op = next(op for op, count in enumerate(waiting) if count)
    seen: dict[int, int] = {}
    path: list[int] = []
    while op not in seen:
        seen[op] = len(path)
        path.append(op)
        op = next(source for source in inputs[op] if waiting[source])
    return path[seen[op] :][::-1]


_AS_JSON = json.JSONEncoder(sort_keys=True, allow_nan=False)

Access = int | tuple[int, int]
"""A tensor, or (tensor, bytes really accessed)."""


def clean_name(name: str) -> str:
    """Control characters, line ends and bidirectional marks as escapes: people see names."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


class Builder:
    """Collects a program; `build` checks it. Tensors and ops are numbered as they are added.

    What is added goes into columns at once: a program of a million ops has no object for each of them.
    """

    def __init__(self, name: str, *, order_source: str = "file") -> None:
        self.name = clean_name(name)
        self.order_source = order_source
        self.warnings: list[str] = []
        self._tensors = _TensorColumns()
        self._ops = _OpColumns()
        self._loops: list[tuple[int, int]] = []
        self._ties: list[tuple[int, int, int, int]] = []
        self._names: dict[str, set[str]] = {"op": set(), "tensor": set()}
        self._numbered: dict[tuple[str, str], int] = {}

    @property
    def n_ops(self) -> int:
        return len(self._ops.name)

    @property
    def n_tensors(self) -> int:
        return len(self._tensors.name)

    def tensor(
        self,
        name: str,
        *,
        shape: Sequence[int] = (),
        dtype: str = "u8",
        bytes: int | None = None,
        kind: str | TensorKind = TensorKind.ACTIVATION,
        group: int = -1,
        fast: bool = True,
        alias: int | None = None,
    ) -> int:
        """Add a tensor; `bytes` defaults to those of its shape. Returns its number."""
        name = self._new_name("tensor", name)
        if dtype not in BITS:
            raise BadProgram(
                f"tensor '{name}' has the unknown element type '{dtype}'",
                object=name,
                remedy=f"use one of {', '.join(BITS)}",
            )
        dims = [_whole(size, f"tensor '{name}'", "a dimension of") for size in shape]
        size = bytes_of(dims, dtype) if bytes is None else bytes
        size = _whole(size, f"tensor '{name}'", "bytes")
        columns, number = self._tensors, self.n_tensors
        root = number if alias is None else columns.alias[self._known(alias, name)]
        kind_number = _kind(kind, name)
        columns.name.append(name)
        columns.shape.add(dims)
        columns.dtype.append(dtype)
        columns.bytes.append(size)
        columns.kind.append(kind_number)
        columns.group.append(group)
        columns.fast.append(bool(fast))
        columns.alias.append(root)
        return number

    def op(
        self,
        name: str,
        kind: str,
        *,
        reads: Iterable[Access] = (),
        writes: Iterable[Access] = (),
        matrix: float = 0,
        vector: float = 0,
        transcendental: float = 0,
        other_bytes: int = 0,
        dtype: str | None = None,
        scope: str = "",
        attributes: Mapping[str, Any] | None = None,
        backward: bool = False,
        view: bool = False,
        loop: int = -1,
        group: int = -1,
        source: int = -1,
    ) -> int:
        """Add an op; its type defaults to that of its first result. Returns its number."""
        name = self._new_name("op", name)
        read, written = self._accesses(reads, name), self._accesses(writes, name)
        if dtype is None:
            first = next(iter(written or read), None)
            dtype = "f32" if first is None else self._tensors.dtype[first]
        flops = [_whole(n, f"op '{name}'", "flops") for n in (matrix, vector, transcendental)]
        try:
            text = _AS_JSON.encode(attributes) if attributes else ""
        except (TypeError, ValueError) as error:
            raise BadProgram(
                f"op '{name}' has an attribute that JSON can't hold: {error}",
                object=name,
                remedy="use finite numbers, texts and lists",
            ) from None
        other = _whole(other_bytes, f"op '{name}'", "bytes")
        columns, number = self._ops, self.n_ops
        columns.name.append(name)
        columns.kind.append(clean_name(kind))
        columns.dtype.append(dtype)
        columns.scope.append(clean_name(scope))
        columns.attributes.append(text)
        columns.flops.extend(flops)
        columns.other.append(other)
        columns.read.add(read)
        columns.read_bytes.extend(read.values())
        columns.written.add(written)
        columns.written_bytes.extend(written.values())
        columns.backward.append(bool(backward))
        columns.view.append(bool(view))
        columns.loop.append(loop)
        columns.group.append(group)
        columns.source.append(source)
        return number

    def loop(self, trips: int, parent: int = -1) -> int:
        """Add a loop around the ops that name it. Returns its number."""
        self._loops.append((parent, _whole(trips, f"loop {len(self._loops)}", "trips")))
        return len(self._loops) - 1

    def tie(self, kind: TieKind, source: int, target: int, at: int = -1) -> None:
        """Let two tensors share one place; `at` is the op (INPLACE) or the loop (CARRIED)."""
        self._ties.append((int(kind), source, target, at))

    def set_kind(self, tensor: int, kind: str | TensorKind) -> None:
        """Change what a tensor is: importers learn late which results are program outputs."""
        self._tensors.kind[tensor] = _kind(kind, self._tensors.name[tensor])

    def tensor_kind(self, tensor: int) -> TensorKind:
        """What a tensor is, so far."""
        return TensorKind(self._tensors.kind[tensor])

    def root(self, tensor: int) -> int:
        """The tensor whose storage it shares, or itself."""
        return self._tensors.alias[tensor]

    def set_group(self, tensor: int, group: int) -> None:
        """Put a tensor into a hard group."""
        self._tensors.group[tensor] = group

    def build(self, *, sort: bool = False, costs: npt.ArrayLike | None = None) -> Program:
        """Check and freeze. `sort` orders the ops topologically, ties by the order they came in.

        `costs[op, device]` are seconds that replace computed ones; None in an object array
        leaves an op computed and infinity says that it can't run there.
        """
        ops, tensors = self._ops, self._tensors
        order = topological_order(self._edges(), ops.name) if sort else None
        moved = {old: new for new, old in enumerate(order)} if order is not None else None
        ties = [(k, s, t, moved[at] if moved and k == TieKind.INPLACE else at) for k, s, t, at in self._ties]
        table = None if costs is None else _cost_table(costs, ops.name)
        read_start, read_tensor, read_bytes = _accesses_in(order, ops.read, ops.read_bytes)
        write_start, write_tensor, write_bytes = _accesses_in(order, ops.written, ops.written_bytes)
        return validate(
            Program(
                name=self.name,
                order_source="topological" if sort else self.order_source,
                op_name=tuple(_in_order(order, ops.name)),
                op_kind=Labels.of(_in_order(order, ops.kind)),
                op_dtype=Labels.of(_in_order(order, ops.dtype)),
                op_scope=Labels.of(_in_order(order, ops.scope)),
                op_attributes=Labels.of(_in_order(order, ops.attributes)),
                op_flops=_column(ops.flops, np.int64, order, width=3),
                op_other_bytes=_column(ops.other, np.int64, order),
                op_backward=_column(ops.backward, np.bool_, order),
                op_view=_column(ops.view, np.bool_, order),
                op_loop=_column(ops.loop, np.int32, order),
                op_group=_column(ops.group, np.int32, order),
                op_source=_column(ops.source, np.int64, order),
                loop_parent=np.array([parent for parent, _ in self._loops], dtype=np.int32),
                loop_trips=np.array([trips for _, trips in self._loops], dtype=np.int64),
                tensor_name=tuple(tensors.name),
                tensor_bytes=_column(tensors.bytes, np.int64),
                tensor_dtype=Labels.of(tensors.dtype),
                tensor_kind=_column(tensors.kind, np.int8),
                tensor_shape_start=_column(tensors.shape.start, np.int64),
                tensor_shape=_column(tensors.shape.values, np.int64),
                tensor_group=_column(tensors.group, np.int32),
                tensor_fast=_column(tensors.fast, np.bool_),
                tensor_alias=_column(tensors.alias, np.int32),
                read_start=read_start,
                read_tensor=read_tensor,
                read_bytes=read_bytes,
                write_start=write_start,
                write_tensor=write_tensor,
                write_bytes=write_bytes,
                tie_kind=np.array([tie[0] for tie in ties], dtype=np.int8),
                tie_source=np.array([tie[1] for tie in ties], dtype=np.int32),
                tie_target=np.array([tie[2] for tie in ties], dtype=np.int32),
                tie_at=np.array([tie[3] for tie in ties], dtype=np.int32),
                costs=table if table is None or order is None else table[order],
                warnings=tuple(self.warnings),
            )
        )

    def _new_name(self, table: str, name: str) -> str:
        name = clean_name(name)
        if not name or name in self._names[table]:
            raise BadProgram(
                f"two {table}s are named '{name}'" if name else f"a {table} has no name",
                object=name,
                remedy="rename one" if name else "name it",
            )
        self._names[table].add(name)
        return name

    def free_name(self, table: str, name: str) -> str:
        """`name`, or `name#2`, … : the first that no op (or tensor) has yet."""
        name = clean_name(name)
        if name not in self._names[table]:
            return name
        # Thousands may have one name: where the last search ended saves trying all numbers again.
        number = self._numbered.get((table, name), 2)
        while f"{name}#{number}" in self._names[table]:
            number += 1
        self._numbered[table, name] = number
        return f"{name}#{number}"

    def _known(self, tensor: int, who: str) -> int:
        if not 0 <= tensor < self.n_tensors:
            raise BadProgram(
                f"'{who}' refers to tensor {tensor} and there are {self.n_tensors}",
                object=who,
                number=tensor,
                remedy="add the tensor first",
            )
        return tensor

    def _accesses(self, side: Iterable[Access], op: str) -> dict[int, int]:
        """Tensor -> bytes; an operand given twice is one access."""
        rows: dict[int, int] = {}
        for access in side:
            tensor, size = access if isinstance(access, tuple) else (access, None)
            whole = self._tensors.bytes[self._known(tensor, op)]
            size = whole if size is None else _whole(size, f"op '{op}'", "bytes")
            rows[tensor] = max(rows.get(tensor, 0), size)
        return rows

    def _edges(self) -> list[list[int]]:
        written, read = self._ops.written, self._ops.read
        producer = {tensor: op for op in range(self.n_ops) for tensor in written.row(op)}
        return [
            sorted({producer[tensor] for tensor in read.row(op) if tensor in producer} - {op})
            for op in range(self.n_ops)
        ]


class _Ragged:
    """Rows of different lengths in one column."""

    def __init__(self) -> None:
        self.values = array("q")
        self.start = array("q", [0])

    def add(self, row: Iterable[int]) -> None:
        self.values.extend(row)
        self.start.append(len(self.values))

    def row(self, number: int) -> array[int]:
        return self.values[self.start[number] : self.start[number + 1]]


class _TensorColumns:
    """A row for each tensor."""

    def __init__(self) -> None:
        self.name: list[str] = []
        self.dtype: list[str] = []
        self.shape = _Ragged()
        self.bytes = array("q")
        self.kind = array("b")
        self.group = array("i")
        self.fast = array("b")
        self.alias = array("i")


class _OpColumns:
    """A row for each op; of `flops` three numbers."""

    def __init__(self) -> None:
        self.name: list[str] = []
        self.kind: list[str] = []
        self.dtype: list[str] = []
        self.scope: list[str] = []
        self.attributes: list[str] = []
        self.flops = array("q")
        self.other = array("q")
        self.read, self.read_bytes = _Ragged(), array("q")
        self.written, self.written_bytes = _Ragged(), array("q")
        self.backward = array("b")
        self.view = array("b")
        self.loop = array("i")
        self.group = array("i")
        self.source = array("q")


def _whole(value: float, who: str, what: str) -> int:
    if type(value) is int and 0 <= value <= UNLIMITED:
        return value
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            raise BadProgram(
                f"{who} has {value} {what}", object=who, number=str(value), remedy="give a number"
            )
        value = round(float(value))
    value = int(value)
    if not 0 <= value <= UNLIMITED:
        raise BadProgram(
            f"{who} has {value} {what}", object=who, number=value, remedy="give a number from 0 to 2^62"
        )
    return value


def _kind(kind: str | TensorKind, name: str) -> int:
    if isinstance(kind, str):
        if kind.upper() not in TensorKind.__members__:
            raise BadProgram(
                f"tensor '{name}' has the unknown kind '{kind}'",
                object=name,
                remedy="use weight, input, activation, output or state",
            )
        return int(TensorKind[kind.upper()])
    return int(kind)


def _in_order(order: list[int] | None, texts: list[str]) -> Iterable[str]:
    return texts if order is None else (texts[row] for row in order)


def _column(
    values: array[int], dtype: type[np.generic], order: list[int] | None = None, width: int = 1
) -> npt.NDArray[Any]:
    column = np.array(values, dtype=dtype)
    column = column.reshape(-1, width) if width > 1 else column
    return column if order is None else column[order]


def _accesses_in(
    order: list[int] | None, tensors: _Ragged, sizes: array[int]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """(start, tensor, bytes) of the ops' accesses."""
    start = _column(tensors.start, np.int64)
    tensor, size = _column(tensors.values, np.int32), _column(sizes, np.int64)
    if order is None:
        return start, tensor, size
    lengths = np.diff(start)[order]
    moved = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(len(tensor)) + np.repeat(start[:-1][order] - moved[:-1], lengths)
    return moved, tensor[rows], size[rows]


def _cost_table(costs: npt.ArrayLike, names: list[str]) -> npt.NDArray[np.int64]:
    rows = np.asarray(costs, dtype=object)
    if rows.ndim != 2 or len(rows) != len(names):
        raise BadProgram("the cost table must be [ops, devices]", object="costs", remedy="one row per op")
    table = np.empty(rows.shape, dtype=np.int64)
    for (op, device), seconds in np.ndenumerate(rows):
        if seconds is None:
            table[op, device] = COMPUTED
        elif seconds == math.inf:
            table[op, device] = CANNOT_RUN
        elif not math.isfinite(seconds) or seconds < 0 or seconds * PICOSECONDS >= CANNOT_RUN:
            raise BadProgram(
                f"op '{names[op]}' costs {seconds} s on device {device}",
                object=names[op],
                number=str(seconds),
                remedy="give finite seconds from 0 up",
            )
        else:
            table[op, device] = math.ceil(seconds * PICOSECONDS)
    return table
