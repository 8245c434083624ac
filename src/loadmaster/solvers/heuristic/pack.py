"""Offsets for tensors that stay in one memory: largest first, each at the lowest free offset."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import NO_OFFSET
from loadmaster.plan.static import lifetimes
from loadmaster.program.program import PERSISTENT, Program


def pack(
    program: Program, machine: Machine, memory: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """[T] an offset for each root with a memory: weights and state first from 0, the rest above."""
    first, last = lifetimes(program)
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    for number, place in enumerate(machine.memories):
        here = np.flatnonzero((memory == number) & (last >= first))
        size = -(-program.storage_bytes // place.alignment) * place.alignment
        base = 0
        for tensor in here[kept[here]]:
            offset[tensor], base = base, base + int(size[tensor])
        floating = here[~kept[here]]
        ranked = floating[np.lexsort((first[floating], -size[floating]))]
        _lowest_free(ranked, first, last, size, offset, base)
    return offset


def _lowest_free(ranked: npt.NDArray[np.int64], first: npt.NDArray[np.int64], last: npt.NDArray[np.int64],
                 size: npt.NDArray[np.int64], offset: npt.NDArray[np.int64], base: int) -> None:  # fmt: skip
    placed = np.empty(0, dtype=np.int64)
    for tensor in ranked:
        together = placed[(first[placed] <= last[tensor]) & (last[placed] >= first[tensor])]
        low = base
        for other in together[np.argsort(offset[together], kind="stable")]:
            if offset[other] >= low + size[tensor]:
                break
            low = max(low, int(offset[other] + size[other]))
        offset[tensor] = low
        placed = np.append(placed, tensor)
