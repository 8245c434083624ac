"""Splits in the format of dnn-partitioning, such as its human experts', as Plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadPlan, BadProgram
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.dnn_partitioning import read_json
from loadmaster.program.program import CANNOT_RUN, Program

_PARTS = ("fpgas", "cpus")
_NOWHERE = -1


def read_split(path: str | Path, program: Program, machine: Machine) -> Plan:
    """The plan of a split: entry i of 'fpgas' is accelerator i, entry i of 'cpus' processor i, each
    running what is ready first. A node that the split leaves out goes with its colour class, as
    backward nodes do where a split is for inference."""
    op_of = {int(node): op for op, node in enumerate(program.op_source)}
    device = np.full(program.n_ops, _NOWHERE, dtype=np.int32)
    for name, nodes in _devices(path, machine):
        for node in nodes:
            if type(node) is not int or node not in op_of:
                raise _refuse(
                    path,
                    f"places node {node!r}, which '{program.name}' does not have",
                    node,
                    "give the split of this graph",
                )
            if device[op_of[node]] != _NOWHERE:
                raise _refuse(path, f"places node {node} twice", node, "place it once")
            device[op_of[node]] = name
    _with_their_class(path, program, device)
    for op in np.flatnonzero(device == _NOWHERE).tolist():
        raise _refuse(
            path,
            f"leaves out node {program.op_source[op]} ('{program.op_name[op]}')",
            int(program.op_source[op]),
            "place it, or a node of its colour class",
        )
    if program.costs is not None and program.costs.shape[1] == len(machine.devices):
        cost = program.costs[np.arange(program.n_ops), device]
        for op in np.flatnonzero(cost == CANNOT_RUN).tolist():
            raise _refuse(
                path,
                f"places node {program.op_source[op]} on '{machine.devices[device[op]].name}', "
                "which can't run it",
                int(program.op_source[op]),
                "place it on a processor",
            )
    return Plan(device=device, queue="fifo")


def _devices(path: str | Path, machine: Machine) -> list[tuple[int, list[object]]]:
    """(device, node ids) of every entry."""
    try:
        content = read_json(path)
    except BadProgram as error:
        raise BadPlan(error.message, object=error.object, remedy=error.remedy) from None
    found: list[tuple[int, list[object]]] = []
    first = 0
    for part, kind in zip(_PARTS, ("accelerator", "processor"), strict=True):
        there = sum(device.name.startswith(kind) for device in machine.devices)
        entries = content.get(part, [])
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) and isinstance(entry.get("nodes"), list) for entry in entries
        ):
            raise _refuse(path, f"has no lists of nodes in '{part}'", part, "give {'nodes': [ids]} each")
        used = [(i, entry["nodes"]) for i, entry in enumerate(entries) if entry["nodes"]]
        if used and used[-1][0] >= there:
            raise _refuse(
                path,
                f"uses {used[-1][0] + 1} {kind}s and machine '{machine.name}' has {there}",
                used[-1][0] + 1,
                "give a graph with as many devices",
            )
        found += [(first + i, nodes) for i, nodes in used]
        first += there
    return found


def _with_their_class(path: str | Path, program: Program, device: npt.NDArray[np.int32]) -> None:
    """Fill in ops whose hard group has a device, which must be one."""
    group = program.op_group
    placed = np.flatnonzero((device != _NOWHERE) & (group >= 0))
    home = np.full(int(group.max(initial=-1)) + 1, _NOWHERE, dtype=np.int32)
    home[group[placed]] = device[placed]
    for op in placed[device[placed] != home[group[placed]]].tolist():
        raise _refuse(
            path,
            f"separates node {program.op_source[op]} from its colour class",
            int(program.op_source[op]),
            "keep a colour class on one device",
        )
    left = np.flatnonzero((device == _NOWHERE) & (group >= 0))
    device[left] = home[group[left]]


def _refuse(path: str | Path, message: str, number: object, remedy: str) -> BadPlan:
    return BadPlan(f"split '{path}' {message}", object=str(path), number=str(number), remedy=remedy)
