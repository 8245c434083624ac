"""Rules `shape`, `order`, `device`, `colocation`, `fusion` and `reach`: what can be read at all, what comes
before what, who may run where and together with whom.

A plan may hold anything. What is behind `check_shape` may trust lengths and index ranges, and behind
`check_permutation` that every op has one position.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, MOST_BYTE, NO_OFFSET, QUEUES, TIES, Plan
from loadmaster.program.program import CANNOT_RUN, Program, TieKind
from reference.check.facts import Facts, Report


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
    table = costs.tolist()
    for op, device in enumerate(facts.device):
        if not facts.is_view[op] and table[op][device] == CANNOT_RUN:
            able = [i for i, cost in enumerate(table[op]) if cost != CANNOT_RUN]
            remedy = f"move it to {facts.device_text(able[0])}" if able else "no device can run it"
            report.add(
                "device",
                f"{facts.op_text(op)} can't run on {facts.device_text(device)} ({device}): {remedy}",
                op=op,
                number=device,
            )


def _links(facts: Facts, report: Report) -> None:
    """Transfers go from home to home."""
    home = facts.machine.home
    for (tensor, device), readers in facts.transfers.items():
        source = facts.home_device[tensor]
        if (home[source], home[device]) not in facts.machine.link_between:
            op = facts.steps[readers[0]].number
            report.add(
                "device",
                f"{facts.op_text(op)} on {facts.device_text(device)} reads "
                f"{facts.tensor_text(tensor)} of {facts.device_text(source)} and there is no "
                f"link from {facts.memory_text(home[source])} to "
                f"{facts.memory_text(home[device])}: move it to device {source}",
                tensor=tensor,
                op=op,
                number=device,
            )


def _listed_transfers(facts: Facts, report: Report) -> None:
    """A plan that lists transfers lists each one that is needed, once, and no other."""
    if facts.plan.transfers is None:
        return
    seen: set[tuple[int, int]] = set()
    for tensor, device in facts.plan.transfers.tolist():
        what = f"the transfer of {facts.tensor_text(tensor)} to {facts.device_text(device)}"
        if (tensor, device) not in facts.transfers:
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
    for (tensor, device), readers in facts.transfers.items():
        if (tensor, device) not in seen:
            op = facts.steps[readers[0]].number
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
    group_device: dict[int, int] = {}
    for op, group in enumerate(facts.program.op_group.tolist()):
        if group >= 0 and not facts.is_view[op]:
            expected = group_device.setdefault(group, facts.device[op])
            if facts.device[op] != expected:
                report.add(
                    "colocation",
                    f"{facts.op_text(op)} of group {group} is on device "
                    f"{facts.device[op]} and the group on device {expected}: move it there",
                    op=op,
                    number=facts.device[op],
                )
    tensor_group = facts.program.tensor_group.tolist()
    for tensor in facts.roots:
        group, device = tensor_group[tensor], facts.home_device[tensor]
        unused = facts.writer[tensor] < 0 and not facts.readers[tensor]
        if group < 0 or facts.is_input[tensor] or unused:
            continue
        expected = group_device.setdefault(group, device)
        if device != expected:
            writer = facts.writer[tensor]
            report.add(
                "colocation",
                f"{facts.tensor_text(tensor)} of group {group} lives on device "
                f"{device} and the group on device {expected}: move the op that writes or first "
                "reads it",
                tensor=tensor,
                number=device,
                op=facts.steps[writer].number if writer >= 0 else None,
            )
    for kind, source, target, op in facts.ties:
        unused = facts.writer[source] < 0 and not facts.readers[source]
        if kind != TieKind.INPLACE or op < 0 or facts.is_input[source] or unused:
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


def check_fusion(facts: Facts, report: Report) -> None:
    """The members of a step have one device, one loop, and at most one hard group."""
    group = facts.program.op_group.tolist()
    for step in facts.steps:
        hard = next((group[op] for op in step.members if group[op] >= 0), -1)
        for op in step.members[1:]:
            fused = f"{facts.op_text(op)} is fused with {facts.op_text(step.number)}"
            if facts.device[op] != step.device:
                report.add(
                    "fusion",
                    f"{fused} and is on device {facts.device[op]} instead of {step.device}: use one device",
                    op=op,
                    number=facts.device[op],
                )
            if facts.loop[op] != facts.loop[step.number]:
                report.add(
                    "fusion",
                    f"{fused} and is in loop {facts.loop[op]} instead of "
                    f"{facts.loop[step.number]}: fuse within one loop",
                    op=op,
                    number=facts.loop[op],
                )
            if group[op] >= 0 and group[op] != hard:
                report.add(
                    "fusion",
                    f"{fused} and is in the hard group {group[op]} instead of {hard}: fuse within one group",
                    op=op,
                    number=group[op],
                )


def check_reach(facts: Facts, report: Report) -> None:
    """On a machine whose ops work in the first memory of their device alone, all that a step reads and
    writes is there, whether it takes many of its bytes or none. Empty tensors are nowhere."""
    if facts.machine.rules.reach != "first":
        return
    for rank, step in enumerate(facts.steps):
        first = facts.machine.reach[step.device][0]
        for tensor in dict.fromkeys([*step.reads, *step.writes]):
            memory = facts.serves(rank, tensor)[0]
            if memory != first and facts.size[tensor]:
                report.add(
                    "reach",
                    f"{facts.op_text(step.number)} uses {facts.tensor_text(tensor)} "
                    f"({facts.size[tensor]:,} bytes) in {facts.memory_text(memory)}, and "
                    f"{facts.device_text(step.device)} works in {facts.memory_text(first)} alone: "
                    "copy it there before",
                    tensor=tensor,
                    op=step.number,
                    number=facts.size[tensor],
                )


def check_permutation(program: Program, plan: Plan, report: Report) -> bool:
    """Every op has one place. Without it, positions have no meaning."""
    if plan.order is None:
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
    n_steps = len(facts.steps)
    waits_for = [
        {facts.writer[tensor] for tensor in step.reads} - {rank, -1} for rank, step in enumerate(facts.steps)
    ]
    for _, _, op, users in facts.overwrites:
        waits_for[facts.step_of[op]].update(users)
    circle = _circle(waits_for)
    transfers = [] if facts.plan.transfers is None else facts.plan.transfers.tolist()
    is_complete = bool(transfers) and sorted(map(tuple, transfers)) == list(facts.transfers)
    if not circle and facts.in_order and is_complete:
        # The list is complete and the steps alone have no circle: is its order to blame?
        circle = _circle(_waits_with_transfers(facts, waits_for))
        if circle and not report.count("order"):
            rank = min((node for node in circle if node < n_steps), default=0)
            op = facts.steps[rank].number
            report.add(
                "order",
                f"{facts.op_text(op)} can never start: the order of the transfers "
                f"makes {len(circle)} steps and transfers wait for each other",
                op=op,
                number=len(circle),
            )
    elif circle:
        op = min(facts.steps[rank].number for rank in circle)
        others = ", ".join(facts.op_text(facts.steps[rank].number) for rank in circle[:4])
        report.add(
            "order",
            f"{facts.op_text(op)} waits for itself through {len(circle)} fused "
            f"steps ({others}): fuse fewer ops",
            op=op,
            number=len(circle),
        )


def _ops_after_writers(facts: Facts, report: Report) -> set[tuple[int, int]]:
    """Views have a place in the order too. Returns the (op, tensor) that were reported."""
    producer = facts.program.producer.tolist()
    position = facts.position
    late: set[tuple[int, int]] = set()
    for op, tensors in enumerate(facts.op_reads):
        for tensor in tensors:
            maker = producer[tensor]
            if maker >= 0 and maker != op and position[maker] > position[op]:
                late.add((op, facts.root[tensor]))
                report.add(
                    "order",
                    f"{facts.op_text(op)} reads {facts.tensor_text(tensor)} at "
                    f"position {position[op]} and {facts.op_text(maker)} writes it at "
                    f"position {position[maker]}: swap them",
                    tensor=tensor,
                    op=op,
                    number=position[maker],
                )
    return late


def _steps_after_writers(facts: Facts, late: set[tuple[int, int]], report: Report) -> None:
    """A step runs at its smallest position, so what it reads must be written before that."""
    for rank, step in enumerate(facts.steps):
        for op in step.members:
            for tensor in dict.fromkeys(facts.root[tensor] for tensor in facts.op_reads[op]):
                writer = facts.writer[tensor]
                if writer > rank and (op, tensor) not in late:
                    other = facts.steps[writer]
                    report.add(
                        "order",
                        f"{facts.op_text(op)} reads {facts.tensor_text(tensor)} in "
                        f"the fused step at position {step.position}, and the step of "
                        f"{facts.op_text(other.number)}, which writes it, runs at position "
                        f"{other.position}: fuse other ops or change the order",
                        tensor=tensor,
                        op=op,
                        number=other.position,
                    )


def _waits_with_transfers(facts: Facts, waits_for: list[set[int]]) -> list[set[int]]:
    """The same graph with a node for each listed transfer, after those of the steps."""
    n_steps = len(facts.steps)
    graph = [set(before) for before in waits_for]
    last_on_device: dict[int, int] = {}
    for rank, step in enumerate(facts.steps):
        if step.device in last_on_device:
            graph[rank].add(last_on_device[step.device])
        last_on_device[step.device] = rank
    last_on_engine: dict[str, int] = {}
    home = facts.machine.home
    listed = facts.plan.transfers.tolist() if facts.plan.transfers is not None else []
    for tensor, device in listed:
        node = len(graph)
        graph.append({facts.writer[tensor]} - {-1})
        link = facts.machine.link_between.get((home[facts.home_device[tensor]], home[device]))
        for engine in facts.machine.links[link].engines if link is not None else ():
            if engine in last_on_engine:
                graph[node].add(last_on_engine[engine])
            last_on_engine[engine] = node
        for rank in facts.transfers.get((tensor, device), []):
            graph[rank].add(node)
    assert len(graph) == n_steps + len(listed)
    return graph


def _circle(waits_for: list[set[int]]) -> list[int]:
    """The nodes of one circle, or nothing: take away nodes that wait for nobody, again and again."""
    followers: list[list[int]] = [[] for _ in waits_for]
    open_waits = [len(before) for before in waits_for]
    for node, before in enumerate(waits_for):
        for other in before:
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
