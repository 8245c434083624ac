"""npz: programs, policies, a solver's checkpoints and the messages between a run and its workers.

An npz is a zip of .npy files. It is changed by columns (values, types, lengths), by headers, by the zip's own
records, and by bytes."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from generate import random_program
from generate_game import random_game_program
from loadmaster.learn.policies import read_policy, save_policy
from loadmaster.program import load, save
from loadmaster.runs.workers.server import pack, unpack

from . import mutate
from .use import small_program, use_program

Columns = dict[str, Any]
_DTYPES = ("<i8", "<i4", "<i1", "<u8", "<f8", "<f4", "|b1", "<U4", "|S4", "<M8[s]", "<c16", ">i8", "<f2")


@cache
def programs(place: Path) -> list[bytes]:
    """Small programs with everything in them: loops, ties, groups, views, cost tables."""
    rng = np.random.default_rng(7)
    found = [small_program(), *(random_program(rng, 8, 2 if i % 3 == 0 else None) for i in range(9))]
    found += [random_game_program(rng, (4, 8)) for _ in range(4)]
    data = []
    for program in found:
        save(program, place / "seed.npz")
        data.append((place / "seed.npz").read_bytes())
    return data


def program_file(data: bytes, place: Path) -> None:
    """Read a program, and use it."""
    path = place / "program.npz"
    path.write_bytes(data)
    use_program(load(path), place)


@cache
def policies(place: Path) -> list[bytes]:
    rng = np.random.default_rng(0)
    arrays = {"body.weight": rng.random((3, 2), np.float32), "body.bias": np.zeros(3, np.float32)}
    save_policy(place / "seed.npz", arrays, {"model": "m", "machine": "k", "schema": 1, "seed": 0})
    return [(place / "seed.npz").read_bytes()]


def policy_file(data: bytes, place: Path) -> None:
    """Read a policy, and what an agent does with it first: look at every array."""
    path = place / "policy.npz"
    path.write_bytes(data)
    arrays, about = read_policy(path, "go")
    json.dumps(about)
    for name, array in arrays.items():
        str(name)
        if array.dtype.kind == "f":
            np.isfinite(array).all()


@cache
def messages(place: Path) -> list[bytes]:
    arrays = {"decisions": np.zeros((2, 3), np.int8), "value": np.arange(2)}
    return [pack({"do": "score", "first": 0}, arrays), pack({"error": "it failed"}, {})]


def message(data: bytes, place: Path) -> None:
    """Read a message."""
    about, arrays = unpack(data)
    json.dumps(about)
    for array in arrays.values():
        array.tobytes()


def changed(rng: Random, data: bytes) -> bytes:
    """One npz made into another."""
    kind = rng.random()
    if kind < 0.06:
        return mutate.octets(rng, data)
    try:
        entries = _entries(data)
    except (ValueError, OSError, KeyError, RuntimeError, zipfile.BadZipFile):
        return mutate.octets(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(list(entries))
        if kind < 0.75:
            entries[name] = _changed_column(rng, entries[name], entries)
        elif kind < 0.88:
            entries[name] = _changed_header(rng, entries[name])
        else:
            _change_entries(rng, entries, name)
    written = _archive(entries, compressed=rng.random() < 0.5)
    return _changed_records(rng, written) if rng.random() < 0.1 else written


def _entries(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(entries: Mapping[str, bytes], compressed: bool) -> bytes:
    file = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name or "x"), content, how, 1)
    return file.getvalue()


def npy(array: Any) -> bytes:
    """An array as the content of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def _changed_column(rng: Random, content: bytes, others: Mapping[str, bytes]) -> bytes:
    try:
        array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except ValueError:
        return mutate.octets(rng, content)
    if array.dtype == np.uint8 and array.ndim == 1:  # texts are JSON in a column of bytes
        return npy(np.frombuffer(_changed_text(rng, array.tobytes()), np.uint8))
    array = np.atleast_1d(array)
    kind = rng.randrange(9)
    if kind <= 3 and array.size and array.dtype.kind in "iub":
        array = array.copy()
        flat = array.reshape(-1)
        for _ in range(rng.choice((1, 1, 2, 4))):
            flat[rng.randrange(flat.size)] = _fitting(rng, array.dtype)
    elif kind == 4 and array.size > 1 and array.dtype.kind in "iub":  # starts that wrap round
        array = array.copy()
        flat = array.reshape(-1)
        low, high = (
            (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max) if array.dtype.kind in "iu" else (0, 1)
        )
        at = rng.randrange(flat.size - 1)
        flat[at], flat[at + 1] = high - rng.randrange(2), low + rng.choice((0, 1, 3, 4))
    elif kind == 5:
        array = rng.choice((array[:-1], array[1:], array[:0], np.concatenate([array, array]), array[::-1]))
    elif kind == 6:
        array = rng.choice(
            (array.reshape(-1), array.reshape(1, *array.shape), array.reshape(*array.shape, 1))
        )
        if rng.random() < 0.3 and array.size:
            array = array.reshape(-1)[0]
    elif kind == 7:
        array = _recast(rng, array)
    else:
        size = rng.choice((1, 3, 100, 20_000))
        dtype = array.dtype if array.dtype.kind in "iub" else np.dtype(np.int64)
        array = np.full(size, _fitting(rng, dtype), dtype=dtype)
        if rng.random() < 0.3:  # a chain: each entry names the one before
            array = np.arange(-1, size - 1).astype(dtype)
    return npy(array)


