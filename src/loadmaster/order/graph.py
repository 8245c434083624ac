"""What an order is decided over: ops that must come before others, and values with their lives.

Follows section 6 of docs/simulation.md for one device: the bytes of an order are those that the
simulator counts in the device's home memory, weights and state left out (they are always there).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.errors import BadProgram
from loadmaster.program.hazards import overwrite_waits, overwriters, places
from loadmaster.program.program import GIVEN, PERSISTENT, Program, TensorKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OrderGraph:
    """Nodes are the ops that are no views, in program order."""

    node_op: Int32
    """[n] the op of each node"""
    before: list[list[int]]
    """Nodes that must run earlier."""
    size: list[int]
    """Bytes of each value."""
    opener: list[int]
    """The node that makes a value, or -1: it is given."""
    users: list[list[int]]
    """The nodes that need it, its opener left out."""
    kept: list[bool]
    """Whether it is there at the end."""
    resident: int
    """Bytes of weights and state: always there, and no part of the peak."""
    root: list[int] = field(default_factory=list)
    """The first tensor of each value."""

    def native(self) -> _core.OrderGraph:
        """The graph as the native core holds it."""
        before_start, before = _rows(self.before)
        user_start, user = _rows(self.users)
        return _core.OrderGraph(
            {
                "before_start": before_start,
                "before": before,
                "user_start": user_start,
                "user": user,
                "size": np.array(self.size, dtype=np.int64),
                "opener": np.array(self.opener, dtype=np.int32),
                "kept": np.array(self.kept, dtype=np.int8),
            }
        )


def order_graph(program: Program, alignment: int = 1) -> OrderGraph:
    """The graph of a program without loops."""
    if program.n_loops:
        raise BadProgram(
            f"program '{program.name}' has {program.n_loops} loops, and only straight programs "
            "can be put into another order",
            object=program.name,
            number=program.n_loops,
            remedy="give the lengths of its loops with --trip, so that they are unrolled",
        )
    return _Maker(program, alignment).graph()


class _Maker:
    def __init__(self, program: Program, alignment: int) -> None:
        self.program = program
        self.node_op = np.flatnonzero(~program.op_view).astype(np.int32)
        node = np.full(program.n_ops + 1, -1, dtype=np.int64)  # the last one: no op
        node[self.node_op] = np.arange(len(self.node_op))
        self.root = program.tensor_alias
        given = np.isin(program.tensor_kind, [int(kind) for kind in GIVEN])
        self.writer: list[int] = np.where(given, -1, node[program.producer]).tolist()
        self.place = places(program)
        size = np.zeros(program.n_tensors, dtype=np.int64)
        np.maximum.at(size, self.place[self.root], program.storage_bytes)
        self.place_size = -(-size // alignment) * alignment
        self.readers: list[list[int]] = [[] for _ in range(program.n_tensors)]
        real = ~program.op_view[program.read_op]
        for tensor, op in zip(
            self.root[program.read_tensor[real]].tolist(), node[program.read_op[real]].tolist(), strict=True
        ):
            if op != self.writer[tensor] and op not in self.readers[tensor][-1:]:
                self.readers[tensor].append(op)
        self.overwriter: list[int] = node[overwriters(program)].tolist()
        self.waits: list[list[int]] = node[overwrite_waits(program)].T.tolist()

    def graph(self) -> OrderGraph:
        program = self.program
        persistent = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
        always = set(self.place[self.root[persistent]].tolist())
        output = np.zeros(program.n_tensors, dtype=bool)
        output[self.root[program.tensor_kind == TensorKind.OUTPUT]] = True
        # What comes back as an input is the caller's own memory.
        output &= program.tensor_kind != TensorKind.INPUT
        opener, users, size, kept, root = [], [], [], [], []
        for chain in self._chains():
            first = chain[0]
            if int(self.place[first]) in always:
                continue
            begins = self.writer[first]
            needs = {r for t in chain for r in self.readers[t]} | {self.writer[t] for t in chain[1:]}
            is_output = bool(output[chain].any())
            if begins < 0 and not needs:
                continue  # an input that nobody reads
            opener.append(begins)
            users.append(sorted(needs - {begins}))
            size.append(int(self.place_size[self.place[first]]))
            kept.append(is_output)
            root.append(first)
        resident = sum(int(self.place_size[place]) for place in always)
        return OrderGraph(self.node_op, self._before(), size, opener, users, kept, resident, root)

    def _chains(self) -> Iterable[list[int]]:
        """Roots that follow each other in one place without a gap, each chain from its first."""
        # What a node writes, by the place: it takes the place of what it reads there.
        written = {(node, int(self.place[t])): t for t, node in enumerate(self.writer) if self.root[t] == t}
        follower = {
            tensor: written[node, int(self.place[tensor])]
            for tensor, node in enumerate(self.overwriter)
            if node >= 0 and node in self.readers[tensor]
        }
        followed = set(follower.values())
        for tensor in np.flatnonzero(self.root == np.arange(len(self.root))).tolist():
            if tensor in followed:
                continue
            chain = [tensor]
            while chain[-1] in follower:
                chain.append(follower[chain[-1]])
            yield chain

    def _before(self) -> list[list[int]]:
        earlier: list[set[int]] = [set() for _ in self.node_op]
        for tensor, readers in enumerate(self.readers):
            writer = self.writer[tensor]
            for reader in readers if writer >= 0 else ():
                earlier[reader].add(writer)
        for user, writer in self.waits:
            earlier[writer].add(user)
        return [sorted(row) for row in earlier]


def _rows(rows: list[list[int]]) -> tuple[Int64, Int32]:
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return start, np.array([entry for row in rows for entry in row], dtype=np.int32)


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


class Groups:
    """Nodes that may run one right after the other, in groups: a smaller graph with the same least peak.

    `native/src/order/reduce.hpp` has the two rules and why they lose nothing: each order of the nodes has an
    order of the groups whose peak is no higher (`of_ops`), and each order of the groups is one of the nodes
    with the same peak (`ops`). So what is a bound of the one is a bound of the other. Groups are numbered
    in a legal order.
    """

    def __init__(self, graph: _core.OrderGraph) -> None:
        self.native, self._start, self._members, self._anchor = graph.reduced()

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self.native.ops

    @cached_property
    def held(self) -> Int64:
        """[groups] bytes that are there because of a group while it runs."""
        return self.native.held()

    def of_ops(self, order: npt.ArrayLike) -> Int32:
        """The order of the groups that an order of the ops leads to: that of their anchors."""
        ops = np.asarray(order)
        place = np.empty(len(ops), dtype=np.int64)
        place[ops] = np.arange(len(ops))
        return np.argsort(place[self._anchor]).astype(np.int32)

    def ops(self, order: Int32) -> Int32:
        """The ops of an order of the groups."""
        sizes = np.diff(self._start)[order]
        ends = np.cumsum(sizes)
        inside = np.arange(len(self._members)) - np.repeat(ends - sizes, sizes)
        members: Int32 = self._members[np.repeat(self._start[:-1][order], sizes) + inside]
        return members
