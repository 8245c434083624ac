"""`Program`: ops in a valid order, tensors, and who reads and writes what.

A Program is plain data: columns of equal length, one row per op or per tensor, and
compressed rows (`start[i] : start[i + 1]`) where a row has many entries. It is never
changed after it is built, so what is derived from it is computed once and kept.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadProgram
from loadmaster.json_text import read_json

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Labels:
    """A column of texts that repeat: `column[row]` is a text, `codes` numbers them by first appearance."""

    values: tuple[str, ...]
    codes: Int32

    @classmethod
    def of(cls, texts: Iterable[str]) -> Labels:
        known: dict[str, int] = {}
        codes = [known.setdefault(text, len(known)) for text in texts]
        array = np.array(codes, dtype=np.int32)
        array.setflags(write=False)
        return cls(tuple(known), array)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return (self.values[code] for code in self.codes)

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return {value: code for code, value in enumerate(self.values)}

    def rows(self, value: str) -> npt.NDArray[np.bool_]:
        """Which rows hold this text, as a mask."""
        return np.equal(self.codes, self._code_of.get(value, -1))


Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

FLOP_CLASSES = ("matrix", "vector", "transcendental")
"""Columns of `op_flops`. Matrix: two per multiply-add. Transcendental: evaluations of exp,
log, tanh, sqrt and their kin, one each."""

COMPUTED = -1
"""In a cost table: this op's time is computed, not given."""
CANNOT_RUN = 2**62
"""In a cost table: this op can't run on this device."""


class TensorKind(enum.IntEnum):
    """What a tensor is to the program."""

    WEIGHT = 0
    """There before the program starts, and unchanged or updated in place; kept between runs."""
    INPUT = 1
    """Given anew for each run."""
    ACTIVATION = 2
    """Made by an op, and needed until its last reader."""
    OUTPUT = 3
    """Made by an op, and there at the end."""
    STATE = 4
    """Kept between runs like a weight, and changed by them: optimizer moments, caches."""


class TieKind(enum.IntEnum):
    """Two tensors that share one place, beside pure views (`tensor_alias`)."""

    INPLACE = 0
    """Op `at` writes `target` over `source`, which nobody reads afterwards."""
    CARRIED = 1
    """Loop `at` enters with `source`, and each iteration leaves `target` in its place."""
    DONATED = 2
    """The program input `source` gives its place to the program output `target`."""


PERSISTENT = (TensorKind.WEIGHT, TensorKind.STATE)
GIVEN = (TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.STATE)
"""Kinds that no op produces."""


class Repeats(NamedTuple):
    """Of a program in which ops run again: what it was made from (`loadmaster.program.repeats`)."""

    base: str
    """The hash of the program without them, and without a cost table."""
    ops: tuple[int, ...]
    """Numbers of ops there."""


