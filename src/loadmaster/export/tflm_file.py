"""A TFLite file written anew: a new head in front of the old file.

Offsets of a flatbuffer lead forward, so new tables in front can refer to all that follows. The old
bytes stay as they are, at a multiple of 16: no weight moves against its alignment, and nothing that
we do not know is lost. What the new head replaces stays behind as a few unused bytes.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, require
from loadmaster.export.plans import NotExported
from loadmaster.program.importers.tflite.read import (
    ABSENT,
    GRAPH,
    IDENTIFIER,
    MODEL,
    OPERATOR,
    Table,
    TfliteModel,
)

ALIGNMENT = 16
REFERENCE = "reference"
MODEL_FIELDS: dict[int, str] = {0: "I", **dict.fromkeys(range(1, 10), REFERENCE)}
GRAPH_FIELDS: dict[int, str] = {**dict.fromkeys(range(5), REFERENCE), 5: "i"}
OPERATOR_FIELDS: dict[int, str] = {
    0: "I",
    1: REFERENCE,
    2: REFERENCE,
    3: "B",
    4: REFERENCE,
    5: REFERENCE,
    6: "b",
    7: REFERENCE,
    8: REFERENCE,
    11: "B",
    12: REFERENCE,
    13: "i",
}
TENSOR_FIELDS: dict[int, str] = {
    0: REFERENCE,
    1: "b",
    2: "I",
    3: REFERENCE,
    4: REFERENCE,
    5: "B",
    6: REFERENCE,
    7: REFERENCE,
    8: "B",
    9: REFERENCE,
}
"""What each field of a table is: a number by its `struct` code, or a reference."""
METADATA = "OfflineMemoryAllocation"
VERSION = 1
BY_RUNTIME = -1
"""As an offset: the runtime places the tensor."""


class Head:
    """Objects in front of a body. An address is a place relative to the body's first byte: new
    objects have negative ones."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._length = 0

    def put(self, data: bytes, align: int = 4, payload: int = 0) -> int:
        """Add bytes so that the one at `payload` is aligned; returns their address."""
        gap = -(self._length + len(data) - payload) % align
        self._chunks.append(data + bytes(gap))
        self._length += len(data) + gap
        return -self._length

    def text(self, text: str) -> int:
        data = text.encode()
        return self.put(struct.pack("<I", len(data)) + data + b"\0")

    def blob(self, data: bytes) -> int:
        """A vector of bytes whose content is aligned as the runtime wants it."""
        return self.put(struct.pack("<I", len(data)) + data, ALIGNMENT, 4)

    def numbers(self, numbers: Sequence[int]) -> int:
        return self.put(struct.pack(f"<I{len(numbers)}i", len(numbers), *numbers))

    def vector(self, addresses: Sequence[int]) -> int:
        """A vector of references."""
        begin = -(self._length + 4 + 4 * len(addresses) + -self._length % 4) + 4
        steps = [address - (begin + 4 * i) for i, address in enumerate(addresses)]
        return self.put(struct.pack(f"<I{len(steps)}I", len(steps), *steps))

    def table(self, fields: Mapping[int, tuple[str, int]]) -> int:
        """A table: field -> (what it is, its number or address). Each field takes four bytes."""
        count = max(fields, default=-1) + 1
        vtable = struct.pack("<HH", 4 + 2 * count, 4 + 4 * len(fields))
        slots = {field: 4 + 4 * i for i, field in enumerate(sorted(fields))}
        vtable += struct.pack(f"<{count}H", *(slots.get(field, 0) for field in range(count)))
        vtable += bytes(-len(vtable) % 4)
        size = 4 + 4 * len(fields)
        at = -(self._length + size + -self._length % 4)
        body = struct.pack("<i", len(vtable))
        for field in sorted(fields):
            kind, value = fields[field]
            if kind == REFERENCE:
                body += struct.pack("<I", value - (at + slots[field]))
            else:
                body += struct.pack("<" + kind, value).ljust(4, b"\0")
        address = self.put(body)
        self.put(vtable)
        return address

    def changed(self, old: Table, kinds: Mapping[int, str], new: Mapping[int, int | None]) -> int:
        """A copy of a table with some fields replaced by numbers or addresses, or (None) left out."""
        fields: dict[int, tuple[str, int]] = {}
        for field in range(max(old.fields, *kinds)):
            place = old.place(field)
            if field in new or place is None:
                continue
            if field not in kinds:
                raise NotExported(
                    f"the model has a table with field {field}, which is not known",
                    object="model",
                    number=field,
                    remedy="export it with an older converter",
                )
            if kinds[field] == REFERENCE:
                target = old.target(field)
                assert target is not None
                fields[field] = (REFERENCE, target)
            else:
                fields[field] = (kinds[field], old.number(field, kinds[field]))
        fields |= {field: (kinds[field], value) for field, value in new.items() if value is not None}
        return self.table(fields)

    def finish(self, root: int, body: bytes) -> bytes:
        """The whole file."""
        start = self._length + 8
        start += -start % ALIGNMENT
        header = struct.pack("<I4s", root + start, IDENTIFIER).ljust(start - self._length, b"\0")
        return b"".join([header, *reversed(self._chunks), body])


