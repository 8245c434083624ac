"""What holds for all tests.

Every test can import the helpers of this folder: `from generate import random_program`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from loadmaster import clock

# Helpers of this folder, and the packages beside it: benchmarks and tools.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

# The networks of the tests are tiny: nearly all of their time is XLA's compiler, which is done in
# little more than half the time without its newer code generator.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")


# How long an example takes depends on what else the computer has to do.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


@pytest.fixture(scope="session", autouse=True)
def stopped_clock() -> Iterator[None]:
    """No limit in seconds ends anything: searches end by evaluations, by nodes or by proof."""
    with clock.stopped():
        yield


@pytest.fixture
def running_clock() -> Iterator[None]:
    """For a test that needs time to pass, though it must not matter how much."""
    with clock.running():
        yield


@pytest.fixture(scope="module")
def quickly_compiled() -> Iterator[None]:
    """Networks so small are not worth a compiler's effort, for the rest of a file of tests."""
    jax = pytest.importorskip("jax")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
