"""A graph of calls over numbered values, before it becomes a Program. Plain data, no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadmaster.program.importers.torch.calls import Call, Cost, Type
from loadmaster.program.importers.torch.costs import cost_of, estimate
from loadmaster.program.program import TensorKind


@dataclass(slots=True)
class Value:
    """A tensor. A view's `base` is what it shows."""

    type: Type
    name: str
    bytes: int
    base: Value | None = None
    given: TensorKind | None = None
    """Weight, input or state; None: a call makes it."""
    fast: bool = True
    tensor: int = -1

    @property
    def root(self) -> Value:
        value = self
        while value.base is not None:
            value = value.base
        return value


@dataclass(slots=True)
class Step:
    """One call. `operands` are aligned with `call.operands`, `results` with `call.results`."""

    name: str
    call: Call
    operands: list[Value]
    results: list[Value]
    scope: str = ""
    source: int = -1
    view: bool = False
    backward: bool = False
    random: bool = False
    """It gives other numbers each time."""
    cost: Cost = field(init=False)

    def __post_init__(self) -> None:
        self.cost = cost_of(self.call) or estimate(self.call)


@dataclass
class Graph:
    """All of it, in the order in which it runs."""

    given: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    updates: list[tuple[Value, Value]] = field(default_factory=list)
    """(state, what takes its place at the end)."""
    folded: int = 0
    """Nodes that move and compute nothing."""


def made(type: Type, name: str, base: Value | None = None) -> Value:
    """A value that a call makes. A view has no more bytes than what it shows: `expand` repeats them."""
    size = type.bytes if base is None else min(type.bytes, base.bytes)
    return Value(type, name, size, base)


def live(graph: Graph) -> list[Step]:
    """The steps whose results somebody needs."""
    needed = {id(value) for value in [*graph.outputs, *(new for _, new in graph.updates)]}
    kept: list[Step] = []
    for step in reversed(graph.steps):
        if any(id(result) in needed for result in step.results):
            kept.append(step)
            needed |= {id(operand) for operand in step.operands}
    return kept[::-1]


def own_updates(graph: Graph) -> None:
    """State needs a new value in a place of its own: what is given or taken twice is copied."""
    taken: set[int] = set()
    for number, (state, new) in enumerate(graph.updates):
        if new.root is state:
            continue
        if new.root.given is not None or id(new.root) in taken:
            call = Call("clone", {"self": new.type}, [new.type])
            copy = made(new.type, f"{state.name}.new")
            graph.steps.append(Step(f"copy_{state.name}", call, [new], [copy]))
            graph.updates[number] = (state, copy)
            new = copy
        taken.add(id(new.root))


def needed_results(steps: Sequence[Step], graph: Graph) -> set[int]:
    """Identities of values that are read or leave the program."""
    read = {id(operand) for step in steps for operand in step.operands}
    return read | {id(v) for v in graph.outputs} | {id(new) for _, new in graph.updates}
