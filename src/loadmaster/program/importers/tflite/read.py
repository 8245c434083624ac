"""A TFLite file as plain data: graphs, tensors, operators, and the metadata beside them.

The file is a flatbuffer, read by hand: the `flatbuffers` package checks no offset against the end of the
data, and the core needs NumPy alone. A table begins with the way back to its vtable, which says where each
field lies; a field that is not there has its default. Everything else is reached by unsigned offsets,
counted from where they stand, hence always forward. Nothing in a file is trusted: each access is checked.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadProgram
from loadmaster.files import read_regular
from loadmaster.program.build import clean_name
from loadmaster.program.kinds import bytes_of


class Broken(ValueError):
    """The bytes are no flatbuffer of this kind."""


_NUMBERS = {code: struct.Struct("<" + code) for code in ("b", "B", "h", "H", "i", "I", "q", "Q", "HH")}


def number(data: bytes, at: int, code: str) -> int:
    """The whole number of a `struct` code at a place."""
    return int(_unpack(data, at, code)[0])


def _unpack(data: bytes, at: int, code: str) -> tuple[int, ...]:
    form = _NUMBERS[code]
    if not 0 <= at <= len(data) - form.size:
        raise Broken(f"place {at} is outside of {len(data)} bytes")
    return form.unpack_from(data, at)


def follow(data: bytes, at: int) -> int:
    """Where the offset at a place leads to."""
    step = number(data, at, "I")
    if step == 0 or at + step > len(data) - 4:
        raise Broken(f"the offset {step} at {at} leads nowhere")
    return at + step


@dataclass(frozen=True, slots=True)
class Table:
    """One table; fields are numbered as in the schema."""

    data: bytes
    at: int

    @property
    def fields(self) -> int:
        """How many fields its vtable has room for."""
        return (number(self.data, self._vtable, "H") - 4) // 2

    @property
    def _vtable(self) -> int:
        return self.at - number(self.data, self.at, "i")

    def place(self, field: int) -> int | None:
        """Where a field lies, or None if it has its default."""
        vtable = self._vtable
        entry = 4 + 2 * field
        known, size = _unpack(self.data, vtable, "HH")
        if entry + 2 > known:
            return None
        (step,) = _unpack(self.data, vtable + entry, "H")
        if step >= size:
            raise Broken(f"field {field} is outside of its table")
        return self.at + step if step else None

    def number(self, field: int, code: str, default: int = 0) -> int:
        place = self.place(field)
        return default if place is None else number(self.data, place, code)

    def target(self, field: int) -> int | None:
        """Where the object of a field lies."""
        place = self.place(field)
        return None if place is None else follow(self.data, place)

    def table(self, field: int) -> Table | None:
        target = self.target(field)
        return None if target is None else Table(self.data, target)

    def vector(self, field: int, size: int) -> tuple[int, int]:
        """(where the elements of this size begin, how many there are)."""
        target = self.target(field)
        if target is None:
            return 0, 0
        count = number(self.data, target, "I")
        if target + 4 + count * size > len(self.data):
            raise Broken(f"{count} elements at {target} are more than the file has")
        return target + 4, count

    def tables(self, field: int) -> list[Table]:
        begin, count = self.vector(field, 4)
        return [Table(self.data, follow(self.data, begin + 4 * i)) for i in range(count)]

    def numbers(self, field: int, dtype: str = "<i4") -> npt.NDArray[np.int64]:
        begin, count = self.vector(field, np.dtype(dtype).itemsize)
        return np.frombuffer(self.data, dtype, count, begin).astype(np.int64)

    def text(self, field: int) -> str:
        begin, count = self.vector(field, 1)
        return self.data[begin : begin + count].decode("utf-8", errors="replace")


def root(data: bytes, identifier: bytes) -> Table:
    """The table that a file is about."""
    if data[4:8] != identifier:
        raise Broken(f"it does not say {identifier.decode()} after its first four bytes")
    return Table(data, follow(data, 0))


CUSTOM = 32

_WORDS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP
FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX
SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD
UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE
UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX
DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER
GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL
LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND
LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE
RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N
GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF
WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL
GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM
ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
"""
OPERATORS = tuple(_WORDS.split())
"""Name by number; later numbers are StableHLO's, which nothing small runs."""

_TYPE_WORDS = """
f32 f16 i32 u8 i64 - bool i16 c64 i8 f64 c128 u64 i32 - u32 u16 i4 bf16 i2 u4 f8e4m3fn f8e5m2
"""
TYPES = tuple("" if word == "-" else word for word in _TYPE_WORDS.split())
"""Element type by number; '' has no fixed size (texts, variants), a resource is a number of 32 bits."""


def operator_name(number: int) -> str:
    """A builtin operator by its number in the schema."""
    return OPERATORS[number] if 0 <= number < len(OPERATORS) else f"BUILTIN_{number}"


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
    """A subgraph: tensors by number, and operators in the order in which they run."""

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
