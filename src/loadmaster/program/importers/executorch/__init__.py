"""The importer of ExecuTorch's lowered graphs."""

from loadmaster.program.importers.executorch.importer import import_executorch_spec

__all__ = ["import_executorch_spec"]
