"""Ops that may run one right after the other, in groups: a smaller graph with the same least peak.

`native/src/order/reduce.hpp` has the two rules and why they lose nothing: each order of the ops has an
order of the groups whose peak is no higher (`of_ops`), and each order of the groups is one of the ops with
the same peak (`ops`). So what is a bound of the one is a bound of the other.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from loadmaster.order.problem import PeakOrder

Order = npt.NDArray[np.int32]


class Groups:
    """The groups of a problem's nodes, numbered in a legal order."""

    def __init__(self, problem: PeakOrder) -> None:
        self.native, self._start, self._members, self._anchor = problem.native.reduced()

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self.native.ops

    @cached_property
    def held(self) -> npt.NDArray[np.int64]:
        """[groups] bytes that are there because of a group while it runs."""
        return self.native.held()

    def of_ops(self, order: npt.ArrayLike) -> Order:
        """The order of the groups that an order of the ops leads to: that of their anchors."""
        ops = np.asarray(order)
        place = np.empty(len(ops), dtype=np.int64)
        place[ops] = np.arange(len(ops))
        return np.argsort(place[self._anchor]).astype(np.int32)

    def ops(self, order: Order) -> Order:
        """The ops of an order of the groups."""
        sizes = np.diff(self._start)[order]
        ends = np.cumsum(sizes)
        inside = np.arange(len(self._members)) - np.repeat(ends - sizes, sizes)
        members: Order = self._members[np.repeat(self._start[:-1][order], sizes) + inside]
        return members
