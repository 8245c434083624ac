"""Compiling takes most of the time here, and nothing here is worth a compiler's effort."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Iterator[None]:
    jax = pytest.importorskip("jax")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
