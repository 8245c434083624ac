"""`Timeline`: what a plan costs. All times are integer picoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.units import PICOSECONDS

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of everything, bytes over links, and the memories' peaks."""

    total_ps: int
    op_start: Int64
    """[n_ops]; members of a fused group share their times, a view has its root's end as both."""
    op_end: Int64
    op_stall: Int64
    """[n_ops] how long an op waited for explicit copies alone"""
    copy_start: Int64
    """[copies], in the plan's order"""
    copy_end: Int64
    transfers: Int64
    """[x, 4]: tensor, destination device, start, end, in order of booking"""
    link_bytes: Int64
    """[links]"""
    device_busy: Int64
    """[devices]"""
    memory_peak: Int64
    """[memories] largest number of bytes held at once"""
    memory_top: Int64
    """[memories] highest address that an explicit offset uses"""
    memory_over: Int64
    """[memories] bytes above the capacity; the plan is valid only if all are 0"""
    memory_first_over: Int64
    """[memories] when the held bytes first exceeded the capacity, or -1"""

    @property
    def seconds(self) -> float:
        return self.total_ps / PICOSECONDS

    @property
    def stall_ps(self) -> int:
        return int(self.op_stall.sum())

    @property
    def fits(self) -> bool:
        """Whether no memory is over its capacity."""
        return not self.memory_over.any()