def with_plan(model: TfliteModel, order: Sequence[int] | None, metadata: Mapping[str, bytes]) -> bytes:
    """The same model with the operators of its first graph in another order, and with metadata added
    (entries of the same names are replaced)."""
    check_simple(model)
    head, root = Head(), model.root
    buffers = [table.at for table in root.tables(MODEL.BUFFERS)]
    entries = [t.at for t in root.tables(MODEL.METADATA) if t.text(0) not in metadata]
    for name, data in metadata.items():
        entries.append(head.table({0: (REFERENCE, head.text(name)), 1: ("I", len(buffers))}))
        buffers.append(head.table({0: (REFERENCE, head.blob(data))}))
    graphs = root.tables(MODEL.GRAPHS)
    addresses = [graph.at for graph in graphs]
    if order is not None:
        operators = graphs[0].tables(GRAPH.OPERATORS)
        moved = head.vector([operators[number].at for number in order])
        addresses[0] = head.changed(graphs[0], GRAPH_FIELDS, {GRAPH.OPERATORS: moved})
    new = {
        MODEL.GRAPHS: head.vector(addresses),
        MODEL.BUFFERS: head.vector(buffers),
        MODEL.METADATA: head.vector(entries),
    }
    return head.finish(head.changed(root, MODEL_FIELDS, new), root.data)


def extract_operator(model: TfliteModel, number: int) -> bytes:
    """A model of one operator of the first graph and its tensors: what its kernel asks for can be
    seen from this alone."""
    check_simple(model)
    head, graph = Head(), model.graphs[0]
    table = model.root.tables(MODEL.GRAPHS)[0]
    operator = table.tables(GRAPH.OPERATORS)[number]
    between = operator.numbers(OPERATOR.INTERMEDIATES).tolist()
    inputs, outputs = graph.operators[number].inputs, graph.operators[number].outputs
    used = sorted({*inputs, *outputs, *between} - {ABSENT})
    place = {ABSENT: ABSENT} | {tensor: i for i, tensor in enumerate(used)}
    given = [
        n
        for n in dict.fromkeys(inputs)
        if n != ABSENT and not graph.tensors[n].constant and not graph.tensors[n].variable
    ]
    new: dict[int, int | None] = {
        OPERATOR.INPUTS: head.numbers([place[n] for n in inputs]),
        OPERATOR.OUTPUTS: head.numbers([place[n] for n in outputs]),
    }
    if between:
        new[OPERATOR.INTERMEDIATES] = head.numbers([place[n] for n in between])
    alone = head.changed(operator, OPERATOR_FIELDS, new)
    tables = table.tables(GRAPH.TENSORS)
    cut = head.changed(
        table,
        GRAPH_FIELDS,
        {
            GRAPH.TENSORS: head.vector([tables[n].at for n in used]),
            GRAPH.INPUTS: head.numbers([place[n] for n in given]),
            GRAPH.OUTPUTS: head.numbers([place[n] for n in outputs if n != ABSENT]),
            GRAPH.OPERATORS: head.vector([alone]),
        },
    )
    new = {
        MODEL.GRAPHS: head.vector([cut]),
        MODEL.METADATA: None,
        MODEL.METADATA_BUFFER: None,
        MODEL.SIGNATURES: None,
    }
    return head.finish(head.changed(model.root, MODEL_FIELDS, new), model.root.data)


def check_simple(model: TfliteModel) -> None:
    """Refuse files that refer to places by their distance from the file's first byte."""
    far = [i for i, table in enumerate(model.root.tables(MODEL.BUFFERS)) if table.number(1, "Q") > 1]
    custom = [
        i
        for i, table in enumerate(model.root.tables(MODEL.GRAPHS)[0].tables(GRAPH.OPERATORS))
        if table.number(9, "Q") > 1
    ]
    if far or custom:
        raise NotExported(
            f"the model keeps {len(far) + len(custom)} buffers behind its tables, as very large ones do",
            object="model",
            number=len(far) + len(custom),
            remedy="give a model below 2 GiB",
        )


# TFLite Micro's own interpreter, as its Python package has it: what it allocates, what it computes.
#
# Its kernels are plain references: results are those of any port to the bit where models are of whole
# numbers, times mean nothing.

