"""The base plan: what stands where a task is not decided, and what rewards are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.graph.groups import root_homes
from loadmaster.program.program import Program

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

FUSIONS = ("none", "fixed", "cost_model")
PLACEMENTS = ("expert", "single", "m_topo")
SCHEDULES = ("fifo", "critical_path")


@dataclass(frozen=True, eq=False)
class Base:
    """None: the default of the problem's profile ('fixed', or 'none' of the paper's; 'expert' where
    the scopes tell layers apart, else 'm_topo'; 'fifo')."""

    fusion: str | None = None
    """'none', 'fixed' (from the end of the graph to its beginning) or 'cost_model'."""
    placement: str | npt.NDArray[Any] | None = None
    """'expert', 'single' (all on device 0), 'm_topo', or a device per group."""
    schedule: str | None = None
    """'fifo' or 'critical_path'."""

    def named(self) -> dict[str, Any]:
        """As JSON."""
        placement: Any = self.placement
        if isinstance(placement, np.ndarray):
            placement = [int(device) for device in placement]
        return {"fusion": self.fusion, "placement": placement, "schedule": self.schedule}

    @classmethod
    def of(cls, fusion: Any = None, placement: Any = None, schedule: Any = None) -> Base:
        """The inverse of `named`."""
        if isinstance(placement, list):
            placement = np.array(placement, dtype=np.int32)
        return cls(fusion, placement, schedule)


def check_base(base: Base) -> None:
    """Raise if a name is not known."""
    for what, value, known in (
        ("fusion", base.fusion, FUSIONS),
        ("placement", base.placement, PLACEMENTS),
        ("schedule", base.schedule, SCHEDULES),
    ):
        if isinstance(value, str) and value not in known:
            raise LoadmasterError(
                f"there is no base {what} '{value}'", object=what, remedy=f"use one of {', '.join(known)}"
            )


def fixed_keys(nodes: int) -> Float64:
    """[n] rising with the index from 1/15 to 1: the graph is fused from its end."""
    return np.linspace(1 / 15, 1.0, max(nodes, 1))[:nodes]


def group_bytes(program: Program, group: Int32, groups: int) -> Int64:
    """[groups] what a group brings along: weights and moments at home with it, and its results."""
    total, home = np.zeros(groups, dtype=np.int64), root_homes(program)
    roots = (program.tensor_alias == np.arange(program.n_tensors)) & (home >= 0)
    np.add.at(total, group[home[roots]], program.storage_bytes[roots])
    return total


def m_topo(program: Program, group: Int32, groups: int, devices: int) -> Int32:
    """[groups] devices filled one after another, groups in the order of their first ops, each up to
    its share of all bytes and the largest group."""
    size = group_bytes(program, group, groups)
    most = int(size.sum()) // devices + int(size.max(initial=0))
    placement, device, held = np.zeros(groups, dtype=np.int32), 0, 0
    for number, bytes_ in enumerate(size.tolist()):
        if held + bytes_ > most and device < devices - 1:
            device, held = device + 1, 0
        placement[number], held = device, held + bytes_
    return placement
