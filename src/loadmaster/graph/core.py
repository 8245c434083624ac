"""What a GraphOptimization is made of: groups, the base plan and the native tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.errors import BadPlan, BadProgram, Refused
from loadmaster.graph.base import Base, fixed_keys, m_topo
from loadmaster.graph.expert import expert_placement
from loadmaster.graph.groups import find_groups, hard_components
from loadmaster.graph.rules import FusionRules, fusion_rules
from loadmaster.machine.machine import Machine
from loadmaster.program.program import Program
from loadmaster.search.pins import BadPin, Pins
from loadmaster.simulate.simulator import Simulator

# ----------------------------------------------------------------------------
# Ops that are pinned to a device: they and what must be with them are groups of their own.

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def pinned_components(
    program: Program, machine: Machine, component: Int32, pins: Pins
) -> tuple[Int32, dict[int, int]]:
    """Hard components [n_ops] in which every pinned op has one, and component -> device.

    A component decides for the step that it is fused into, so that a pinned op stays where it is
    whatever it is fused with.
    """
    if pins.memory:
        name = program.tensor_name[next(iter(pins.memory))]
        raise BadPin(
            f"tensor '{name}' can't be pinned here: a tensor lives with the op that makes it",
            object=name,
            remedy="give --pin-op OP=DEVICE",
        )
    component = component.copy()
    chosen: dict[int, int] = {}
    by: dict[int, int] = {}
    for op, device in sorted(pins.device.items()):
        name = program.op_name[op]
        if program.op_view[op]:
            raise BadPin(
                f"op '{name}' only shows another tensor and runs nowhere",
                object=name,
                remedy="pin the op that makes the tensor",
            )
        if component[op] < 0:
            component[op] = op
        own = int(component[op])
        if chosen.setdefault(own, device) != device:
            first, other = program.op_name[by[own]], machine.devices[chosen[own]].name
            raise Refused(
                f"'{first}' is pinned to '{other}' and '{name}' to '{machine.devices[device].name}', and "
                "they must be on one device",
                object=name,
                number=device,
                remedy="pin both to one device",
            )
        by.setdefault(own, op)
    return component, chosen


def pinned_groups(group: Int32, component: Int32, chosen: dict[int, int]) -> tuple[Int32, Int32]:
    """(groups [n_ops], numbered by first appearance, with pinned components apart; device [G] or -1)."""
    apart = group.astype(np.int64)
    for number, own in enumerate(chosen):
        apart[component == own] = int(group.max(initial=-1)) + 1 + number
    real = np.flatnonzero(group >= 0)
    _, first, code = np.unique(apart[real], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    groups = np.full(len(group), -1, dtype=np.int32)
    groups[real] = rank[code]
    device = np.full(len(first), -1, dtype=np.int32)
    for own, where in chosen.items():
        device[groups[component == own]] = where
    return groups, device


def check_runs(program: Program, machine: Machine, node_op: Int32, durations: Int64, pins: Pins) -> None:
    """Raise if a device can't run what is pinned to it."""
    for op, device in pins.device.items():
        if durations[int(np.searchsorted(node_op, op)), device] < 0:
            name, where = program.op_name[op], machine.devices[device].name
            raise Refused(
                f"'{where}' can't run op '{name}' ({program.op_kind[op]})",
                object=name,
                number=device,
                remedy="pin it to another device",
            )


Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """How a vector is divided."""

    NAMES: ClassVar = ("fusion", "device", "schedule")
    sizes: tuple[int, int, int]
    """Of the parts in the order of `NAMES`; 0: not decided."""

    @property
    def width(self) -> int:
        return sum(self.sizes)

    def slice(self, name: str) -> slice:
        at = self.NAMES.index(name)
        start = sum(self.sizes[:at])
        return slice(start, start + self.sizes[at])


@dataclass(frozen=True, eq=False)
class Core:
    """Everything that is made once."""

    base: Base
    """With its defaults filled in."""
    parts: Parts
    simulator: Simulator
    rules: FusionRules
    component: Int32
    """[n_ops] hard components, or -1"""
    group: Int32
    """[n_ops] placement groups, -1 for views"""
    node_op: Int32
    node_group: Int32
    base_device: Int32
    """[G]"""
    pinned: Int32
    """[G] the device of a group that is pinned, or -1"""
    base_keys: Float64
    """[n_ops] fusion keys of the base plan"""
    base_fusion: Int32
    """[n_ops] its clusters"""
    fusion: _core.Fusion
    batch: _core.GraphBatch


