"""Plans for a budget that an allocator has to keep: what kernels take is measured, holes get their share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadmaster.problems.offload.heap import Kernels
from loadmaster.problems.offload.problem import Offload
from loadmaster.solvers.solver import Solution

SPARE = 160 * 2**20
"""Bytes beside what was measured: a CUDA graph has heaps and library workspaces of its own, and an allocator
that comes to its limit waits for the device and gives pages back."""
HOLES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""Shares of the budget that are left to holes, the smallest first that suffices."""


def measured_kernels(op_workspace: Sequence[int], kept: int) -> Kernels | None:
    """What was measured of kernels; None on a device whose memory is one arena: there they take nothing."""
    own = np.array(op_workspace, dtype=np.int64)
    return Kernels(own, kept, SPARE) if kept or own.any() else None


def leaving_holes(make: Callable[[float], Offload], solved: Callable[[Offload], Solution],
                  shares: Sequence[float] = HOLES) -> tuple[Offload, Solution]:  # fmt: skip
    """The problem and what was found with the least share of the memory left to holes that lets a plan be
    found, or with the largest. Rules that fill the memory to the last byte are too much for an allocator."""
    for share in shares:
        problem = make(share)
        found = solved(problem)
        if found.decision is not None:
            break
    return problem, found
