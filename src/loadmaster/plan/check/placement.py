"""Rules `shape`, `order`, `device`, `colocation`, `fusion` and `reach`: what can be read at all, what comes
before what, who may run where and together with whom.

A plan may hold anything. What is behind `check_shape` may trust lengths and index ranges, and behind
`check_permutation` that every op has one position.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.plan.check.facts import Column, Facts, Report
from loadmaster.plan.plan import BEFORE, MOST_BYTE, NO_OFFSET, QUEUES, TIES, Plan
from loadmaster.program.program import CANNOT_RUN, Program, TieKind


def check_device(facts: Facts, report: Report) -> None:
    """Every op can run on its device, and what it reads can reach it."""
    _costs(facts, report)
    _links(facts, report)
    _listed_transfers(facts, report)
    used = facts.devices_used
    if facts.machine.rules.copies == "idle" and len(used) > 1:
        report.add(
            "device",
            f"ops run on {len(used)} devices and copies in idle time know one: use one device",
            number=len(used),
        )


def _costs(facts: Facts, report: Report) -> None:
    costs = facts.program.costs
    if costs is None:
        return
    devices = len(facts.machine.devices)
    if costs.shape[1] != devices:
        report.add(
            "device",
            f"the cost table has {costs.shape[1]} columns and the machine has "
            f"{devices} devices: give one column per device",
            number=costs.shape[1],
        )
        return

    def describe(op: int) -> dict[str, Any]:
        device, able = int(facts.device[op]), np.flatnonzero(costs[op] != CANNOT_RUN).tolist()
        remedy = f"move it to {facts.device_text(able[0])}" if able else "no device can run it"
        what = f"{facts.op_text(op)} can't run on {facts.device_text(device)} ({device}): {remedy}"
        return {"message": what, "op": op, "number": device}

    cannot = costs[np.arange(facts.n_ops), facts.device] == CANNOT_RUN
    report.add_each("device", cannot & ~facts.is_view, describe)


def _links(facts: Facts, report: Report) -> None:
    """Transfers go from home to home."""
    sent, home = facts.transfers, facts.home
    sources = facts.home_device[sent.tensor]

    def describe(row: int) -> dict[str, Any]:
        tensor, device, source = int(sent.tensor[row]), int(sent.device[row]), int(sources[row])
        op = int(facts.step_number[sent.readers[row][0]])
        return {
            "message": f"{facts.op_text(op)} on {facts.device_text(device)} reads "
            f"{facts.tensor_text(tensor)} of {facts.device_text(source)} and there is no "
            f"link from {facts.memory_text(home[source])} to "
            f"{facts.memory_text(home[device])}: move it to device {source}",
            "tensor": tensor,
            "op": op,
            "number": device,
        }

    report.add_each("device", ~facts.linked[home[sources], home[sent.device]], describe)


def _is_each_listed_once(facts: Facts) -> bool:
    """Whether the plan lists every transfer once and no other."""
    assert facts.plan.transfers is not None
    listed, devices = facts.plan.transfers.astype(np.int64), len(facts.near)
    found = np.sort(listed[:, 0] * devices + listed[:, 1])
    return np.array_equal(found, facts.transfers.tensor * devices + facts.transfers.device)


def _listed_transfers(facts: Facts, report: Report) -> None:
    """A plan that lists transfers lists each one that is needed, once, and no other."""
    if facts.plan.transfers is None or _is_each_listed_once(facts):
        return
    needed = {key: row for row, key in enumerate(facts.transfers.keys)}
    seen: set[tuple[int, int]] = set()
    for tensor, device in facts.plan.transfers.tolist():
        what = f"the transfer of {facts.tensor_text(tensor)} to {facts.device_text(device)}"
        if (tensor, device) not in needed:
            report.add(
                "device",
                f"{what} ({device}) is listed and nobody waits for it: remove it",
                tensor=tensor,
                number=device,
            )
        elif (tensor, device) in seen:
            report.add(
                "device", f"{what} ({device}) is listed twice: remove one", tensor=tensor, number=device
            )
        seen.add((tensor, device))
    for (tensor, device), row in needed.items():
        if (tensor, device) not in seen:
            op = int(facts.step_number[facts.transfers.readers[row][0]])
            report.add(
                "device",
                f"{facts.op_text(op)} waits for the transfer of "
                f"{facts.tensor_text(tensor)} to {facts.device_text(device)} ({device}), which "
                "is not listed: add it, or list none",
                tensor=tensor,
                op=op,
                number=device,
            )


def check_colocation(facts: Facts, report: Report) -> None:
    """Ops and tensors of a hard group, and the two sides of an in-place op, on one device."""
    group = facts.program.op_group.astype(np.int64)
    expected = facts.group_devices(group)

    def describe_op(op: int) -> dict[str, Any]:
        return {
            "message": f"{facts.op_text(op)} of group {group[op]} is on device "
            f"{facts.device[op]} and the group on device {expected[op]}: move it there",
            "op": op,
            "number": facts.device[op],
        }

    grouped = (group >= 0) & ~facts.is_view
    report.add_each("colocation", grouped & (facts.device != expected), describe_op)
    _tensor_groups(facts, report)
    unused = (facts.writer < 0) & (facts.readers.counts == 0)
    for kind, source, target, op in facts.ties:
        if kind != TieKind.INPLACE or op < 0 or facts.is_input[source] or unused[source]:
            continue
        one, other = facts.home_device[source], facts.home_device[target]
        if one != other:
            report.add(
                "colocation",
                f"{facts.op_text(op)} writes {facts.tensor_text(target)} on "
                f"device {other} over {facts.tensor_text(source)} on device {one}: put both "
                "on one device",
                tensor=source,
                op=op,
                number=other,
            )


def _tensor_groups(facts: Facts, report: Report) -> None:
    """The tensors of a group live where its ops run or, if it has none, where the first of them lives."""
    groups = facts.program.tensor_group.astype(np.int64)
    unused = (facts.writer < 0) & (facts.readers.counts == 0)
    tensors = np.flatnonzero(facts.is_root & (groups >= 0) & ~facts.is_input & ~unused)
    group, device = groups[tensors], facts.home_device[tensors]
    expected = facts.group_devices(group)
    _, first, same = np.unique(group, return_index=True, return_inverse=True)
    expected = np.where(expected >= 0, expected, device[first][same])

    def describe(row: int) -> dict[str, Any]:
        tensor = int(tensors[row])
        writer = facts.writer[tensor]
        return {
            "message": f"{facts.tensor_text(tensor)} of group {group[row]} lives on device "
            f"{device[row]} and the group on device {expected[row]}: move the op that writes or first "
            "reads it",
            "tensor": tensor,
            "number": device[row],
            "op": facts.step_number[writer] if writer >= 0 else None,
        }

    report.add_each("colocation", device != expected, describe)


def check_fusion(facts: Facts, report: Report) -> None:
    """The members of a step have one device, one loop, and at most one hard group."""
    if not facts.is_fused.any():
        return
    rank, op = facts.members.keys, facts.members.entry
    number = facts.step_number[rank]
    group, nowhere = facts.program.op_group.astype(np.int64), facts.n_ops
    first_hard = facts.members.least(np.where(group[op] >= 0, op, nowhere), nowhere)
    hard = np.append(group, -1)[first_hard][rank]
    elsewhere = facts.device[op] != facts.step_device[rank]
    other_loop = facts.loop[op] != facts.loop[number]
    other_group = (group[op] >= 0) & (group[op] != hard)
    for row in np.flatnonzero((op != number) & (elsewhere | other_loop | other_group)).tolist():
        this, step = int(op[row]), int(number[row])
        fused = f"{facts.op_text(this)} is fused with {facts.op_text(step)}"
        if elsewhere[row]:
            report.add(
                "fusion",
                f"{fused} and is on device {facts.device[this]} instead of {facts.device[step]}: use one device",
                op=this,
                number=facts.device[this],
            )
        if other_loop[row]:
            report.add(
                "fusion",
                f"{fused} and is in loop {facts.loop[this]} instead of "
                f"{facts.loop[step]}: fuse within one loop",
                op=this,
                number=facts.loop[this],
            )
        if other_group[row]:
            report.add(
                "fusion",
                f"{fused} and is in the hard group {group[this]} instead of {hard[row]}: fuse within one group",
                op=this,
                number=group[this],
            )


def check_reach(facts: Facts, report: Report) -> None:
    """On a machine whose ops work in the first memory of their device alone, all that a step reads and
    writes is there, whether it takes many of its bytes or none. Empty tensors are nowhere."""
    if facts.machine.rules.reach != "first":
        return
    rank, tensor = facts.uses.keys, facts.uses.entry
    memory, _ = facts.serve(rank, tensor)
    first = np.array([memories[0] for memories in facts.machine.reach], dtype=np.int64)

    def describe(row: int) -> dict[str, Any]:
        op, device, size = facts.step_number[rank[row]], facts.step_device[rank[row]], facts.size[tensor[row]]
        return {
            "message": f"{facts.op_text(int(op))} uses {facts.tensor_text(tensor[row])} "
            f"({size:,} bytes) in {facts.memory_text(memory[row])}, and "
            f"{facts.device_text(device)} works in {facts.memory_text(first[device])} alone: "
            "copy it there before",
            "tensor": tensor[row],
            "op": op,
            "number": size,
        }

    away = (memory != first[facts.step_device[rank]]) & (facts.size[tensor] > 0)
    report.add_each("reach", away, describe)


def check_permutation(program: Program, plan: Plan, report: Report) -> bool:
    """Every op has one place. Without it, positions have no meaning."""
    if plan.order is None or (np.bincount(plan.order, minlength=program.n_ops) == 1).all():
        return True
    place: dict[int, int] = {}
    for position, op in enumerate(plan.order.tolist()):
        if op in place:
            report.add(
                "order",
                f"op {op} '{program.op_name[op]}' is at the positions {place[op]} "
                f"and {position}: give it one",
                op=op,
                number=position,
            )
        place.setdefault(op, position)
    for op in range(program.n_ops):
        if op not in place:
            report.add(
                "order",
                f"op {op} '{program.op_name[op]}' has no position among {program.n_ops:,}: add it",
                op=op,
                number=program.n_ops,
            )
    return len(place) == program.n_ops


def check_order(facts: Facts, report: Report) -> None:
    """Writers before readers, users before who writes over: step by step, and without a circle."""
    if facts.in_order:
        late = _ops_after_writers(facts, report)
        _steps_after_writers(facts, late, report)
    before, after = _waits(facts)
    circle = _circle(before, after, facts.n_steps)
    listed = facts.plan.transfers is not None and len(facts.plan.transfers) > 0
    if not circle and facts.in_order and listed and _is_each_listed_once(facts):
        # The list is complete and the steps alone have no circle: is its order to blame?
        circle = _circle(*_waits_with_transfers(facts, before, after))
        if circle and not report.count("order"):
            rank = min((node for node in circle if node < facts.n_steps), default=0)
            op = int(facts.step_number[rank])
            report.add(
                "order",
                f"{facts.op_text(op)} can never start: the order of the transfers "
                f"makes {len(circle)} steps and transfers wait for each other",
                op=op,
                number=len(circle),
            )
    elif circle:
        numbers = facts.step_number[circle].tolist()
        others = ", ".join(facts.op_text(number) for number in numbers[:4])
        report.add(
            "order",
            f"{facts.op_text(min(numbers))} waits for itself through {len(circle)} fused "
            f"steps ({others}): fuse fewer ops",
            op=min(numbers),
            number=len(circle),
        )


def _ops_after_writers(facts: Facts, report: Report) -> Column:
    """Views have a place in the order too. Returns op * n_tensors + tensor of all that were reported."""
    tensor, op, position = facts.program.read_tensor, facts.read_op, facts.position
    maker = facts.program.producer[tensor]
    late = np.flatnonzero((maker >= 0) & (maker != op) & (position[maker] > position[op]))

    def describe(row: int) -> dict[str, Any]:
        at, made = position[op[row]], position[maker[row]]
        return {
            "message": f"{facts.op_text(int(op[row]))} reads {facts.tensor_text(tensor[row])} at "
            f"position {at} and {facts.op_text(int(maker[row]))} writes it at "
            f"position {made}: swap them",
            "tensor": tensor[row],
            "op": op[row],
            "number": made,
        }

    report.add_each("order", late, describe)
    return op[late] * facts.n_tensors + facts.read_root[late]


def _steps_after_writers(facts: Facts, late: Column, report: Report) -> None:
    """A step runs at its smallest position, so what it reads must be written before that."""
    rank = facts.step_of[facts.read_op]
    rows = np.flatnonzero((rank >= 0) & (facts.writer[facts.read_root] > rank))
    if not len(rows):
        return
    codes = facts.read_op[rows] * facts.n_tensors + facts.read_root[rows]
    _, first = np.unique(codes, return_index=True)
    rows = rows[np.sort(first)]
    rows = rows[~np.isin(facts.read_op[rows] * facts.n_tensors + facts.read_root[rows], late)]
    rows = rows[np.argsort(rank[rows], kind="stable")]

    def describe(row: int) -> dict[str, Any]:
        op, tensor = int(facts.read_op[row]), int(facts.read_root[row])
        writer = facts.writer[tensor]
        other = facts.step_position[writer]
        return {
            "message": f"{facts.op_text(op)} reads {facts.tensor_text(tensor)} in "
            f"the fused step at position {facts.step_position[rank[row]]}, and the step of "
            f"{facts.op_text(int(facts.step_number[writer]))}, which writes it, runs at position "
            f"{other}: fuse other ops or change the order",
            "tensor": tensor,
            "op": op,
            "number": other,
        }

    report.add_each("order", rows, describe)


def _waits(facts: Facts) -> tuple[Column, Column]:
    """(before, after): ranks of steps of which one waits for the other."""
    after = facts.reads.keys
    before = facts.writer[facts.reads.entry]
    waits = (before >= 0) & (before != after)
    users = [(user, facts.step_of[over.op]) for over in facts.overwrites for user in over.users]
    more = np.array(users, dtype=np.int64).reshape(len(users), 2)
    return np.concatenate([before[waits], more[:, 0]]), np.concatenate([after[waits], more[:, 1]])


def _waits_with_transfers(facts: Facts, before: Column, after: Column) -> tuple[Column, Column, int]:
    """The same waits and more, with a node for each listed transfer behind those of the steps: a device
    runs its steps in order, and an engine serves its transfers in the order of the list."""
    assert facts.plan.transfers is not None
    waits = [(before, after)]
    for device in facts.devices_used:
        ranks = np.flatnonzero(facts.step_device == device)
        waits.append((ranks[:-1], ranks[1:]))
    edges: list[tuple[int, int]] = []
    last_on_engine: dict[str, int] = {}
    rows = {key: row for row, key in enumerate(facts.transfers.keys)}
    home, node = facts.machine.home, facts.n_steps
    for tensor, device in facts.plan.transfers.tolist():
        if facts.writer[tensor] >= 0:
            edges.append((int(facts.writer[tensor]), node))
        link = facts.machine.link_between.get((home[facts.home_device[tensor]], home[device]))
        for engine in facts.machine.links[link].engines if link is not None else ():
            if engine in last_on_engine:
                edges.append((last_on_engine[engine], node))
            last_on_engine[engine] = node
        edges += [(node, rank) for rank in facts.transfers.readers[rows[tensor, device]]]
        node += 1
    own = np.array(edges, dtype=np.int64).reshape(len(edges), 2)
    waits.append((own[:, 0], own[:, 1]))
    return np.concatenate([one for one, _ in waits]), np.concatenate([other for _, other in waits]), node


def _circle(before: Column, after: Column, nodes: int) -> list[int]:
    """The nodes of one circle, or nothing: take away nodes that wait for nobody, again and again."""
    if (before < after).all():
        return []  # one after another
    waits_for: list[set[int]] = [set() for _ in range(nodes)]
    for other, node in zip(before.tolist(), after.tolist(), strict=True):
        waits_for[node].add(other)
    followers: list[list[int]] = [[] for _ in waits_for]
    open_waits = [len(others) for others in waits_for]
    for node, others in enumerate(waits_for):
        for other in others:
            followers[other].append(node)
    free = [node for node, count in enumerate(open_waits) if count == 0]
    gone = 0
    while free:
        gone += 1
        for follower in followers[free.pop()]:
            open_waits[follower] -= 1
            if open_waits[follower] == 0:
                free.append(follower)
    if gone == len(waits_for):
        return []
    # Every node left waits for another one left: walk back until a node comes up again.
    node = next(node for node, count in enumerate(open_waits) if count > 0)
    path: list[int] = []
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = min(other for other in waits_for[node] if open_waits[other] > 0)
    return path[seen[node] :]


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
    wrong = (column < least) | (column > most)

    def describe(op: int) -> dict[str, Any]:
        value = int(column[op])
        what = f"'{name}' of op {op} '{program.op_name[op]}' is {value}: use {least} to {most}"
        return {"message": what, "op": op, "number": value}

    report.add_each("shape", wrong, describe)
    return not wrong.any()


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
    wrong = np.zeros(table.shape, dtype=np.bool_)
    for index, (_, least, most) in enumerate(columns):
        wrong[:, index] = (table[:, index] < least) | (table[:, index] > most)

    def describe(cell: int) -> dict[str, Any]:
        row, index = divmod(cell, len(columns))
        (column, least, most), value = columns[index], int(table[row, index])
        return {"message": f"{name} {row} has {column} {value}: use {least} to {most}", "number": value}

    report.add_each("shape", wrong.ravel(), describe)
    return not wrong.any()


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

    def describe(op: int) -> dict[str, Any]:
        name = program.op_name[op]
        return {"message": f"priority of op {op} '{name}' is {values[op]}: give a finite number", "op": op}

    report.add_each("shape", ~np.isfinite(values), describe)