def make_core(
    program: Program,
    machine: Machine,
    base: Base,
    tasks: tuple[str, ...],
    soft: str,
    tie: str,
    readers: str,
    pins: Pins,
) -> Core:
    """Groups, base plan and native tables of a problem."""
    simulator = Simulator(program, machine)
    component, chosen = pinned_components(program, machine, hard_components(program), pins)
    node_op = np.flatnonzero(~program.op_view).astype(np.int32)
    group = find_groups(program, component, soft, program.op_flops.sum(axis=1))
    group, pinned = pinned_groups(group, component, chosen)
    groups = len(pinned)
    base, base_device = _placed(program, base, group, groups, len(machine.devices))
    base_device = np.where(pinned >= 0, pinned, base_device)
    rules = fusion_rules(program)
    given = np.zeros(0, dtype=np.int32)
    if "placement" not in tasks:
        given = np.append(base_device, np.int32(0))[group]  # views, group -1, take the last
    fusion = _core.Fusion(simulator.native, _fusion_columns(program, rules, component, given, readers))
    keys = np.zeros(program.n_ops)
    if base.fusion == "fixed":
        keys[node_op] = fixed_keys(len(node_op))
    elif base.fusion == "cost_model":
        keys = fusion.cost_model(0)
    clusters = fusion.fuse(keys)
    n = len(node_op)
    parts = Parts(
        (
            n if "fusion" in tasks else 0,
            groups if "placement" in tasks else 0,
            n if "schedule" in tasks else 0,
        )
    )
    columns = _decision_columns(parts, node_op, group, clusters, base_device, pinned, base, tie)
    return Core(
        base,
        parts,
        simulator,
        rules,
        component,
        group,
        node_op,
        group[node_op],
        base_device,
        pinned,
        keys,
        clusters,
        fusion,
        _core.GraphBatch(fusion, columns),
    )


def _placed(program: Program, base: Base, group: Int32, groups: int, devices: int) -> tuple[Base, Int32]:
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


def _fusion_columns(
    program: Program, rules: FusionRules, component: Int32, device: Int32, readers: str
) -> dict[str, Any]:
    # The native accesses are the reads, then the writes of each op; views have none.
    op = np.concatenate([program.read_op, program.write_op])
    repeats = np.concatenate([rules.repeats, np.zeros(len(program.write_op), dtype=np.int8)])
    kept = np.flatnonzero(~program.op_view[op])
    kept = kept[np.argsort(op[kept], kind="stable")]
    return {
        "fusible": rules.fusible,
        "big_reduction": rules.big_reduction,
        "cheap": rules.cheap,
        "loop_size": rules.loop_size,
        "repeats": repeats[kept],
        "component": component,
        "device": device,
        "all_readers": readers == "all",
    }


def _decision_columns(
    parts: Parts,
    node_op: Int32,
    group: Int32,
    clusters: Int32,
    base_device: Int32,
    pinned: Int32,
    base: Base,
    tie: str,
) -> dict[str, Any]:
    starts = [
        parts.slice(name).start if size else -1 for name, size in zip(Parts.NAMES, parts.sizes, strict=True)
    ]
    switches = [base.schedule == "critical_path", tie == "critical_path"]
    return {
        "parts": np.array([parts.width, *starts, *switches], dtype=np.int64),
        "node_op": node_op,
        "group": group,
        "base_fusion": clusters,
        "base_device": base_device,
        "pinned": pinned,
    }


def make_climb(core: Core, tie: str, reference: int) -> _core.GraphClimb:
    """Vectors one after another, each a few changes away from the one that stands."""
    columns = _decision_columns(
        core.parts, core.node_op, core.group, core.base_fusion, core.base_device, core.pinned, core.base, tie
    )
    return _core.GraphClimb(core.fusion, columns, float(max(1, reference)))


def _base_batch(core: Core) -> _core.GraphBatch:
    columns = _decision_columns(
        Parts((0, 0, 0)),
        core.node_op,
        core.group,
        core.base_fusion,
        core.base_device,
        core.pinned,
        core.base,
        "fifo",
    )
    return _core.GraphBatch(core.fusion, columns)


def run_base(core: Core) -> tuple[int, Int64, tuple[int, int, int]]:
    """(time_ps, bytes over [memories], fault) of the base plan."""
    total, over, fault = _base_batch(core).evaluate(np.zeros((1, 0)), 1)
    return int(total[0]), over[0], tuple(fault[0].tolist())


def base_schedule_keys(core: Core, tie: str) -> Float64:
    """[n] keys with which the base plan's clusters on its devices run as they do in the base plan.

    Where the rule for ties is its own schedule, equal keys; else the order in which it starts: what
    is ready and started first there has the largest key here.
    """
    if core.base.schedule == tie:
        return np.zeros(len(core.node_op))
    _, _, start, _ = _base_batch(core).decode(np.zeros(0))
    if len(start) == 0:  # the base plan can't run: there is nothing to repeat
        return np.zeros(len(core.node_op))
    when = start[core.node_op]
    first, rank = np.unique(when, return_inverse=True)
    return 1.0 - rank / max(1, len(first))
