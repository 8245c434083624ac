"""What holds for all tests.

Every test can import the helpers of this folder: `from generate import random_program`.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from loadmaster import clock

# Helpers of this folder, and the packages beside it: benchmarks and tools.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

# What one process has compiled of the package, hundreds read that tests start; images of containers often turn that off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# As many workers run as there are cores: threads of theirs would only wait for each other, at every product of matrices.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The networks of the tests are tiny: nearly all of their time is XLA's compiler, which is done in
# little more than half the time without its newer code generator.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
# What one worker or an earlier run has compiled, the others need not compile again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Nothing that is imported is garbage, and there is much of it: a look at all of PyTorch, JAX and the tests takes half a second.
# So there is none before they are collected; afterwards what is there then is left out, and a look is taken less often.
gc.disable()

PARTS = {
    "agents": (
        "benchmarks/hdp/",
        "benchmarks/test_muzero_runs.py",
        "cli/test_train",
        "graph/go/",
        "learn/",
        "malloc_game/muzero/paper/",
        "mapping/egrl/paper/",
    ),
    "peers": (
        "benchmarks/",
        "execute/",
        "export/",
        "program/importers/",
        "program/test_zoo_traced.py",
        "tools/",
    ),
    "commands": ("cli/", "examples/", "fuzz/", "report/", "runs/", "test_demo.py", "unchanged/"),
    "sweeps": (
        "graph/test_agreement.py",
        "graph/test_chains.py",
        "graph/test_exact.py",
        "graph/test_placers.py",
        "graph/test_search.py",
        "law/",
        "malloc_game/test_agrees.py",
        "malloc_game/test_exact.py",
        "malloc_game/test_msa.py",
        "malloc_game/test_tries.py",
        "mapping/test_bound.py",
        "mapping/test_exact.py",
        "offload/test_bounds.py",
        "order/test_solvers.py",
        "program/test_zoo_graphs.py",
        "search/test_conformance.py",
        "search/test_interrupted.py",
        "search/test_pins.py",
        "simulate/test_agreement.py",
        "simulate/test_fast_paths.py",
    ),
}
"""Part -> folders and files that belong to it; the first that fits, and `unit` is the rest."""
LEARNED = re.compile(r"\b(paper|paper-prod|ea|pg|policy-only|go|hdp|sac)\b")
"""Solvers that compile networks, as they are named in the ids of tests that run with every solver."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test gets the marker of its one part: `make unit`, `make agents`, …"""
    for item in items:
        item.add_marker(_part_of(item))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def _part_of(item: pytest.Item) -> str:
    name = item.path.relative_to(Path(__file__).parent).as_posix()
    if LEARNED.search(item.name.partition("[")[2]) or "quickly_compiled" in getattr(item, "fixturenames", ()):
        return "agents"
    fitting = (part for part, places in PARTS.items() if name.startswith(places))
    return next(fitting, "unit")


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
