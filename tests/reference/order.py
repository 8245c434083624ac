"""Orders by definition: bytes alive after a set of ops, and the least peak over all sets. Slow and obvious."""

from __future__ import annotations

from functools import cache

from loadmaster.order.graph import OrderGraph


def alive(graph: OrderGraph, ran: frozenset[int]) -> int:
    """Bytes of values that were made, or given, and that somebody who has not run, or the end, needs."""
    return sum(
        size
        for size, opener, users, kept in zip(graph.size, graph.opener, graph.users, graph.kept, strict=True)
        if (opener < 0 or opener in ran) and (kept or not ran.issuperset(users))
    )


def during(graph: OrderGraph, ran: frozenset[int], op: int) -> int:
    """Bytes while an op runs: those alive before it, and what it makes."""
    return alive(graph, ran) + sum(s for s, by in zip(graph.size, graph.opener, strict=True) if by == op)


def least_peak(graph: OrderGraph) -> int:
    """Of all orders, over all sets of ops that can have run."""
    everything = frozenset(range(len(graph.before)))

    @cache
    def rest(ran: frozenset[int]) -> int:
        if ran == everything:
            return alive(graph, ran)
        return min(
            max(during(graph, ran, op), rest(ran | {op}))
            for op in everything - ran
            if ran.issuperset(graph.before[op])
        )

    return max(alive(graph, frozenset()), rest(frozenset()))
