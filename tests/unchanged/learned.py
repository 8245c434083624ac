"""Solvers that train networks, at a size that is quick to compile: the same again on the same processor.

Each is run in a process of its own, since what a test before has compiled with other settings would be used
again. Left out: 'paper', 'pg', 'paper-prod' and offload's 'muzero', which take 10 to 20 s each to compile;
'ea' is the evolution that 'paper' runs, 'policy-only' muzero's network at play.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from unchanged import parts, solvers

NAMES = ["mapping/ea/small/0", "malloc-game/policy-only/small/0"]


def names() -> list[str]:
    """kind/solver/instance/seed"""
    return list(NAMES)


def compute(entry: str) -> dict[str, Any]:
    """The answer of one solver, and the processor that it was found on."""
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false"}
    root = parts.HERE.parent.parent
    words = [sys.executable, "-m", "tests.unchanged", "--alone", entry]
    done = subprocess.run(words, env=environment, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compute_alone(entry: str) -> dict[str, Any]:
    """The same in this process."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    return {**solvers.compute(entry), "cpu": parts.cpu()}
