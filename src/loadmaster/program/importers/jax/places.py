"""Which values share one place: dead nodes go, needless copies go, in-place writes are found.

Views share the place of what they reinterpret. A node may write over its operand if nobody
reads that afterwards: the importer's promise behind every in-place tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadmaster.program.importers.jax.costs import cost_of, estimate
from loadmaster.program.importers.jax.walk import LITERAL, Node, Walk
from loadmaster.program.op_costs import Cost, each, move
from loadmaster.program.program import TieKind


class Places:
    """The live nodes of a walk, their costs, and the ties between their values."""

    def __init__(self, walk: Walk, given: Iterable[int], donated: Iterable[int], results: Sequence[int]):
        self.walk = walk
        self.results = list(results)
        self.nodes = _live(walk, results)
        self.costs = [_cost(walk, node) for node in self.nodes]
        self.ties: list[tuple[TieKind, int, int, int]] = []
        """(kind, source, target, position of the node or number of the loop)."""
        self.inplace: set[int] = set()
        """Positions of nodes that write over operand 0."""
        self._given = set(given)
        self._fixed = self._given - set(donated)
        self._parent = list(range(len(walk.types)))
        self._over: dict[int, int] = {}
        """Place by place: the one that it continues."""
        self._overwritten: set[int] = set()
        self._kept: set[int] = set()
        """Places of results: nothing is written over them."""
        self._forward: dict[int, int] = {}
        """Copies that are not needed: what they copy."""
        self._last_read: dict[int, int] = {}
        self._made: dict[int, int] = {}
        self._scan_nodes()

    def place(self, value: int) -> int:
        """The value that stands for all that share its storage as views."""
        parent = self._parent
        while parent[value] != value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    def value(self, value: int) -> int:
        """The value that is really there: the source of a copy that was not needed."""
        while value in self._forward:
            value = self._forward[value]
        return value

    def settle(self, updates: Sequence[tuple[int, int]]) -> None:
        """Find all ties; `updates` pairs a given value with the number of the result that replaces it."""
        self._own_results(updates)
        self._kept = {self.place(result) for result in self.results if result != LITERAL}
        self._drop_copies()
        for loop, record in enumerate(self.walk.loops):
            for old, new in record.carried:
                self._carry(loop, old, new)
        for position, node in enumerate(self.nodes):
            if self.costs[position].over is not None:
                self._write_over(position, node)
        for source, number in updates:
            self._replace(source, self.results[number])

    def is_dropped(self, node: Node) -> bool:
        return node.elidable and node.results[0] in self._forward

    def producer(self, value: int) -> int:
        """The position of the node that makes a value, or -1."""
        return self._made.get(self.value(value), -1)

    def _scan_nodes(self) -> None:
        for position, (node, cost) in enumerate(zip(self.nodes, self.costs, strict=True)):
            for operand in node.operands:
                if operand != LITERAL:
                    self._last_read[self.place(operand)] = position
            for result in node.results:
                self._made[result] = position
            if cost.view:
                self._parent[node.results[0]] = self.place(node.operands[0])

    def _own_results(self, updates: Sequence[tuple[int, int]]) -> None:
        """A result that replaces an argument needs a place of its own: copy what is given or used twice."""
        taken: set[int] = set()
        for source, number in updates:
            result = self.results[number]
            if result == LITERAL or self.place(result) == source:
                continue
            if self.place(result) in self._given or self.place(result) in taken:
                result = self._copy(result)
                self.results[number] = result
            taken.add(self.place(result))

    def _copy(self, value: int) -> int:
        type = self.walk.types[value]
        copy = self.walk.value(type)
        self._parent.append(copy)
        position = len(self.nodes)
        self.nodes.append(Node("copy", {}, [value], [type], [copy], "", False, -1, -1))
        self.costs.append(each("copy", type.elements))
        self._last_read[self.place(value)] = position
        self._made[copy] = position
        return copy

    def _drop_copies(self) -> None:
        """First the copies at the end of loops: whether one before is needed depends on them.

        A dropped copy still counts as a read of its source, at its position: what a loop
        carries lives to the end of the iteration.
        """
        copies = [i for i, node in enumerate(self.nodes) if node.elidable]
        if not copies:
            return
        leaving: dict[int, tuple[int, int]] = {}
        entering: dict[int, tuple[int, int]] = {}
        for loop, record in enumerate(self.walk.loops):
            for old, new in record.carried:
                leaving[new], entering[old] = (loop, old), (loop, new)
        taken: set[int] = set()
        for position in copies:
            (source,), (copy,) = self.nodes[position].operands, self.nodes[position].results
            if copy in leaving and self._needless_at_end(source, *leaving[copy], taken):
                taken.add(self.place(source))
                self._drop(position)
        for position in copies:
            node = self.nodes[position]
            (copy,) = node.results
            if copy in leaving or copy in self._forward:
                continue
            left = self.place(entering[copy][1]) if copy in entering else self.place(copy)
            if copy not in entering or self._may_overwrite(node.operands[0], position, node.loop, left):
                self._drop(position)

    def _needless_at_end(self, value: int, loop: int, entered: int, taken: set[int]) -> bool:
        place = self.place(value)
        made = self._made.get(place)
        if made is None or place in taken or not self._inside(self.nodes[made].loop, loop):
            return False
        return self._last_read.get(self.place(entered), -1) <= made

    def _inside(self, loop: int, outer: int) -> bool:
        """Whether `loop` is `outer` or in it; -1 is outside all loops, around all of them."""
        while loop >= 0 and loop != outer:
            loop = self.walk.loops[loop].parent
        return loop == outer

    def _drop(self, position: int) -> None:
        node = self.nodes[position]
        source, copy = self.place(node.operands[0]), self.place(node.results[0])
        self._forward[node.results[0]] = node.operands[0]
        self._parent[copy] = source
        last = max(self._last_read.get(copy, -1), self._last_read.get(source, -1))
        self._last_read[source] = last
        if copy in self._kept:
            self._kept.add(source)

    def _carry(self, loop: int, old: int, new: int) -> None:
        if old not in self._made or new not in self._made:
            return  # nobody reads it
        source, target = self.place(old), self.place(new)
        if self._last_read.get(source, -1) > self._made[target]:
            return
        self._tie(TieKind.CARRIED, source, target, loop)

    def _tie(self, kind: TieKind, source: int, target: int, at: int) -> None:
        self._over[target] = source
        self._overwritten.add(source)
        self.ties.append((kind, source, target, at))

    def _write_over(self, position: int, node: Node) -> None:
        operand = self.value(node.operands[0]) if node.operands[0] != LITERAL else LITERAL
        result = node.results[0]
        if operand == LITERAL:  # the first part of a stack: there is nothing to keep
            self.inplace.add(position)
        elif self._may_overwrite(operand, position, node.loop, self.place(result)):
            self.inplace.add(position)
            self._tie(TieKind.INPLACE, self.place(operand), result, position)

    def _may_overwrite(self, value: int, position: int, loop: int, result: int) -> bool:
        """Whether nobody needs a value after the node at `position`, which leaves `result` there."""
        place = self.place(value)
        if place in self._fixed or place in self._kept or self._last_read.get(place, -1) > position:
            return False
        made = self._made.get(place, -1)
        if self._inside(self.nodes[made].loop if made >= 0 else -1, loop):
            return True
        # Made outside the loop, it is there for the next iteration only as what the loop carries.
        return loop >= 0 and any(
            self.place(old) == place and self.place(new) == result
            for old, new in self.walk.loops[loop].carried
        )

    def _replace(self, source: int, result: int) -> None:
        """Let a result take the place of an argument."""
        if result == LITERAL or self.place(result) == source or source in self._kept:
            return
        target = self.place(result)
        first = target
        while first in self._over:
            first = self._over[first]
        if first == source:
            return  # written in place all the way
        made = self._made.get(first, -1)
        free = made >= 0 and self.nodes[made].loop < 0 and source not in self._overwritten
        if free and self._last_read.get(source, -1) <= made:
            self._tie(TieKind.INPLACE, source, first, made)
        else:
            self.ties.append((TieKind.DONATED, source, target, -1))


def _live(walk: Walk, results: Sequence[int]) -> list[Node]:
    """The nodes whose results somebody needs, in order."""
    needed = set(results)
    while True:
        live = []
        for node in reversed(walk.nodes):
            if not needed.isdisjoint(node.results):
                live.append(node)
                needed.update(node.operands)
        more = _needed_by_loops(walk, needed) - needed
        if not more:
            return live[::-1]
        needed |= more


def _needed_by_loops(walk: Walk, needed: set[int]) -> set[int]:
    """What the next iteration reads, this one must leave; and a loop must know when to end."""
    more: set[int] = set()
    used = {node.loop for node in walk.nodes if not needed.isdisjoint(node.results)}
    for number, loop in enumerate(walk.loops):
        more.update(new for old, new in loop.carried if old in needed)
        if number in used:
            more.add(loop.condition)
    return more


def _cost(walk: Walk, node: Node) -> Cost:
    results = [walk.types[result] for result in node.results]
    cost = cost_of(node.primitive, node.params, node.operand_types, results)
    if cost is None:
        return estimate(node.primitive, results)
    if cost.view and node.operands[0] == LITERAL:
        return move("broadcast")  # there is nothing to look at: the number is written out
    return cost