RUNTIME = "tflite_micro.python.tflite_micro.runtime"
MOST_ARENA = 2**29
"""Bytes beyond which nobody's microcontroller goes, and no computer should for a damaged file."""
_BADLY_READ = (ValueError, TypeError, LookupError, AttributeError, struct.error)
"""What the package's own look into a damaged file raises, before the interpreter sees it."""
_WITHOUT_KERNEL = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "IF", "WHILE")
"""Operators that ask for no scratch, and that can't be cut out of their model."""


class CannotRun(LoadmasterError):
    """The interpreter can't run a model."""


@dataclass(frozen=True)
class Arena:
    """Bytes of one model's arena: the head is planned, the tail is for good."""

    head: int
    tail: int


def first_size(room: int) -> int:
    """An arena to begin with: `room` is about how many bytes the tensors may take."""
    return min(max(2 * room, 2**18), MOST_ARENA)


class Micro:
    """One model in the interpreter. `room`: about how many bytes its tensors may take; `exact`: the arena's bytes,
    and no more."""

    def __init__(self, data: bytes, room: int, exact: int | None = None) -> None:
        runtime = require(RUNTIME, "tflite")
        size = first_size(room) if exact is None else exact
        while True:
            try:
                with _errors() as said:
                    self._interpreter = runtime.Interpreter.from_bytes(data, arena_size=size)
                break
            except (RuntimeError, MemoryError, *_BADLY_READ) as error:
                why = _one_line(said, error)
                if (
                    exact is not None
                    or size >= MOST_ARENA
                    or not re.search(r"arena|allocat", why, re.IGNORECASE)
                ):
                    raise CannotRun(
                        f"TFLite Micro can't run the model: {why}",
                        object="model",
                        remedy="give --no-verify if another build of it can",
                    ) from None
                size = min(8 * size, MOST_ARENA)

    def arena(self) -> Arena:
        with _errors() as said:
            self._interpreter.print_allocations()
        found = {
            word: int(count) for word, count in re.findall(r"Arena allocation (\w+) (\d+) bytes", said[0])
        }
        if not {"head", "tail"} <= found.keys():
            raise CannotRun(
                "TFLite Micro did not say what it allocated",
                object="print_allocations",
                remedy="install a version that does",
            )
        return Arena(found["head"], found["tail"])

    def run(self, seed: int, inputs: int, outputs: int) -> list[npt.NDArray[Any]]:
        """The results for seeded inputs, which are of the kind and shape that the model takes."""
        rng = np.random.default_rng(seed)
        for index in range(inputs):
            about = self._interpreter.get_input_details(index)
            self._interpreter.set_input(_random(rng, about["shape"], np.dtype(about["dtype"])), index)
        try:
            with _errors() as said:
                self._interpreter.invoke()
        except RuntimeError as error:
            raise CannotRun(
                f"TFLite Micro stopped: {_one_line(said, error)}",
                object="model",
                remedy="give --no-verify if another build of it can",
            ) from None
        return [np.array(self._interpreter.get_output(index)) for index in range(outputs)]


def probe_scratch(model: TfliteModel) -> dict[int, int]:
    """Operator of the first graph -> bytes of scratch that its kernel asks for while it runs.

    The file does not tell: each operator is cut out and allocated alone, and what the head has
    beyond its tensors is scratch."""
    graph, scratch = model.graphs[0], {}
    for number, operator in enumerate(graph.operators):
        if operator.name in _WITHOUT_KERNEL:
            continue
        used = {*operator.inputs, *operator.outputs} - {ABSENT}
        planned = [
            graph.tensors[n] for n in used if not graph.tensors[n].constant and not graph.tensors[n].variable
        ]
        own = sum(-(-tensor.bytes // ALIGNMENT) * ALIGNMENT for tensor in planned)
        head = Micro(extract_operator(model, number), own + 2**16).arena().head
        if head > own:
            scratch[number] = head - own
    return scratch


def are_identical(first: Mapping[int, list[Any]], second: Mapping[int, list[Any]]) -> bool:
    """Whether two sets of results, by seed, agree to the last bit."""
    return first.keys() == second.keys() and all(
        len(first[seed]) == len(second[seed])
        and all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes()
            for a, b in zip(first[seed], second[seed], strict=True)
        )
        for seed in first
    )


def _random(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    sizes = tuple(int(size) for size in shape)
    if dtype.kind in "iu":
        about = np.iinfo(dtype)
        # Numbers of 32 bits and more are indices and counts: small ones are safe.
        low, high = (about.min, about.max) if dtype.itemsize <= 2 else (0, 1)
        return rng.integers(low, high, sizes, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.integers(0, 2, sizes).astype(bool)
    return rng.standard_normal(sizes).astype(dtype)


def _one_line(said: list[str], error: Exception) -> str:
    return " ".join(f"{''.join(said)} {error}".split())[-160:]


@contextmanager
def _errors() -> Iterator[list[str]]:
    """What is written to standard error meanwhile, by C++ too; the list has it afterwards."""
    said: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
