"""A topological order, or the cycle that forbids one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from loadmaster.errors import BadProgram


def topological_order(inputs: Sequence[Sequence[int]], names: Sequence[str]) -> list[int]:
    """Order ops so that each follows the ops in `inputs[op]`; ties by position.

    Raises `BadProgram` with the ops of a cycle if there is one.
    """
    waiting = [len(sources) for sources in inputs]
    users: list[list[int]] = [[] for _ in inputs]
    for op, sources in enumerate(inputs):
        for source in sources:
            users[source].append(op)
    ready = [op for op, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for user in users[op]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) == len(inputs):
        return order
    cycle = _cycle(inputs, waiting)
    shown = " -> ".join(names[op] for op in [*cycle[:8], cycle[0]])
    raise BadProgram(
        f"the ops form a cycle of {len(cycle)}: {shown}",
        object=names[cycle[0]],
        number=len(cycle),
        remedy="break it, or unroll the loop it stands for",
    )


def _cycle(inputs: Sequence[Sequence[int]], waiting: Sequence[int]) -> list[int]:
    # Every op that still waits has an input that still waits: walk back until one repeats.
    op = next(op for op, count in enumerate(waiting) if count)
    seen: dict[int, int] = {}
    path: list[int] = []
    while op not in seen:
        seen[op] = len(path)
        path.append(op)
        op = next(source for source in inputs[op] if waiting[source])
    return path[seen[op] :][::-1]
