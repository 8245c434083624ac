"""The PyTorch importer."""

from loadmaster.program.importers.torch.importer import import_torch, import_torch_spec

__all__ = ["import_torch", "import_torch_spec"]