def _fitting(rng: Random, dtype: np.dtype[Any]) -> int:
    if dtype.kind == "b":
        return rng.randrange(2)
    limits = np.iinfo(dtype)
    return max(int(limits.min), min(int(limits.max), mutate.whole(rng)))


def _recast(rng: Random, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(rng.choice(_DTYPES))
    if dtype.kind in "US":
        return np.full(array.shape, "x", dtype=dtype)
    if array.dtype.kind not in "iubf":
        return np.zeros(array.shape, dtype=dtype)
    with np.errstate(all="ignore"):
        return array.astype(np.int64 if array.dtype.kind == "b" else array.dtype).astype(dtype)


def _changed_text(rng: Random, content: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return mutate.octets(rng, content)
    if kind < 0.14:
        return b"[" * rng.choice((500, 5000, 100_000))
    try:
        value = json.loads(content)
        inner = json.loads(value[0]) if isinstance(value, list) and len(value) == 1 else None
    except (ValueError, RecursionError, TypeError):
        inner = None
        with_text = content.decode("utf-8", "replace")
        return mutate.lines(rng, with_text).encode("utf-8", "surrogatepass")
    if isinstance(inner, dict):  # a header inside a list of texts
        return json.dumps([json.dumps(mutate.tree(rng, inner))]).encode()
    return json.dumps(mutate.tree(rng, value)).encode()


def _changed_header(rng: Random, content: bytes) -> bytes:
    """The text at the beginning of a .npy file: type, order and shape."""
    if len(content) < 12:
        return mutate.octets(rng, content)
    size = struct.unpack_from("<H", content, 8)[0]
    header, rest = content[10 : 10 + size].decode("latin-1"), content[10 + size :]
    kind = rng.randrange(8)
    if kind == 0:
        header = header.replace("(", f"({mutate.whole(rng, beyond=True)}, ", 1)
    elif kind == 1:
        header = mutate.lines(rng, header, tokens=("descr", "True", "'|O'", "()", "None"))
    elif kind == 2:
        shown = rng.choice(
            ("'|O'", f"'{rng.choice(_DTYPES)}'", "[('a', '<i8')]", "'<V8'", "'" + "x" * 9 + "'")
        )
        header = header.replace("'descr': '", f"'descr': {shown}, 'x': '", 1)
    elif kind == 3:
        header = header.replace("False", rng.choice(("True", "None", "1")), 1)
    elif kind == 4:
        header = header.replace("(", "(" * rng.choice((2, 100, 3000)), 1)
    elif kind == 5:
        shape = ", ".join(["1"] * rng.choice((2, 33, 65)))
        header = "{'descr': '<i8', 'fortran_order': False, 'shape': (" + shape + ",), }"
    elif kind == 6:
        rest = rest[: len(rest) // 2]
    else:
        return content[:6] + bytes([rng.choice((0, 1, 2, 3, 9)), rng.randrange(3)]) + content[8:]
    data = header.encode("latin-1", "replace") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", min(len(data), 65535)) + data[:65535] + rest


def _change_entries(rng: Random, entries: dict[str, bytes], name: str) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        del entries[name]
        entries.setdefault("left.npy", npy([1]))
    elif kind == 1:
        entries[mutate.text(rng, name).encode("utf-8", "replace").decode() or "x"] = entries[name]
    elif kind == 2:
        entries[name] = rng.choice(list(entries.values()))
    elif kind == 3:
        entries[name] = rng.choice((b"", b"no array", b"\x80\x04K\x01.", b"PK\x03\x04"))
    elif kind == 4:
        zeros = np.zeros(rng.choice((10**5, 10**6)), dtype=np.int64)
        entries[name] = npy(zeros)
    else:
        entries[name.removesuffix(".npy")] = entries.pop(name)


def _changed_records(rng: Random, data: bytes) -> bytes:
    """The zip's own records: sizes, methods, flags, offsets, checksums."""
    found = bytearray(data)
    marks = [match.start() for match in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06)", data)]
    if not marks:
        return mutate.octets(rng, data)
    at = rng.choice(marks) + rng.choice((4, 6, 8, 10, 14, 16, 18, 20, 22, 24, 26, 28, 42))
    value = rng.choice((0, 1, 9, 12, 14, 99, 0xFFFF, 0x800, 2**31, 2**32 - 1))
    code = rng.choice(("<H", "<I"))
    size = struct.calcsize(code)
    found[at : at + size] = struct.pack(code, value % 256**size)
    return bytes(found[: len(data)])
