"""The base plan: what stands where a task is not decided, and what rewards are measured against."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Float64, Int32, Int64
from loadmaster.errors import BadPlan, BadProgram, LoadmasterError
from loadmaster.graph.groups import root_homes
from loadmaster.program.program import Program

_NUMBERED = re.compile(r"(.*?)(\d+)")
_TIME_STEP = re.compile(r"t\d+")
_LAST = frozenset(("softmax", "head", "loss", "logits", "out", "output"))
UPDATE = "update"
"""The scope of the optimiser: 'update/<layer>.<weight>'."""

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


def place_base(program: Program, base: Base, group: Int32, groups: int, devices: int) -> tuple[Base, Int32]:
    """(the base with its placement named, [groups] devices) for the groups [n_ops] of a program."""
    placement = base.placement
    if isinstance(placement, str | None):
        found = None
        if placement in (None, "expert"):
            found = expert_placement(program, group, groups, devices)
            if found is None and placement == "expert":
                raise BadProgram(
                    f"the scopes of '{program.name}' don't tell layers apart, so there is no "
                    "expert placement",
                    object=program.name,
                    remedy="use the base placement m_topo",
                )
            placement = "m_topo" if found is None else "expert"
        if found is None:
            single = placement == "single"
            found = np.zeros(groups, dtype=np.int32) if single else m_topo(program, group, groups, devices)
        return Base(base.fusion, placement, base.schedule), found
    given = np.ascontiguousarray(placement, dtype=np.int32)
    if given.shape != (groups,) or given.min(initial=0) < 0 or given.max(initial=0) >= devices:
        raise BadPlan(
            f"the base placement of '{program.name}' is {list(given.shape)}",
            object=program.name,
            number=len(given),
            remedy=f"give one of {devices} devices for each of {groups} groups",
        )
    return Base(base.fusion, given, base.schedule), given


def fixed_keys(nodes: int) -> Float64:
    """[n] rising with the index from 1/15 to 1: the graph is fused from its end."""
    return np.linspace(1 / 15, 1.0, max(nodes, 1))[:nodes]


def group_bytes(program: Program, group: Int32, groups: int) -> Int64:
    """[groups] what a group brings along: weights and moments at home with it, and its results."""
    total, home = np.zeros(groups, dtype=np.int64), root_homes(program)
    roots = program.is_root & (home >= 0)
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


def expert_placement(program: Program, group: Int32, groups: int, devices: int) -> Int32 | None:
    """[groups] the device of each group's first op as a person would choose it from the scopes, or None
    if they don't tell layers apart: whole layers on neighbours.

    Recurrent models (a scope per time step) put layer i of L on device ⌊i·D/L⌋, encoder and decoder
    alike, embeddings and attention with the first layer, the softmax with the top one. All others are
    cut into contiguous runs of blocks, cells, layers or stacks of equal number, what comes before them
    with the first, what comes behind with the last. Updates go with their weight.
    """
    layers = _layers(program)
    if len(layers) < 2:
        return None
    recurrent = any(
        _TIME_STEP.fullmatch(part) for scope in program.op_scope.values for part in scope.split("/")
    )
    place = _by_layer(layers, devices) if recurrent else _by_block(layers, devices)
    by_scope = [place.get(_layer(scope), 0) for scope in program.op_scope.values]
    by_op = np.array(by_scope, dtype=np.int32)[program.op_scope.codes]
    placement = np.zeros(groups, dtype=np.int32)
    real = np.flatnonzero(group >= 0)[::-1]
    placement[group[real]] = by_op[real]  # the first op of a group comes last
    return placement


def _layer(scope: str) -> str:
    """'dec3' of 'dec3/t17' and of 'update/dec3.w'."""
    head, _, rest = scope.partition("/")
    return re.split(r"[./]", rest)[0] if head == UPDATE and rest else head


def _layers(program: Program) -> list[str]:
    """The layers in the order in which the program comes to them."""
    scopes = [scope for scope in program.op_scope.values if scope.partition("/")[0] != UPDATE]
    return list(dict.fromkeys(_layer(scope) for scope in scopes if scope))


def _by_layer(layers: list[str], devices: int) -> dict[str, int]:
    families: dict[str, list[tuple[int, str]]] = {}
    for name in layers:
        if match := _NUMBERED.fullmatch(name):
            families.setdefault(match[1], []).append((int(match[2]), name))
    place = {name: (devices - 1 if name in _LAST else 0) for name in layers}
    for members in families.values():
        for rank, (_, name) in enumerate(sorted(members)):
            place[name] = rank * devices // len(members)
    top = max((place[name] for family in families.values() for _, name in family), default=0)
    return {name: min(device, top) if name in _LAST else device for name, device in place.items()}


def _by_block(layers: list[str], devices: int) -> dict[str, int]:
    blocks = [name for name in layers if _NUMBERED.fullmatch(name)]
    blocks = blocks or [name for name in layers if name not in _LAST]
    place: dict[str, int] = {}
    device = 0
    for name in layers:
        if name in blocks:
            device = blocks.index(name) * devices // len(blocks)
        place[name] = device
    last = max(place.values(), default=0)
    return {name: last if name in _LAST else device for name, device in place.items()}
