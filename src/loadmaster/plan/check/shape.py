"""Rule `shape`: a plan whose columns and rows can be read at all.

A plan may hold anything. What is behind this check may trust lengths and index ranges.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.plan.check.report import Report
from loadmaster.plan.plan import BEFORE, MOST_BYTE, NO_OFFSET, QUEUES, TIES, Plan
from loadmaster.program.program import Program

Bounds = tuple[str, int, int]
"""What a column is called, its least and its largest value."""


def check_shape(program: Program, machine: Machine, plan: Plan, report: Report) -> bool:
    """Report what can't be read; return whether the other rules can be checked."""
    ops, devices = program.n_ops, len(machine.devices)
    tensors, memories = program.n_tensors, len(machine.memories)
    no_limit = 2**63
    tensor: Bounds = ("tensor", 0, tensors - 1)
    readable = [
        _queue(plan, machine, report),
        _column(plan.device, "device", 0, devices - 1, program, report),
        _column(plan.order, "order", 0, ops - 1, program, report),
        _column(plan.fusion, "fusion", -1, ops - 1, program, report),
        _table(
            plan.residencies,
            "residency",
            [
                tensor,
                ("memory", 0, memories - 1),
                ("offset", NO_OFFSET, MOST_BYTE),
                ("first", BEFORE, ops - 1),
                ("last", 0, ops - 1),
            ],
            report,
        ),
        _table(
            plan.copies,
            "copy",
            [
                tensor,
                ("source", 0, memories - 1),
                ("target", 0, memories - 1),
                ("issued_after", BEFORE, ops - 1),
                ("needed_by", 0, ops),
                ("low", -no_limit, MOST_BYTE),
                ("high", -no_limit, MOST_BYTE),
            ],
            report,
        ),
        _table(plan.transfers, "transfer", [tensor, ("device", 0, devices - 1)], report),
    ]
    _priority(plan, program, report)
    return all(readable)


def _queue(plan: Plan, machine: Machine, report: Report) -> bool:
    """Names of queue and tie, and what needs the queue 'order'."""
    if not isinstance(plan.tie, str) or plan.tie not in TIES:
        report.add("shape", f"tie is {plan.tie!r}: use {' or '.join(TIES)}")
    if not isinstance(plan.queue, str) or plan.queue not in QUEUES:
        report.add("shape", f"queue is {plan.queue!r}: use one of {', '.join(QUEUES)}")
        return False
    before = report.count("shape")
    idle = machine.rules.copies == "idle"
    if plan.queue != "order":
        for what in ("residencies", "copies", "transfers"):
            rows = getattr(plan, what)
            count = 0 if rows is None else len(np.atleast_1d(rows))
            if count or (what == "transfers" and rows is not None):  # even an empty list is a list
                report.add(
                    "shape",
                    f"queue '{plan.queue}' has {count:,} {what}: use the queue 'order', or leave them out",
                    number=count,
                )
        if idle:
            report.add("shape", f"queue is '{plan.queue}' and copies in idle time need 'order'")
    elif idle and plan.transfers is not None:
        report.add("shape", "copies in idle time know no transfers: leave them out")
    return report.count("shape") == before


def _integers(values: Any) -> np.ndarray[Any, Any] | None:
    """The values as an integer array, or None."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        return None
    return values


def _column(values: Any, name: str, least: int, most: int, program: Program, report: Report) -> bool:
    """One whole number per op."""
    if values is None:
        return True
    column = _integers(values)
    if column is None or column.ndim != 1 or len(column) != program.n_ops:
        shape = list(np.shape(values)) if column is not None else type(values).__name__
        report.add(
            "shape",
            f"'{name}' is {shape} and must be one whole number for each of {program.n_ops:,} ops",
            number=int(np.size(values)),
        )
        return False
    bad = np.flatnonzero((column < least) | (column > most)).tolist()
    for op in bad:
        value = int(column[op])
        report.add(
            "shape",
            f"'{name}' of op {op} '{program.op_name[op]}' is {value}: use {least} to {most}",
            op=op,
            number=value,
        )
    return not bad


def _table(values: Any, name: str, columns: list[Bounds], report: Report) -> bool:
    """One row per entry, each value in its range."""
    if values is None:
        return True
    table = _integers(values)
    if table is None or table.ndim != 2 or table.shape[1] != len(columns):
        shape = list(np.shape(values)) if table is not None else type(values).__name__
        report.add(
            "shape",
            f"the {name} table is {shape} and must have {len(columns)} columns of whole numbers",
            number=int(np.size(values)),
        )
        return False
    fine = True
    for row, entries in enumerate(table.tolist()):
        for value, (column, least, most) in zip(entries, columns, strict=True):
            if not least <= value <= most:
                fine = False
                report.add("shape", f"{name} {row} has {column} {value}: use {least} to {most}", number=value)
    return fine


def _priority(plan: Plan, program: Program, report: Report) -> None:
    """A finite number per op, if the queue needs it."""
    if plan.priority is None:
        if isinstance(plan.queue, str) and plan.queue == "priority":
            report.add("shape", "queue 'priority' has no priorities: give one per op")
        return
    values = plan.priority
    is_column = isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and values.ndim == 1
    if not is_column or len(values) != program.n_ops:
        report.add(
            "shape",
            f"'priority' must be one number for each of {program.n_ops:,} ops",
            number=int(np.size(values)),
        )
        return
    for op, value in enumerate(values.tolist()):
        if not math.isfinite(value):
            report.add(
                "shape",
                f"priority of op {op} '{program.op_name[op]}' is {value}: give a finite number",
                op=op,
            )
