"""A TFLite file as plain data: graphs, tensors, operators, and the metadata beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from loadmaster.errors import BadProgram
from loadmaster.files import read_regular
from loadmaster.program.build import clean_name
from loadmaster.program.importers.tflite.flatbuffer import Broken, Table, root
from loadmaster.program.importers.tflite.names import CUSTOM, TYPES, operator_name
from loadmaster.program.types import bytes_of

IDENTIFIER = b"TFL3"
MOST_BYTES = 2**31
MOST_DIMS = 64
ABSENT = -1
"""In place of an operand: it is not given."""


class MODEL:
    """Fields of the table `Model`."""

    VERSION, CODES, GRAPHS, DESCRIPTION, BUFFERS, METADATA_BUFFER, METADATA, SIGNATURES = range(8)


class GRAPH:
    """Fields of the table `SubGraph`."""

    TENSORS, INPUTS, OUTPUTS, OPERATORS, NAME = range(5)


class OPERATOR:
    """Fields of the table `Operator`."""

    CODE, INPUTS, OUTPUTS, OPTIONS_TYPE, OPTIONS = range(5)
    INTERMEDIATES = 8


@dataclass(frozen=True)
class Tensor:
    """One array of a graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int
    """Which of the file's buffers holds its numbers; tensors may share one."""
    stored: int | None
    """How many bytes these have, or None if there are none."""
    variable: bool
    open: bool
    """A dimension of it may change from run to run."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return bytes_of(self.shape, self.dtype)

    @property
    def constant(self) -> bool:
        return self.stored is not None


@dataclass(frozen=True)
class Operator:
    """One step of a graph. Operands are numbers of tensors, or ABSENT."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Table | None


@dataclass(frozen=True)
class Graph:
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class TfliteModel:
    """`root` is the table `Model` itself, for those who write it anew."""

    root: Table
    graphs: tuple[Graph, ...]
    metadata: dict[str, bytes]


def read_bytes(source: str | Path) -> bytes:
    """A file's bytes, if they are not too many."""
    path = Path(source)
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise BadProgram(
                f"TFLite file '{path}' has {size:,} bytes, above 2 GiB",
                object=str(path),
                number=size,
                remedy="give a smaller model",
            )
        return read_regular(path, MOST_BYTES)
    except OSError as error:
        raise BadProgram(
            f"TFLite file '{path}' can't be read: {error.strerror}", object=str(path), remedy="check the path"
        ) from None


def read_tflite(data: bytes, name: str = "model") -> TfliteModel:
    """Parse; whatever is wrong with the bytes is one error."""
    try:
        return _Reader(data).model()
    except (Broken, ValueError, OverflowError, MemoryError) as error:
        raise BadProgram(
            f"'{name}' is no TFLite model, or a damaged one: {error}",
            object=name,
            remedy="export or copy it again",
        ) from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.root = root(data, IDENTIFIER)
        self.buffers = self.root.tables(MODEL.BUFFERS)
        # Vectors of a hostile file may share bytes, and so stand for more than the file could hold.
        self._left = max(len(data), 1024)

    def model(self) -> TfliteModel:
        codes = [self._code(table) for table in self.root.tables(MODEL.CODES)]
        graphs = tuple(self._graph(table, codes) for table in self.root.tables(MODEL.GRAPHS))
        if not graphs:
            raise Broken("it has no graph")
        metadata = {}
        for table in self.root.tables(MODEL.METADATA):
            self._spend(1)
            begin, count = self._content(table.number(1, "I"))
            metadata[table.text(0)] = self.data[begin : begin + count]
        return TfliteModel(self.root, graphs, metadata)

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise Broken("its vectors overlap")

    def _code(self, table: Table) -> str:
        number = max(table.number(0, "b"), table.number(3, "i"))
        return f"custom:{table.text(1)}" if number == CUSTOM else operator_name(number)

    def _content(self, buffer: int) -> tuple[int, int]:
        """(begin, bytes) of a buffer's numbers; 0 bytes if it has none."""
        if buffer >= len(self.buffers):
            raise Broken(f"it refers to buffer {buffer} of {len(self.buffers)}")
        table = self.buffers[buffer]
        begin, count = table.number(1, "Q"), table.number(2, "Q")
        if begin > 1:  # large models keep their numbers behind the tables
            if begin + count > len(self.data):
                raise Broken(f"buffer {buffer} ends at {begin + count} of {len(self.data)}")
            return begin, count
        return table.vector(0, 1)

    def _graph(self, table: Table, codes: list[str]) -> Graph:
        tensors = tuple(self._tensor(each, i) for i, each in enumerate(table.tables(GRAPH.TENSORS)))
        operators = []
        for i, each in enumerate(table.tables(GRAPH.OPERATORS)):
            code = each.number(OPERATOR.CODE, "I")
            if code >= len(codes):
                raise Broken(f"operator {i} has the code {code} of {len(codes)}")
            inputs, outputs = self._ends(each, tensors, f"operator {i}")
            options = each.table(OPERATOR.OPTIONS)
            operators.append(Operator(codes[code], inputs, outputs, options))
        return Graph(tensors, *self._ends(table, tensors, "the graph"), tuple(operators))

    def _ends(
        self, table: Table, tensors: tuple[Tensor, ...], who: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Inputs and outputs, which graphs and operators have as fields of the same numbers."""
        inputs = self._operands(table, GRAPH.INPUTS, tensors, who)
        return inputs, self._operands(table, GRAPH.OUTPUTS, tensors, who)

    def _operands(self, table: Table, field: int, tensors: tuple[Tensor, ...], who: str) -> tuple[int, ...]:
        numbers = table.numbers(field)
        self._spend(1 + len(numbers))
        bad = numbers[(numbers < ABSENT) | (numbers >= len(tensors))]
        if len(bad):
            raise Broken(f"{who} refers to tensor {bad[0]} of {len(tensors)}")
        return tuple(numbers.tolist())

    def _tensor(self, table: Table, position: int) -> Tensor:
        number = table.number(1, "b")
        name = clean_name(table.text(3)) or f"tensor_{position}"
        self._spend(1 + len(name) // 64)
        if not 0 <= number < len(TYPES) or not TYPES[number]:
            raise Broken(f"tensor '{name}' has elements of type {number}, which have no fixed size")
        shape = table.numbers(0)
        if len(shape) > MOST_DIMS or (len(shape) and (shape < 0).any()):
            raise Broken(f"tensor '{name}' has the shape {shape[:8].tolist()}")
        buffer = table.number(2, "I")
        _, stored = self._content(buffer)
        tensor = Tensor(
            name,
            TYPES[number],
            tuple(shape.tolist()),
            buffer,
            stored or None,
            bool(table.number(5, "B")),
            bool((table.numbers(7) < 0).any()),
        )
        dense = table.table(6) is None
        if stored and dense and stored < tensor.bytes:
            raise Broken(f"weight '{name}' needs {tensor.bytes} bytes and the file has {stored}")
        return tensor
