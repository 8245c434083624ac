"""TFLite files: a reader of our own, so that NumPy is all that is needed."""

from loadmaster.program.importers.tflite.importer import import_tflite

__all__ = ["import_tflite"]
