"""Where an order can be cut into parts that do not depend on each other."""

from __future__ import annotations

import numpy as np

from loadmaster.problems.order.graph import OrderGraph


def separators(graph: OrderGraph) -> list[int]:
    """Nodes that every other node is before or after, whatever the order.

    All j < i are needed by i if each of them is needed by some k with j < k <= i: following these
    leads to i. All j > i need i if each of them needs some k with i <= k < j.
    """
    n = len(graph.node_op)
    first_after = np.full(n, n, dtype=np.int64)
    last_before = np.full(n, -1, dtype=np.int64)
    for node, before in enumerate(graph.before):
        for other in before:
            first_after[other] = min(first_after[other], node)
            last_before[node] = max(last_before[node], other)
    index = np.arange(n)
    led = np.concatenate([[-1], np.maximum.accumulate(first_after)[:-1]]) <= index
    leads = np.concatenate([np.minimum.accumulate(last_before[::-1])[::-1][1:], [n]]) >= index
    return [int(i) for i in np.flatnonzero(led & leads)]


def parts(graph: OrderGraph) -> list[tuple[int, int]]:
    """[begin, end) of the stretches of the program that follow each other in every order. They are
    the same ops in any order, because each ends with a separator."""
    ends = [*(i + 1 for i in separators(graph)), len(graph.node_op)]
    begins = [0, *ends[:-1]]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
