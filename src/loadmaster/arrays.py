"""The one reader of npz files: programs, policies, checkpoints, inputs, messages between processes.

Such a file comes from anywhere. `np.load` and `zipfile` believe what is written in it: sizes, shapes,
counts. Here every number is checked against the bytes that are there before anything is made of it:

- a plain zip of at most 16,384 stored or deflated entries, nothing encrypted, no name twice;
- unpacked at most 16 MiB, or 32 times the file where that is more: a small file never becomes a
  large one, and what `np.savez` stores as it is may be of any size;
- every entry a `.npy` of numbers (bool, integers, floats), as NumPy writes it on this computer.

All else is refused in one line by the caller's own error.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.files import read_regular
from loadmaster.json_text import read_json

Array = npt.NDArray[Any]
Bool = npt.NDArray[np.bool_]
Int8 = npt.NDArray[np.int8]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Refuse = Callable[[str], LoadmasterError]
"""Makes the caller's error of a reason: it adds what was read, and the remedy."""


Integer = TypeVar("Integer", bound=np.integer[Any])


def distinct(values: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """Every value once, ascending, by sorting: `np.unique` hashes, and takes a hundred times as long for millions."""
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


class Message(NamedTuple):
    """Arrays by name and what is to be known of them as JSON: what goes between processes as one npz, which
    runs no code when it is read."""

    about: dict[str, Any]
    arrays: dict[str, Array]


MOST_FILE = 2**29
MOST_BYTES, MOST_GROWTH = 2**24, 32
"""Unpacked, or times the file: programs take 11 to 13 times theirs where they are large."""
MOST_ENTRIES = 2**14
MOST_TEXT = 2**26
"""Bytes of one text (JSON) in an entry."""
_MOST_NAME, _MOST_HEADER, _MOST_DIMENSIONS = 1024, 4096, 32
_CHUNK = 2**16

_END = struct.Struct("<4sHHHHLLH")
_END64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR64 = struct.Struct("<4sLQL")
"""Only its length is used: what it locates lies right before it."""
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_FLAGS = 0x080E
"""What may be set: how hard it was deflated, sizes repeated behind the data, names in UTF-8."""
_LARGE32 = 2**32 - 1
"""In place of a number that needs 64 bits, and stands elsewhere."""

_HEADER = re.compile(
    rb"\{'descr': '([^'\\]{1,32})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,19}(?:, ?|(?=\))))*)\), ?\} *\n?"
)
_TYPES = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32]
_TYPES += [np.uint64, np.float16, np.float32, np.float64]
_DTYPES = {np.dtype(of).str: np.dtype(of) for of in _TYPES}


def read_npz(
    source: str | Path | bytes, refuse: Refuse, *, most_file: int = MOST_FILE, most_bytes: int = MOST_BYTES
) -> dict[str, Array]:
    """The arrays of a file, or of its bytes, by name; each is the reader's own and may be changed.

    Args:
      source: a file, or the bytes of one.
      refuse: makes the error that is raised, whatever is wrong with the file.
      most_file: a file above it is not opened.
      most_bytes: what a small file may unpack to; a large one 32 times itself.
    """
    try:
        data = source if isinstance(source, bytes) else read_regular(source, most_file)
        return dict(_arrays(memoryview(data), most_bytes))
    except _Bad as bad:
        raise refuse(str(bad)) from None
    except OSError as error:
        raise refuse(f"it can't be read: {error.strerror or error}") from None
    except MemoryError:
        raise refuse("it does not fit into this computer's memory") from None


def json_entry(arrays: Mapping[str, Array], name: str, refuse: Refuse) -> Any:
    """The JSON text that an entry holds as bytes."""
    if name not in arrays:
        raise refuse(f"it has no entry '{name}'")
    if arrays[name].dtype != np.uint8 or arrays[name].ndim != 1:
        raise refuse(f"entry '{name}' holds no text")
    try:
        return read_json(arrays[name].tobytes(), most_bytes=MOST_TEXT)
    except ValueError as error:
        raise refuse(f"entry '{name}': {error}") from None


class _Bad(Exception):
    """The reason, for `refuse`."""


