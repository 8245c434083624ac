"""An ONNX file without the numbers of its large weights: they are most of it, and sizes alone are needed.

The file is read field by field (protobuf: a tag, then a number, eight or four bytes, or a length and so many bytes).
Of the initializers of its graph that are large, the fields with numbers are left out, and the lengths around them
written anew; all else is passed on as it is. What makes no sense is passed on too: protobuf says what is wrong with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

LARGE = 2**16
"""Bytes of an initializer from which on its numbers are left out; above what constants are folded of."""
_GRAPH, _INITIALIZER = 7, 5
"""Fields of ModelProto and of GraphProto."""
_NUMBERS = frozenset({4, 5, 6, 7, 9, 10, 11})
"""Fields of TensorProto: float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST = 10
"""Bytes of a varint."""


class _Odd(Exception):
    """Not what protobuf writes."""


class _Field:
    """One field: its number, where its tag begins, where its content is."""

    __slots__ = ("begin", "content", "end", "number", "wire")

    def __init__(self, number: int, wire: int, begin: int, content: int, end: int) -> None:
        self.number, self.wire, self.begin, self.content, self.end = number, wire, begin, content, end


def read_slim(file: BinaryIO) -> bytes:
    """The bytes of an ONNX model without the numbers of large initializers."""
    size = os.fstat(file.fileno()).st_size
    parts: list[bytes] = []
    try:
        for field in _fields(file, 0, size):
            if field.number == _GRAPH and field.wire == _BYTES:
                parts += _with_length(_GRAPH, _slim_graph(file, field))
            else:
                parts.append(_read(file, field.begin, field.end))
    except _Odd:
        file.seek(0)
        return file.read()
    return b"".join(parts)


def _slim_graph(file: BinaryIO, graph: _Field) -> list[bytes]:
    parts: list[bytes] = []
    kept = graph.content  # what follows is not copied yet
    for field in _fields(file, graph.content, graph.end):
        large = field.end - field.content >= LARGE
        if field.number != _INITIALIZER or field.wire != _BYTES or not large:
            continue
        parts.append(_read(file, kept, field.begin))
        inner = [
            _read(file, part.begin, part.end)
            for part in _fields(file, field.content, field.end)
            if part.number not in _NUMBERS
        ]
        parts += _with_length(_INITIALIZER, inner)
        kept = field.end
    parts.append(_read(file, kept, graph.end))
    return parts


def _fields(file: BinaryIO, begin: int, end: int) -> Iterator[_Field]:
    """The fields of a message that lies there."""
    while begin < end:
        tag, content = _varint(file, begin, end)
        number, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            length, content = _varint(file, content, end)
            after = content + length
        elif wire == _VARINT:
            after = _varint(file, content, end)[1]
        elif wire in (_EIGHT, _FOUR):
            after = content + (8 if wire == _EIGHT else 4)
        else:
            raise _Odd
        if number == 0 or after > end:
            raise _Odd
        yield _Field(number, wire, begin, content, after)
        begin = after


def _varint(file: BinaryIO, at: int, end: int) -> tuple[int, int]:
    """The number that lies there, and where it ends."""
    file.seek(at)
    value = 0
    for place, byte in enumerate(file.read(min(_LONGEST, end - at))):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _Odd


def _read(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin)


def _with_length(number: int, parts: list[bytes]) -> list[bytes]:
    return [_encode(number << 3 | _BYTES), _encode(sum(map(len, parts))), *parts]


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
