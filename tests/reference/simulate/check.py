"""Refuses plans whose entries can't even be looked up.

Part of the slow reference: everything behind it may index with the plan's numbers.
"""

from __future__ import annotations

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import MOST_BYTE, QUEUES, TIES, WHOLE, Plan
from loadmaster.program.program import Program


def check_plan(program: Program, machine: Machine, plan: Plan) -> None:
    """Refuse what can't be looked up: lengths, ranges, names of rules."""
    n_ops = program.n_ops
    for name in ("device", "order", "fusion", "priority"):
        column = getattr(plan, name)
        if column is not None and len(column) != n_ops:
            raise BadPlan(
                f"the plan's '{name}' has {len(column)} entries and the program {n_ops} ops",
                object=name,
                number=len(column),
                remedy="give one entry per op",
            )
    for op, device in enumerate([] if plan.device is None else plan.device.tolist()):
        _within("device of op", op, device, 0, len(machine.devices))
    for op, group in enumerate([] if plan.fusion is None else plan.fusion.tolist()):
        _within("fusion group of op", op, group, -1, n_ops)
    if plan.order is not None and sorted(plan.order.tolist()) != list(range(n_ops)):
        missing = sorted(set(range(n_ops)) - set(plan.order.tolist()))
        raise BadPlan(
            f"the plan's order is no permutation of the {n_ops} ops: op {missing[0]} is missing",
            object="order",
            number=missing[0],
            remedy="name every op once",
        )
    if plan.queue not in QUEUES:
        raise BadPlan(
            f"the plan has the queue '{plan.queue}'",
            object=plan.queue,
            remedy=f"use one of {', '.join(QUEUES)}",
        )
    if plan.tie not in TIES:
        raise BadPlan(
            f"the plan has the tie '{plan.tie}'", object=plan.tie, remedy=f"use one of {', '.join(TIES)}"
        )
    if plan.queue == "priority" and (
        plan.priority is None or any(key != key for key in plan.priority.tolist())
    ):
        raise BadPlan(
            "the plan has the queue 'priority' and not every op has a key",
            object="priority",
            remedy="give one number per op",
        )
    _check_tables(program, machine, plan)
    if plan.queue != "order":
        for name in ("residencies", "copies", "transfers"):
            table = getattr(plan, name)
            if table is not None and (len(table) or name == "transfers"):
                raise BadPlan(
                    f"the plan has {len(table)} {name} and the queue '{plan.queue}'",
                    object=name,
                    number=len(table),
                    remedy="use the queue 'order'",
                )


def _check_tables(program: Program, machine: Machine, plan: Plan) -> None:
    n_ops, n_tensors, n_memories = program.n_ops, program.n_tensors, len(machine.memories)
    for row, residency in enumerate(plan.residency_rows):
        _within("tensor of residency", row, residency.tensor, 0, n_tensors)
        _within("memory of residency", row, residency.memory, 0, n_memories)
        _within("offset of residency", row, residency.offset, -1, MOST_BYTE + 1)
        _within("first op of residency", row, residency.first, -1, n_ops)
        _within("last op of residency", row, residency.last, 0, n_ops)
    for row, copy in enumerate(plan.copy_rows):
        _within("tensor of copy", row, copy.tensor, 0, n_tensors)
        _within("source of copy", row, copy.source, 0, n_memories)
        _within("target of copy", row, copy.target, 0, n_memories)
        _within("issuing op of copy", row, copy.issued_after, -1, n_ops)
        _within("needing op of copy", row, copy.needed_by, 0, n_ops + 1)
        if (copy.low, copy.high) != (WHOLE, WHOLE):
            _within("high byte of copy", row, copy.high, 0, MOST_BYTE + 1)
            _within("low byte of copy", row, copy.low, 0, copy.high + 1)


def _within(what: str, number: int, value: int, least: int, limit: int) -> None:
    if not least <= value < limit:
        raise BadPlan(
            f"{what} {number} of the plan has the value {value}",
            object=f"{what} {number}",
            number=value,
            remedy=f"give {least} to {limit - 1}",
        )