class _Entry(NamedTuple):
    name: str
    method: int
    crc: int
    packed: int
    size: int
    at: int
    """Where its own header begins."""


def _arrays(data: memoryview, most_bytes: int) -> Iterator[tuple[str, Array]]:
    entries = _directory(data)
    most = max(most_bytes, MOST_GROWTH * len(data))
    unpacked = sum(entry.size for entry in entries)
    if unpacked > most:
        raise _Bad(f"it unpacks to {unpacked:,} bytes, above the limit {most:,}")
    for entry in entries:
        yield entry.name, _array(entry, _unpacked(entry, _packed(data, entry)))


def _directory(data: memoryview) -> list[_Entry]:
    """The list at the end of the file."""
    end = len(data) - _END.size
    if end < 0 or bytes(data[:2]) != b"PK":
        raise _Bad("it is no npz file")
    signature, *disks, count, length, at, comment = _END.unpack_from(data, end)
    if signature != b"PK\5\6" or comment:
        raise _Bad("it is cut off, or no npz file")
    if bytes(data[max(end - _LOCATOR64.size, 0) :][:4]) == b"PK\6\7":
        end, disks, count, length, at = _large_directory(data, end)
    if disks != [0, 0, count]:
        raise _Bad("it is one part of several")
    if count > MOST_ENTRIES:
        raise _Bad(f"it has {count:,} entries, above the limit {MOST_ENTRIES:,}")
    if at + length != end:
        raise _Bad("its list of entries is damaged")
    entries: list[_Entry] = []
    for _ in range(count):
        entry, at = _entry(data, at, end)
        entries.append(entry)
    if at != end:
        raise _Bad("its list of entries is damaged")
    for name, times in Counter(entry.name for entry in entries).most_common(1):
        if times > 1:
            raise _Bad(f"it has {times} entries '{name}'")
    return entries


def _large_directory(data: memoryview, end: int) -> tuple[int, list[int], int, int, int]:
    """The same in files above 2 GiB, where the end of the list has 64 bits for each number."""
    at = end - _LOCATOR64.size - _END64.size
    if at < 0 or bytes(data[at : at + 4]) != b"PK\6\6":
        raise _Bad("its list of entries is damaged")
    _, _, _, _, *disks, count, length, first = _END64.unpack_from(data, at)
    return at, disks, count, length, first


def _entry(data: memoryview, at: int, end: int) -> tuple[_Entry, int]:
    """One entry of the list, and where the next begins."""
    if at + _ENTRY.size > end:
        raise _Bad("its list of entries is damaged")
    (
        signature,
        _,
        _,
        flags,
        method,
        _,
        _,
        crc,
        packed,
        size,
        name_length,
        extra_length,
        comment_length,
        _,
        _,
        _,
        where,
    ) = _ENTRY.unpack_from(data, at)
    start = at + _ENTRY.size
    after = start + name_length + extra_length + comment_length
    if signature != b"PK\1\2" or after > end or not 0 < name_length <= _MOST_NAME:
        raise _Bad("its list of entries is damaged")
    name = _plain_name(bytes(data[start : start + name_length]))
    if flags & ~_FLAGS:
        raise _Bad(f"entry '{name}' is encrypted, or packed in a way that NumPy does not use")
    if method not in (_STORED, _DEFLATED):
        raise _Bad(f"entry '{name}' is packed by method {method}, not stored or deflated")
    if _LARGE32 in (packed, size, where):
        extra = bytes(data[start + name_length : start + name_length + extra_length])
        size, packed, where = _large_sizes(extra, size, packed, where)
    # Nothing deflates better than 1,032 to 1: a claim above that is a lie before it is tried.
    if size > (packed if method == _STORED else 1032 * packed) or packed > len(data):
        raise _Bad(f"entry '{name}' claims {size:,} bytes and has {packed:,} packed")
    return _Entry(name, method, crc, packed, size, where), after


def _large_sizes(extra: bytes, *numbers: int) -> list[int]:
    """Those that are elsewhere, in this order, from the extra field 1."""
    if len(extra) < 4 or extra[:2] != b"\1\0":
        raise _Bad("its list of entries is damaged")
    length = int.from_bytes(extra[2:4], "little")
    wide = list(struct.unpack_from(f"<{min(length, len(extra) - 4) // 8}Q", extra, 4))
    missing = numbers.count(_LARGE32)
    if len(wide) < missing:
        raise _Bad("its list of entries is damaged")
    return [wide.pop(0) if number == _LARGE32 else number for number in numbers]


