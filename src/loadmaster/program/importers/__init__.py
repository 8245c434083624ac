"""Models from elsewhere: which importer reads which file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadmaster.errors import BadProgram
from loadmaster.program.program import Program
from loadmaster.program.storage import load


@dataclass(frozen=True)
class ImportOptions:
    """What a user can say about a model; each importer takes what it understands."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input name -> dimensions, where the file leaves them open."""
    args: Sequence[str] = ()
    """Arguments of a function, as 'f32[8,128]'."""
    weights: Sequence[int] | None = None
    """Positions of arguments that are weights."""
    trips: Mapping[str, int] = field(default_factory=dict)
    """Loop name -> trip count, where the source does not say."""
    inplace: Sequence[str] = ()
    """Kinds of elementwise ops that overwrite their dying input (ONNX)."""
    edge_unit: str | None = None
    """Unit of the times of edges, where the file does not say (dnn-partitioning)."""
    strict: bool = False
    """Refuse ops whose cost would be an estimate."""


def _onnx(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.onnx.importer import import_onnx

    return import_onnx(source, shapes=options.shapes, strict=options.strict, inplace=options.inplace,
                       trips=options.trips)  # fmt: skip


def _hlo(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.hlo.importer import import_hlo

    return import_hlo(
        Path(source), strict=options.strict, trips=options.trips, weights=options.weights or ()
    )


def _jax(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.jax.importer import import_jax_spec

    return import_jax_spec(source, options.args, name=source, weights=options.weights, strict=options.strict,
                           trips=options.trips)  # fmt: skip


def _dnn_partitioning(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.dnn_partitioning import import_dnn_partitioning

    return import_dnn_partitioning(source, edge_unit=options.edge_unit)


def _program(source: str, options: ImportOptions) -> Program:
    return load(source)


FORMATS: dict[str, Callable[[str, ImportOptions], Program]] = {
    "onnx": _onnx,
    "hlo": _hlo,
    "jax": _jax,
    "dnn-partitioning": _dnn_partitioning,
    "program": _program,
}
ENDINGS = {
    ".onnx": "onnx",
    ".hlo": "hlo",
    ".txt": "hlo",
    ".json": "dnn-partitioning",
    ".npz": "program",
}


def import_model(
    source: str, format: str | None = None, options: ImportOptions | None = None
) -> Program:
    """Import a file, or 'module:function' for JAX. The format follows from the ending."""
    found = format or _guess(source)
    if found not in FORMATS:
        raise BadProgram(f"'{source}' has the unknown format '{found}'", object=source,
                         remedy=f"give --format {', '.join(FORMATS)}")  # fmt: skip
    if found != "jax" and not Path(source).is_file():
        raise BadProgram(f"there is no file '{source}'", object=source, remedy="check the path")
    return FORMATS[found](source, options or ImportOptions())


def _guess(source: str) -> str:
    ending = Path(source).suffix.lower()
    if ending in ENDINGS:
        return ENDINGS[ending]
    module, colon, function = source.partition(":")
    if colon and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return "jax"
    raise BadProgram(f"the format of '{source}' can't be told from its name", object=source,
                     remedy=f"give --format {', '.join(FORMATS)}")  # fmt: skip
