"""`Script`: a plan and a graph as one flat list of actions. Plain data; nothing is decided later.

A *slot* is the number of a tensor of the Program; a run keeps one value per slot. Moments are
ranks: the step that runs k-th has rank k, -1 is before the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.torch.captured import Captured

ALONE = -1
"""As a part: the call's result is one tensor, not a tuple."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an argument of a call is a tensor."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """One op of the graph with its arguments; `Slot`s stand for tensors."""

    op: int
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[int, int], ...]
    """(part of the result or ALONE, slot)."""
    slots: tuple[tuple[int, int], ...] = field(init=False)
    """(place among the arguments, slot): looked up once, as every run needs them."""
    nested: tuple[int, ...] = field(init=False)
    """Places of lists that may have slots in them."""

    def __post_init__(self) -> None:
        places = list(enumerate(self.args))
        slots = tuple((at, each.number) for at, each in places if type(each) is Slot)
        nested = tuple(at for at, each in places if type(each) is list and slots_of(each))
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "nested", nested)


class FastResidency(NamedTuple):
    """A tensor in fast memory, from the first to the last rank; first = -1: between runs too."""

    tensor: int
    first: int
    last: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes [low, high) of a tensor go into fast memory, or out of it."""

    row: int
    slot: int
    inward: bool
    low: int
    high: int
    residency: int
    """The residency that it fills or reads."""
    opens: bool = False
    """The residency begins with it."""
    after: tuple[int, ...] = ()
    """Copies out of room that this one may be given: it waits for them too."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens around one op, in this order."""

    waits: tuple[int, ...]
    """Rows of the copies that the op waits for."""
    views: tuple[Call, ...]
    call: Call
    residencies: tuple[int, ...]
    """The residencies that its results begin, one per result."""
    sends: tuple[Move, ...]
    drops: tuple[int, ...]
    fetches: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One of the results: a root's value, and the views that lead from it."""

    what: str
    name: str
    slot: int
    """-1: no tensor of the Program."""
    root: int
    views: tuple[Call, ...]
    at_host: bool
    node: str
    """Of what was given and comes back as it is."""


@dataclass(frozen=True, slots=True)
class Script:
    """All of a run."""

    fetches: tuple[Move, ...]
    """Those issued before the first step."""
    steps: tuple[Step, ...]
    waits: tuple[int, ...]
    """Awaited at the end."""
    residencies: tuple[FastResidency, ...]
    leaves: tuple[Leaf, ...]
    copies: int
    """How many rows of copies there are."""
    moved: tuple[int, ...]
    """Tensors that need room on the host beside what is given: those copied out."""
    peak: int
    """Most bytes of fast memory that are held at once."""


