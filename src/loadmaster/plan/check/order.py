"""Rule `order`: the order is a permutation, and nothing is read before it is written."""

from __future__ import annotations

from loadmaster.plan.check.facts import Facts
from loadmaster.plan.check.report import Report
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program


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
