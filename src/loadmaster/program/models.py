"""A model from whatever a user types: a workload's name, a file, or 'module:function'."""

from __future__ import annotations

from pathlib import Path

from loadmaster.program.importers import ENDINGS, ImportOptions, import_model
from loadmaster.program.program import Program
from loadmaster.program.zoo import MODELS, load_workload


def load_model(source: str, format: str | None = None, options: ImportOptions | None = None) -> Program:
    """The Program of a model: a workload's name, a file (its ending tells the format), or
    'module:function'. Raises `BadProgram` with the nearest name if there is none."""
    known = source.partition(":")[0] in MODELS
    is_file = Path(source).suffix.lower() in ENDINGS or Path(source).is_file()
    if format is None and not is_file and (known or ":" not in source):
        return load_workload(source)
    return import_model(source, format, options)
