"""TFLite files as Programs.

The order of the operators in the file is the order in which an interpreter runs them, and it runs
all of them: results that nobody reads still take memory, and arithmetic on shapes still takes time.
Only weights that are stored smaller than they are used (float16, sparse) are made once, before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadmaster.errors import BadProgram
from loadmaster.program.build import Builder
from loadmaster.program.importers.tflite.flatbuffer import Broken
from loadmaster.program.importers.tflite.read import read_bytes, read_tflite
from loadmaster.program.importers.tflite.walk import Walk
from loadmaster.program.program import Program

Place = tuple[int, int]
"""A graph of the file and a tensor in it."""


@dataclass(frozen=True)
class Imported:
    """A program, and which of the file's tensors and operators it came from."""

    program: Program
    tensors: dict[int, int]
    """Tensor of the file's first graph -> tensor of the program."""
    scratch: dict[int, int]
    """Operator of the first graph -> the tensor that stands for its scratch memory."""


def import_tflite(
    source: str | Path | bytes,
    *,
    name: str | None = None,
    strict: bool = False,
    trips: Mapping[str, int] | None = None,
) -> Program:
    """Read a model: a path, or the bytes of a file. `trips` gives the lengths of loops by op name;
    `strict` refuses ops that would get an estimate."""
    return import_with_places(source, name=name, strict=strict, trips=trips).program


def import_with_places(
    source: str | Path | bytes,
    *,
    name: str | None = None,
    strict: bool = False,
    trips: Mapping[str, int] | None = None,
    scratch: Mapping[int, int] | None = None,
) -> Imported:
    """The same, with where things came from. `scratch`: bytes that an operator's kernel needs while it
    runs, by operator; they become tensors that live for that op alone."""
    data = source if isinstance(source, bytes) else read_bytes(source)
    stem = name or ("model" if isinstance(source, bytes) else Path(source).stem)
    model = read_tflite(data, stem if isinstance(source, bytes) else str(source))
    walk = Walk(model, Builder(stem, order_source="schedule"), trips or {}, scratch or {})
    try:
        walk.program()
    except Broken as error:
        raise BadProgram(
            f"'{stem}' has a damaged operator: {error}", object=stem, remedy="export or copy it again"
        ) from None
    walk.builder.warnings += walk.notes.texts(strict)
    return Imported(walk.builder.build(), walk.tensors, walk.scratch_of)