def _plain_name(raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _Bad("an entry's name is not UTF-8") from None
    if not name.isprintable() or "\\" in name or ".." in name.split("/") or name[0] == "/":
        raise _Bad(f"{name!a} is no name for an entry")
    if not name.endswith(".npy") or name == ".npy":
        raise _Bad(f"entry '{name}' is no .npy array")
    return name.removesuffix(".npy")


def _packed(data: memoryview, entry: _Entry) -> memoryview:
    """The bytes of an entry, behind a header of its own that must agree with the list."""
    start = entry.at + _LOCAL.size
    if start > len(data):
        raise _Bad(f"entry '{entry.name}' lies outside the file")
    signature, _, flags, method, *_, name_length, extra_length = _LOCAL.unpack_from(data, entry.at)
    name = bytes(data[start : start + name_length])
    start += name_length + extra_length
    if start + entry.packed > len(data):
        raise _Bad(f"entry '{entry.name}' lies outside the file")
    same = method == entry.method and name == f"{entry.name}.npy".encode()
    if signature != b"PK\3\4" or flags & ~_FLAGS or not same:
        raise _Bad(f"entry '{entry.name}' is listed differently from what it says itself")
    return data[start : start + entry.packed]


def _unpacked(entry: _Entry, packed: memoryview) -> bytearray:
    """The bytes of the array's file: as many as the list says, or an error."""
    content = bytearray()
    if entry.method == _STORED:
        content += packed
    else:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for first in range(0, len(packed), _CHUNK):
                content += inflate.decompress(packed[first : first + _CHUNK], entry.size - len(content) + 1)
                if inflate.unconsumed_tail or inflate.eof:
                    break
        except zlib.error as error:
            raise _Bad(f"entry '{entry.name}' is damaged: {error}") from None
    if len(content) != entry.size or zlib.crc32(content) != entry.crc:
        raise _Bad(f"entry '{entry.name}' is damaged: its size or CRC is wrong")
    return content


def _array(entry: _Entry, content: bytearray) -> Array:
    """A `.npy` file: magic, version, length of the header, header, numbers."""
    name = entry.name
    version, wide = bytes(content[6:8]), content[6:7] != b"\1"
    start = 12 if wide else 10
    length = int.from_bytes(content[8:start], "little")
    if content[:6] != b"\x93NUMPY" or version not in (b"\1\0", b"\2\0", b"\3\0"):
        raise _Bad(f"entry '{name}' is no .npy array")
    if length > min(_MOST_HEADER, len(content) - start):
        raise _Bad(f"entry '{name}' has a header of {length:,} bytes")
    header = _HEADER.fullmatch(bytes(content[start : start + length]))
    if header is None:
        raise _Bad(f"entry '{name}' has a header that NumPy does not write")
    text = header[1].decode("latin-1")
    if text not in _DTYPES:
        raise _Bad(f"entry '{name}' holds {text!a}, and only numbers are read")
    dtype = _DTYPES[text]
    shape = tuple(int(size) for size in header[3].split(b",") if size.strip())
    numbers = len(content) - start - length
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * dtype.itemsize != numbers:
        raise _Bad(f"entry '{name}' has {numbers:,} bytes, and not those of its shape {shape}")
    if not numbers and math.prod(max(size, 1) for size in shape) > MOST_BYTES:
        raise _Bad(f"entry '{name}' is empty, and has the shape {shape}")
    flat: Array = np.frombuffer(content, dtype, offset=start + length) if numbers else np.empty(0, dtype)
    if not flat.flags.aligned:  # compiled code reads it, too
        flat = flat.copy()
    if dtype == np.bool_ and (flat.view(np.uint8) > 1).any():
        raise _Bad(f"entry '{name}' has truth values other than 0 and 1")
    if header[2] == b"True":
        return flat.reshape(shape[::-1]).transpose()
    return flat.reshape(shape)
