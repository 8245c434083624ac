"""The HLO importer."""

from loadmaster.program.importers.hlo.importer import import_hlo

__all__ = ["import_hlo"]
