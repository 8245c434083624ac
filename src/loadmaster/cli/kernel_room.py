"""What is left of fast memory to kernels: one answer for planning, for shares of what is needed, for running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.offload.kernels import Kernels
    from loadmaster.program.measured_costs import MeasuredCosts


@dataclass(frozen=True, eq=False)
class KernelRoom:
    """What kernels take beside the tensors of a program."""

    kernels: Kernels | None = None
    """What a plan leaves to each op and to libraries"""
    reserve: int = 0
    """What it leaves all the time, where no more is known than one number"""
    needed: int = 0
    """What counts into the bytes that a program needs with nothing ever leaving"""
    kept: int = 0
    """What a run has to have beside the peak of a plan that leaves ops their room"""


def kernel_room(ops: int, measured: MeasuredCosts | None, device: str | None) -> KernelRoom:
    """For a program of so many ops: what was measured, else what any run takes on the device that it was
    captured for (None: it is not known)."""
    from loadmaster.offload.kernels import measured_kernels, unmeasured_kernels

    if measured is None:
        if device is None or device.partition(":")[0] != "cuda":
            return KernelRoom()
        known = unmeasured_kernels(ops)
        return KernelRoom(known, needed=known.kept + known.spare, kept=known.kept)
    kernels, all_of_it = (
        measured_kernels(measured.op_workspace, measured.kept_bytes),
        measured.workspace_bytes,
    )
    if kernels is None:
        return KernelRoom(None, all_of_it, all_of_it, all_of_it)
    return KernelRoom(kernels, needed=all_of_it, kept=measured.kept_bytes)
