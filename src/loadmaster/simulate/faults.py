"""Plans that can't be run: what is out of range, and what the core found, as sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import MOST_BYTE, QUEUES, TIES, Plan
from loadmaster.program.program import Program


def check_ranges(program: Program, machine: Machine, plan: Plan) -> None:
    """Every index must exist before the native core follows it."""
    n, t, m, d = program.n_ops, program.n_tensors, len(machine.memories), len(machine.devices)
    if plan.queue not in QUEUES or plan.tie not in TIES:
        raise _bad(
            f"queue '{plan.queue}' with tie '{plan.tie}' is not known", "queue", f"use {', '.join(QUEUES)}"
        )
    _column(plan.device, "device", n, 0, d)
    _column(plan.order, "order", n, 0, n)
    _column(plan.fusion, "fusion", n, -1, n)
    if plan.order is not None and n and (np.bincount(plan.order, minlength=n) != 1).any():
        raise _bad("the order is not a permutation of the ops", "order", "list every op once")
    if plan.queue == "priority":
        if plan.priority is None:
            raise _bad("the queue 'priority' has no priorities", "priority", "give one per op")
        if plan.priority.shape != (n,) or not np.isfinite(plan.priority).all():
            raise _bad("the priorities must be finite, one per op", "priority", f"give {n} finite numbers")
    tables = (plan.residencies, plan.copies, plan.transfers)
    if plan.queue != "order" and any(table is not None for table in tables):
        raise _bad(
            f"residencies, copies and transfers need an order, and the queue is '{plan.queue}'",
            "queue",
            "use queue 'order'",
        )
    if plan.transfers is not None and machine.rules.copies == "idle":
        raise _bad("a machine with copies = 'idle' has no transfers", "transfers", "leave them out")
    if machine.rules.copies == "idle" and d != 1:
        raise _bad(
            f"a machine with copies = 'idle' needs one device and has {d}",
            machine.name,
            "use copies = 'free'",
            d,
        )
    if machine.rules.copies == "idle" and plan.queue != "order":
        raise _bad(
            f"a machine with copies = 'idle' needs queue 'order', not '{plan.queue}'", "queue", "use 'order'"
        )
    _table(plan.residencies, "residency", ((0, t), (0, m), (-1, MOST_BYTE + 1), (-1, n), (0, n)))
    place = (-1, MOST_BYTE + 1)
    _table(plan.copies, "copy", ((0, t), (0, m), (0, m), (-1, n), (0, n + 1), place, place))
    _table(plan.transfers, "transfer", ((0, t), (0, d)))
    if plan.copies is not None:
        low, high = plan.copies[:, 5], plan.copies[:, 6]
        bad = np.flatnonzero((low >= 0) & (high < low) | (low < 0) & (high >= 0))
        if len(bad):
            raise _bad(
                f"copy {bad[0]} has the byte range {low[bad[0]]} to {high[bad[0]]}",
                f"copy {bad[0]}",
                "give 0 <= low <= high, or leave both out",
            )


def _bad(what: str, object: str, remedy: str, number: Any = None) -> BadPlan:
    return BadPlan(f"the plan can't be run: {what}", object=object, number=number, remedy=remedy)


def _column(values: npt.NDArray[Any] | None, name: str, rows: int, least: int, limit: int) -> None:
    if values is None:
        return
    if values.dtype != np.int32 or values.shape != (rows,):
        raise _bad(f"'{name}' must be int32[{rows}]", name, "give one entry per op")
    bad = np.flatnonzero((values < least) | (values >= limit))
    if len(bad):
        raise _bad(
            f"'{name}' of op {bad[0]} is {values[bad[0]]}",
            name,
            f"give {least} to {limit - 1}",
            int(values[bad[0]]),
        )


def _table(rows: npt.NDArray[Any] | None, name: str, limits: tuple[tuple[int, int], ...]) -> None:
    if rows is None:
        return
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != len(limits):
        raise _bad(f"the table of each {name} must be int64[.., {len(limits)}]", name, "use Plan.of")
    for column, (least, limit) in enumerate(limits):
        bad = np.flatnonzero((rows[:, column] < least) | (rows[:, column] >= limit))
        if len(bad):
            raise _bad(
                f"{name} {bad[0]} has {rows[bad[0], column]} in column {column}",
                f"{name} {bad[0]}",
                f"give {least} to {limit - 1}",
                int(rows[bad[0], column]),
            )


def explain(fault: tuple[int, int, int], program: Program, machine: Machine) -> BadPlan:
    """The native core's fault as a sentence."""
    code, a, b = fault
    op = program.op_name
    memory = [m.name for m in machine.memories]
    if code == 1:
        return _bad(
            f"fused ops '{op[a]}' and '{op[b]}' are on different devices", op[a], "put them on one", b
        )
    if code == 2:
        return _bad(
            f"fused ops '{op[a]}' and '{op[b]}' are in different loops", op[a], "fuse within a loop", b
        )
    if code == 3:
        return _bad(f"op '{op[a]}' can't run on device '{machine.devices[b].name}'", op[a], "move it", b)
    if code == 4:
        return _bad(
            f"machine '{machine.name}' has no link from '{memory[a]}' to '{memory[b]}'",
            memory[a],
            "add the link, or move the data another way",
            b,
        )
    if code == 5:
        return _bad(
            f"op '{op[a]}' waits for something that never happens",
            op[a],
            "order it after what it reads, and fuse no cycle",
            a,
        )
    if code == 6:
        return _bad(f"copy {a} is needed before it is issued", f"copy {a}", "issue it after an earlier op", a)
    if code == 7:
        return _bad(
            f"copy {a} must start or end in '{memory[machine.home[0]]}' on this machine",
            f"copy {a}",
            "copy through the slowest memory",
            a,
        )
    name = program.tensor_name[a] if a >= 0 else "?"
    return _bad(
        f"the list of transfers is wrong at tensor '{name}' to device {b}",
        name,
        "list every needed transfer once, or none",
        b,
    )
