"""A Program as a file (compressed npz, no pickle) and as a hash."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadProgram
from loadmaster.files import replacing
from loadmaster.program.labels import Labels
from loadmaster.program.program import Program, Repeats
from loadmaster.program.validate import validate

FORMAT = 1
_MOST_BYTES = 2**32
"""Unpacked; a program of 80,000 ops takes about 2**24."""
_TEXTS = ("name", "order_source")
_NAMES = ("op_name", "tensor_name")
_NOT_CONTENT = {"warnings", "order_source", "op_source", "repeats"}
_DTYPES = {
    "op_flops": np.int64, "op_other_bytes": np.int64, "op_backward": np.bool_, "op_view": np.bool_,
    "op_loop": np.int32, "op_group": np.int32, "op_source": np.int64, "loop_parent": np.int32,
    "loop_trips": np.int64, "tensor_bytes": np.int64, "tensor_kind": np.int8,
    "tensor_shape_start": np.int64, "tensor_shape": np.int64, "tensor_group": np.int32,
    "tensor_fast": np.bool_, "tensor_alias": np.int32, "read_start": np.int64,
    "read_tensor": np.int32, "read_bytes": np.int64, "write_start": np.int64,
    "write_tensor": np.int32, "write_bytes": np.int64, "tie_kind": np.int8,
    "tie_source": np.int32, "tie_target": np.int32, "tie_at": np.int32, "costs": np.int64,
}  # fmt: skip


def content_hash(program: Program, *, names: bool) -> str:
    """SHA-256 over the columns in the order of their declaration."""
    digest = hashlib.sha256(b"loadmaster program 1")
    for column in fields(Program):
        named = column.name in _NAMES or column.name in _TEXTS
        if column.name in _NOT_CONTENT or (named and not names):
            continue
        value = getattr(program, column.name)
        digest.update(column.name.encode())
        for part in _parts(value):
            digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Labels):
        yield json.dumps(value.values).encode()
        yield value.codes.astype("<i4").tobytes()
    elif isinstance(value, np.ndarray):
        yield json.dumps(value.shape).encode()
        yield value.astype(value.dtype.newbyteorder("<")).tobytes()
    else:
        yield json.dumps(value).encode()


def save(program: Program, path: str | Path) -> None:
    """Write to a temporary file beside `path`, then rename: never a half-written program."""
    path = Path(path)
    columns: dict[str, npt.NDArray[Any]] = {}
    header: dict[str, Any] = {"loadmaster_program": FORMAT, "warnings": program.warnings}
    for column in fields(Program):
        value = getattr(program, column.name)
        if column.name in _TEXTS:
            header[column.name] = value
        elif column.name in _NAMES:
            columns[column.name] = _text(value)
        elif isinstance(value, Labels):
            columns[column.name] = value.codes
            columns[f"{column.name}.values"] = _text(value.values)
        elif isinstance(value, np.ndarray):
            columns[column.name] = value
    if program.repeats is not None:
        header["repeats"] = program.repeats._asdict()
    columns["header"] = _text([json.dumps(header)])
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def load(path: str | Path) -> Program:
    """Read what `save` wrote and check it like any other program."""
    path = Path(path)
    try:
        columns = _read_columns(path)
        header = json.loads(_texts(columns["header"])[0])
        if header["loadmaster_program"] != FORMAT:
            raise ValueError(
                f"format {header['loadmaster_program']}, and this version reads {FORMAT}"
            )
        program = _from_columns(columns, header)
    except FileNotFoundError:
        raise BadProgram(
            f"there is no file '{path}'", object=str(path), remedy="check the path"
        ) from None
    except (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, zlib.error,
            zipfile.BadZipFile, NotImplementedError, MemoryError) as error:  # fmt: skip
        reason = str(error) or type(error).__name__
        raise BadProgram(f"'{path}' is not a program file: {reason}", object=str(path),
                         remedy="save it again with 'loadmaster import'") from None  # fmt: skip
    return validate(program)


def _read_columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > _MOST_BYTES:
                raise ValueError(f"it unpacks to {unpacked} bytes, above the limit {_MOST_BYTES}")
        file.seek(0)
        with np.load(file, allow_pickle=False) as columns:
            return {name: columns[name] for name in columns.files}


def _from_columns(columns: dict[str, npt.NDArray[Any]], header: dict[str, Any]) -> Program:
    values: dict[str, Any] = {}
    for column in fields(Program):
        name = column.name
        if name in _TEXTS:
            values[name] = str(header[name])
        elif name == "warnings":
            values[name] = tuple(str(text) for text in header["warnings"])
        elif name == "repeats":
            about = header.get(name)
            values[name] = (
                None
                if about is None
                else Repeats(str(about["base"]), tuple(map(int, about["ops"])))
            )
        elif name in _NAMES:
            values[name] = tuple(_texts(columns[name]))
        elif f"{name}.values" in columns:
            codes = _exact(columns, name, np.int32)
            values[name] = Labels(tuple(_texts(columns[f"{name}.values"])), codes)
        elif name == "costs":
            values[name] = _exact(columns, name, np.int64) if name in columns else None
        else:
            values[name] = _exact(columns, name, _DTYPES[name])
    return Program(**values)


def _exact(
    columns: dict[str, npt.NDArray[Any]], name: str, dtype: type[np.generic]
) -> npt.NDArray[Any]:
    column = columns[name]
    if column.dtype != dtype:
        raise ValueError(f"column '{name}' holds {column.dtype}, not {np.dtype(dtype)}")
    if column.ndim != (2 if name in ("op_flops", "costs") else 1):
        raise ValueError(f"column '{name}' has {column.ndim} dimensions")
    return np.ascontiguousarray(column)


def _text(texts: tuple[str, ...] | list[str]) -> npt.NDArray[np.uint8]:
    # Texts as one JSON list: any character survives, and nothing needs pickle.
    return np.frombuffer(json.dumps(list(texts)).encode(), dtype=np.uint8)


def _texts(column: npt.NDArray[Any]) -> list[str]:
    texts = json.loads(column.tobytes())
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a column of texts is damaged")
    return texts
