"""A Program as a file (compressed npz, no pickle) and as a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Array, Refuse, json_entry, read_npz
from loadmaster.errors import BadProgram
from loadmaster.files import replacing
from loadmaster.json_text import read_json
from loadmaster.program.build import clean_name
from loadmaster.program.program import Labels, Program, Repeats
from loadmaster.program.validate import validate

FORMAT = 1
_TEXTS = ("name", "order_source")
_NAMES = ("op_name", "tensor_name")
_NOT_CONTENT = {"warnings", "order_source", "op_source", "repeats"}
_DTYPES = {
    "op_flops": np.int64,
    "op_other_bytes": np.int64,
    "op_backward": np.bool_,
    "op_view": np.bool_,
    "op_loop": np.int32,
    "op_group": np.int32,
    "op_source": np.int64,
    "loop_parent": np.int32,
    "loop_trips": np.int64,
    "tensor_bytes": np.int64,
    "tensor_kind": np.int8,
    "tensor_shape_start": np.int64,
    "tensor_shape": np.int64,
    "tensor_group": np.int32,
    "tensor_fast": np.bool_,
    "tensor_alias": np.int32,
    "read_start": np.int64,
    "read_tensor": np.int32,
    "read_bytes": np.int64,
    "write_start": np.int64,
    "write_tensor": np.int32,
    "write_bytes": np.int64,
    "tie_kind": np.int8,
    "tie_source": np.int32,
    "tie_target": np.int32,
    "tie_at": np.int32,
    "costs": np.int64,
}


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


_STRUCTURE = (
    "op_kind",
    "op_backward",
    "op_view",
    "op_loop",
    "op_group",
    "loop_parent",
    "tensor_kind",
    "tensor_group",
    "tensor_fast",
    "tensor_alias",
    "read_start",
    "read_tensor",
    "write_start",
    "write_tensor",
    "tie_kind",
    "tie_source",
    "tie_target",
    "tie_at",
)


def structure_hash(program: Program) -> str:
    """SHA-256 of the graph without sizes, shapes, types, costs and names: of a model with another batch, the same."""
    digest = hashlib.sha256(b"loadmaster structure 1")
    for name in _STRUCTURE:
        digest.update(name.encode())
        for part in _parts(getattr(program, name)):
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

    def refuse(reason: str) -> BadProgram:
        return BadProgram(
            f"'{path}' is not a program file: {reason}",
            object=str(path),
            remedy="save it again with 'loadmaster import'",
        )

    try:
        path.stat()
    except FileNotFoundError:
        raise BadProgram(f"there is no file '{path}'", object=str(path), remedy="check the path") from None
    except (OSError, ValueError):  # read_npz says what is wrong with it
        pass
    columns = read_npz(path, refuse)
    return validate(Program(**_columns_of_file(columns, _header(columns, refuse), refuse)))


def _header(columns: dict[str, Array], refuse: Refuse) -> dict[str, Any]:
    """What is no column: name, warnings, what runs again."""
    try:
        header = read_json("".join(_texts(columns, "header", refuse)))
    except ValueError as error:
        raise refuse(f"its header can't be read: {error}") from None
    known = header.get("loadmaster_program") if isinstance(header, dict) else None
    if known != FORMAT:
        raise refuse(f"format {str(known)[:20]}, and this version reads {FORMAT}")
    warnings, repeats = header.get("warnings"), header.get("repeats")
    if not all(isinstance(header.get(name), str) for name in _TEXTS) or not _are(str, warnings):
        raise refuse("its header has no name, or no list of warnings")
    if repeats is not None:
        if not isinstance(repeats, dict) or not _are(int, repeats.get("ops")):
            raise refuse("its header does not say which ops run again")
        repeats = Repeats(str(repeats.get("base")), tuple(repeats["ops"]))
    return {
        **{name: clean_name(header[name]) for name in _TEXTS},
        "warnings": tuple(warnings),
        "repeats": repeats,
    }


def _are(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _columns_of_file(columns: dict[str, Array], header: dict[str, Any], refuse: Refuse) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for column in fields(Program):
        name = column.name
        if name in header:
            values[name] = header[name]
        elif name == "costs" and name not in columns:
            values[name] = None
        elif name in _NAMES:
            values[name] = tuple(map(clean_name, _texts(columns, name, refuse)))
        elif name in _DTYPES:
            values[name] = _exact(columns, name, _DTYPES[name], refuse)
        else:
            codes = _exact(columns, name, np.int32, refuse)
            texts = map(clean_name, _texts(columns, f"{name}.values", refuse))
            values[name] = Labels(tuple(texts), codes)
    return values


def _exact(columns: dict[str, Array], name: str, dtype: type[np.generic], refuse: Refuse) -> Array:
    if name not in columns:
        raise refuse(f"it has no column '{name}'")
    column = columns[name]
    if column.dtype != dtype:
        raise refuse(f"column '{name}' holds {column.dtype}, not {np.dtype(dtype)}")
    if column.ndim != (2 if name in ("op_flops", "costs") else 1):
        raise refuse(f"column '{name}' has {column.ndim} dimensions")
    return np.ascontiguousarray(column)


def _text(texts: tuple[str, ...] | list[str]) -> npt.NDArray[np.uint8]:
    # Texts as one JSON list: any character survives, and nothing needs pickle.
    return np.frombuffer(json.dumps(list(texts)).encode(), dtype=np.uint8)


def _texts(columns: dict[str, Array], name: str, refuse: Refuse) -> list[str]:
    texts = json_entry(columns, name, refuse)
    if not _are(str, texts):
        raise refuse(f"'{name}' is no list of texts")
    return list(texts)
