"""What holds for all tests.

Every test can import the helpers of this folder: `from generate import random_program`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# The networks of the tests are tiny: nearly all of their time is XLA's compiler, which is done in
# little more than half the time without its newer code generator.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")


@pytest.fixture(scope="module")
def quickly_compiled() -> Iterator[None]:
    """Networks so small are not worth a compiler's effort, for the rest of a file of tests."""
    jax = pytest.importorskip("jax")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
