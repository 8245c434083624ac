"""A model from whatever a user types: a workload's name, a file, or 'module:function'."""

from __future__ import annotations

from pathlib import Path

from loadmaster.program.importers import ENDINGS, ImportOptions, as_module, import_model, refuse_special
from loadmaster.program.program import Program
from loadmaster.program.zoo import MODELS, load_workload


def is_workload(source: str) -> bool:
    """Whether a name is a workload's. 'bert:build' is the user's own function where there is a file bert.py."""
    stem, colon, rest = source.partition(":")
    own = bool(colon) and rest.isidentifier() and Path(f"{stem}.py").is_file()
    return stem in MODELS and not own


def load_model(source: str, format: str | None = None, options: ImportOptions | None = None) -> Program:
    """Load a model as a Program. Raises `BadProgram` with the nearest name if there is none.

    Args:
      source: a workload's name ('resnet50', 'bert:layers=2'), a file, or 'module:function' of JAX or PyTorch
        ('file.py:function' too).
      format: None: as the file's ending tells.
      options: of the importers, what the command line's --shape, --arg and --trip say:
        `ImportOptions(shapes={"data": (1, 3, 224, 224)}, trips={"loop": 16})`.

    Returns:
      ops in a valid order, tensors, and who reads and writes what.
    """
    source = as_module(source)
    known = is_workload(source)
    is_file = Path(source).suffix.lower() in ENDINGS or Path(source).is_file()
    if format is None and not is_file and (known or ":" not in source):
        if not known:
            refuse_special(source)
        return load_workload(source)
    return import_model(source, format, options)
