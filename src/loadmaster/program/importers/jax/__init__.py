"""The JAX importer."""

from loadmaster.program.importers.jax.importer import import_jax, import_jax_spec

__all__ = ["import_jax", "import_jax_spec"]