@dataclass(frozen=True, eq=False)
class Program:
    """A model's graph. `n` ops, `T` tensors, `L` loops; indices are rows."""

    name: str
    order_source: str
    """Where the order comes from: 'schedule', 'file', 'trace' or 'topological'."""

    op_name: tuple[str, ...]
    op_kind: Labels
    op_dtype: Labels
    """The type it computes in (rates differ by type)."""
    op_scope: Labels
    """Path of the layer it belongs to, such as 'dec3/t17'; may be empty."""
    op_attributes: Labels
    """A JSON object as text."""
    op_flops: Int64
    """[n, 3], columns as in `FLOP_CLASSES`."""
    op_other_bytes: Int64
    """Bytes it moves beyond its reads and writes, always in the slowest memory."""
    op_backward: Bool
    op_view: Bool
    """It only reinterprets bytes: no time, no decision."""
    op_loop: Int32
    """Innermost loop, or -1."""
    op_group: Int32
    """Ops and tensors of one group must be on one device; -1: free."""
    op_source: Int64
    """Position in the source's own numbering, or -1."""

    loop_parent: Int32
    loop_trips: Int64

    tensor_name: tuple[str, ...]
    tensor_bytes: Int64
    tensor_dtype: Labels
    tensor_kind: Int8
    tensor_shape_start: Int64
    tensor_shape: Int64
    tensor_group: Int32
    tensor_fast: Bool
    """May live in a memory other than the slowest."""
    tensor_alias: Int32
    """The tensor whose storage it shares (pure views), or itself."""

    read_start: Int64
    read_tensor: Int32
    read_bytes: Int64
    write_start: Int64
    write_tensor: Int32
    write_bytes: Int64

    tie_kind: Int8
    tie_source: Int32
    tie_target: Int32
    tie_at: Int32
    """An op (INPLACE), a loop (CARRIED) or -1 (DONATED)."""

    costs: Int64 | None = None
    """[n, devices] picoseconds that replace computed ones; `COMPUTED`, `CANNOT_RUN`."""
    warnings: tuple[str, ...] = field(default=())
    repeats: Repeats | None = None
    """What runs again; None: everything runs once."""

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {self.n_ops} ops, {self.n_tensors} tensors, {self.hash[:12]})"

    @property
    def n_ops(self) -> int:
        return len(self.op_name)

    @property
    def n_tensors(self) -> int:
        return len(self.tensor_name)

    @property
    def n_loops(self) -> int:
        return len(self.loop_parent)

    def reads(self, op: int) -> Int32:
        return self.read_tensor[self.read_start[op] : self.read_start[op + 1]]

    def writes(self, op: int) -> Int32:
        return self.write_tensor[self.write_start[op] : self.write_start[op + 1]]

    def shape(self, tensor: int) -> tuple[int, ...]:
        start, end = self.tensor_shape_start[tensor : tensor + 2]
        return tuple(int(size) for size in self.tensor_shape[start:end])

    def attributes(self, op: int) -> dict[str, Any]:
        """What an importer noted of an op. A text that is no JSON object is refused when it is read."""
        text = self.op_attributes[op]
        try:
            found = read_json(text) if text else {}
        except ValueError as error:
            raise self._bad_attributes(op, str(error)) from None
        if not isinstance(found, dict):
            raise self._bad_attributes(op, "they are no JSON object")
        return found

    def _bad_attributes(self, op: int, reason: str) -> BadProgram:
        name = self.op_name[op]
        return BadProgram(
            f"the attributes of op '{name}' can't be read: {reason}",
            object=name,
            number=op,
            remedy="import the model again",
        )

    @cached_property
    def read_op(self) -> Int32:
        """The op of every read."""
        return np.repeat(np.arange(self.n_ops, dtype=np.int32), np.diff(self.read_start))

    @cached_property
    def write_op(self) -> Int32:
        """The op of every write."""
        return np.repeat(np.arange(self.n_ops, dtype=np.int32), np.diff(self.write_start))

    @cached_property
    def producer(self) -> Int32:
        """[T] the op that writes each tensor, or -1."""
        producer = np.full(self.n_tensors, -1, dtype=np.int32)
        producer[self.write_tensor] = self.write_op
        return producer

    @cached_property
    def readers(self) -> tuple[Int64, Int32]:
        """(start[T + 1], op): the readers of each tensor, in order."""
        by_tensor = np.argsort(self.read_tensor, kind="stable")
        counts = np.bincount(self.read_tensor, minlength=self.n_tensors)
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return start, self.read_op[by_tensor]

    @cached_property
    def op_repeat(self) -> Int64:
        """[n] how often each op runs: the product of the trips of the loops around it."""
        trips = np.ones(self.n_loops + 1, dtype=np.int64)  # the last one: outside every loop
        for loop in range(self.n_loops):
            trips[loop] = trips[self.loop_parent[loop]] * self.loop_trips[loop]
        return trips[self.op_loop]

    @cached_property
    def is_root(self) -> Bool:
        """[T] whether a tensor is no view of another: it stands for its storage."""
        roots: Bool = self.tensor_alias == np.arange(self.n_tensors)
        return roots

    @cached_property
    def is_persistent(self) -> Bool:
        """[T] weights and state, which are kept between runs."""
        return np.isin(self.tensor_kind, [int(kind) for kind in PERSISTENT])

    @cached_property
    def is_given(self) -> Bool:
        """[T] weights, inputs and state, which no op produces."""
        return np.isin(self.tensor_kind, [int(kind) for kind in GIVEN])

    @cached_property
    def storage_bytes(self) -> Int64:
        """[T] size of the storage of each tensor: the largest of the tensors that alias it."""
        size = self.tensor_bytes.copy()
        np.maximum.at(size, self.tensor_alias, self.tensor_bytes)
        return size[self.tensor_alias]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that can change a result: the columns, without names."""
        from loadmaster.program.storage import content_hash

        return content_hash(self, names=False)

    @cached_property
    def named_hash(self) -> str:
        """The same, with names."""
        from loadmaster.program.storage import content_hash

        return content_hash(self, names=True)
