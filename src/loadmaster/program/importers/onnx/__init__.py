"""The ONNX importer."""

from loadmaster.program.importers.onnx.importer import import_onnx

__all__ = ["import_onnx"]