class Calls:
    """The calls of one graph, in the order in which a script needs them."""

    def __init__(self, captured: Captured, device: Any) -> None:
        torch = require("torch", "torch")
        self.captured, self.program = captured, captured.program
        self.device, self._device_type = torch.device(device), torch.device
        self.nodes = {node.name: node for node in captured.graph.nodes}
        self._own = own_ops(torch)
        aten = torch.ops.aten
        self._strided = {aten.as_strided.default: 3, aten.as_strided_scatter.default: 4}
        """Where the offset is among the arguments."""
        self._alive: dict[int, set[int]] = {}
        """Root -> the slots of its views that hold something now."""

    def call(self, op: int) -> Call:
        node, renamed = self.nodes[self.captured.op_node[op]], self.captured.renamed.get(op, {})
        kwargs = {name: self._argument(value, renamed) for name, value in node.kwargs.items()}
        args = tuple(self._argument(value, renamed) for value in node.args)
        results = tuple((part, renamed.get(slot, slot)) for part, slot in self._results(node))
        if node.target in self._strided:
            args, kwargs = _with_distance(node, args, self._strided[node.target]), {}
        return Call(op, self._own.get(node.target, node.target), args, kwargs, results)

    def views_for(self, call: Call) -> tuple[Call, ...]:
        """The views to make so that a call finds its arguments."""
        made: list[Call] = []
        for slot in slots_of((call.args, call.kwargs)):
            self._show(slot, made)
        return tuple(made)

    def drop(self, root: int) -> list[int]:
        """The slots to clear so that a root's memory is free: its own and those of its views."""
        return [root, *sorted(self._alive.pop(root, ()))]

    def path(self, slot: int) -> tuple[Call, ...]:
        """The views that lead from the root of a slot to it."""
        calls: list[Call] = []
        while self.program.tensor_alias[slot] != slot:
            op = int(self.program.producer[slot])
            calls.append(self.call(op))
            slot = int(self.program.reads(op)[0])
        return tuple(reversed(calls))

    def _show(self, slot: int, made: list[Call]) -> None:
        root = int(self.program.tensor_alias[slot])
        alive = self._alive.setdefault(root, set())
        if slot == root or slot in alive:
            return
        op = int(self.program.producer[slot])
        self._show(int(self.program.reads(op)[0]), made)
        call = self.call(op)
        alive.update(number for _, number in call.results)
        made.append(call)

    def _argument(self, value: Any, renamed: Mapping[int, int]) -> Any:
        """An argument with slots in place of nodes, and this device in place of the tracer's."""
        if hasattr(value, "all_input_nodes"):
            return self._tensors(value, renamed)
        if isinstance(value, list | tuple):
            return [self._argument(each, renamed) for each in value]
        return self.device if isinstance(value, self._device_type) else value

    def _tensors(self, node: Any, renamed: Mapping[int, int]) -> Any:
        at = self.captured.tensor_at
        if not isinstance(node.meta.get("val"), list | tuple):
            if at.get((node.name, 0), -1) < 0:
                raise BadProgram(
                    f"'{node.name}' is no tensor of the program",
                    object=node.name,
                    remedy="capture the module again",
                )
            return Slot(renamed.get(at[node.name, 0], at[node.name, 0]))
        count = sum(hasattr(part, "dtype") for part in node.meta["val"])
        slots = [at[node.name, part] for part in range(count)]
        return [Slot(renamed.get(slot, slot)) for slot in slots]

    def _results(self, node: Any) -> tuple[tuple[int, int], ...]:
        at, value = self.captured.tensor_at, node.meta["val"]
        if not isinstance(value, list | tuple):
            return ((ALONE, at[node.name, 0]),)
        parts = [part for part, each in enumerate(value) if hasattr(each, "dtype")]
        found = [(part, at.get((node.name, number), -1)) for number, part in enumerate(parts)]
        return tuple((part, slot) for part, slot in found if slot >= 0)


def _with_distance(node: Any, args: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """Arguments of a strided view with its distance from what it shows in place of the offset in a storage:
    the tracer's storage begins elsewhere than ours."""
    given = node.args[place] if len(node.args) > place else node.kwargs.get("storage_offset")
    start = int(node.args[0].meta["val"].storage_offset())
    return (*args[:place], 0 if given is None else int(given) - start)


def own_ops(torch: Any) -> dict[Any, Callable[..., Any]]:
    """What stands in for ops that look at all of an argument's storage, which may be all of the fast memory
    here: some begin with a copy of it, and strided views count from its start. And for views of what a kernel
    lays out otherwise than its traced twin says. These give the same."""
    aten = torch.ops.aten

    def room(like: Any) -> Any:
        if any(n > 1 and step == 0 for n, step in zip(like.shape, like.stride(), strict=True)):
            return torch.empty(like.shape, dtype=like.dtype, device=like.device)
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)

    def copy(into: Any, source: Any, non_blocking: bool = False) -> Any:
        return room(into).copy_(source)

    def as_strided(source: Any, size: Any, stride: Any, distance: int) -> Any:
        return source.as_strided(size, stride, source.storage_offset() + distance)

    def view(source: Any, size: Any) -> Any:
        try:
            return aten.view.default(source, size)
        except RuntimeError:  # softplus_backward of transposed gradients, for one
            return aten.reshape.default(source, size)

    def scatter(view: Callable[..., Any]) -> Callable[..., Any]:
        def scattered(into: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            made = room(into).copy_(into)
            view(made, *args, **kwargs).copy_(source)
            return made

        return scattered

    return {
        aten.view.default: view,
        aten.copy.default: copy,
        aten.as_strided.default: as_strided,
        aten.as_strided_scatter.default: scatter(as_strided),
        aten.slice_scatter.default: scatter(aten.slice.Tensor),
        aten.select_scatter.default: scatter(aten.select.int),
        aten.diagonal_scatter.default: scatter(aten.diagonal.default),
    }


def slots_of(value: Any) -> list[int]:
    """The slots in arguments, in order."""
    if type(value) is Slot:
        return [value.number]
    if isinstance(value, list | tuple):
        return [slot for each in value for slot in slots_of(each)]
    return slots_of(list(value.values())) if isinstance(value, dict) else []
