"""Steps: what an ONNX graph will be in the program, before anything is added to one."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from loadmaster.program.importers.onnx.costs import TYPED_BY_OPERAND
from loadmaster.program.importers.onnx.values import Value
from loadmaster.program.op_costs import Cost


@dataclass(eq=False)
class Step:
    """An op to be."""

    name: str
    cost: Cost
    reads: list[Value]
    writes: list[Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    scope: str = ""
    source: int = -1
    write_bytes: int | None = None
    """Where it writes only a part of its result."""

    @property
    def dtype(self) -> str | None:
        typed = self.cost.kind in TYPED_BY_OPERAND and self.reads
        return self.reads[0].dtype if typed else None


@dataclass(eq=False)
class Repeat:
    """A loop to be: `carried` pairs what it enters with and what each trip leaves in its place."""

    trips: int
    body: list[Step | Repeat]
    carried: list[tuple[Value, Value]]


Items = list[Step | Repeat]


@dataclass
class Notes:
    """What the user should hear of."""

    folded: int = 0
    branches: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)

    def add(self, other: Notes) -> None:
        self.folded += other.folded
        self.branches += other.branches
        self.loops += other.loops


@dataclass
class Frame:
    """A graph that is being planned."""

    values: ChainMap[str, Value]
    declared: dict[str, Any]
    """Types that the file states, by name."""
    uses: Counter[str]
    prefix: str
    """In front of the names of a loop's body."""
    source: int
    """Position of the outermost node around it, or -1."""


def steps(items: Items) -> Iterator[Step]:
    """All steps, those in loops included."""
    for item in items:
        if isinstance(item, Step):
            yield item
        else:
            yield from steps(item.body)


def flops(items: Items) -> int:
    """All flops, those in loops as often as they run."""
    total = 0
    for item in items:
        if isinstance(item, Step):
            total += item.cost.flops
        else:
            total += item.trips * flops(item.body)
    return total


def pruned(items: Items, needed: set[int]) -> Items:
    """Without what nobody needs. `needed` holds ids of values, and gets those that are read."""
    kept: Items = []
    for item in reversed(items):
        if isinstance(item, Repeat):
            item.body = _pruned_body(item, needed)
            item.carried = [pair for pair in item.carried if id(pair[1]) in needed]
            if item.body:
                kept.append(item)
            continue
        item.writes = [value for value in item.writes if id(value) in needed]
        if item.writes:
            needed.update(id(value) for value in item.reads)
            kept.append(item)
    return kept[::-1]


def _pruned_body(loop: Repeat, needed: set[int]) -> Items:
    # A trip needs what the trip before it left: repeat until no more is needed.
    while True:
        required = set(needed)
        body = pruned([_copy(item) for item in loop.body], required)
        more = {id(result) for state, result in loop.carried if id(state) in required} - needed
        if not more:
            needed |= required
            needed.update(id(state) for state, result in loop.carried if id(result) in needed)
            return body
        needed |= more


def _copy(item: Step | Repeat) -> Step | Repeat:
    # Pruning changes items, and a body may have to be pruned again from its whole.
    if isinstance(item, Step):
        return Step(**(vars(item) | {"writes": list(item.writes)}))
    return Repeat(item.trips, [_copy(inner) for inner in item.body], list(item.carried))
