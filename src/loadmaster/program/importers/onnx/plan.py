"""From an ONNX graph to steps: sizes, constants, views and costs, node by node.

Nothing is added to a program here, so that both branches of an If can be weighed and what nobody needs
can be dropped first. Of an If the branch with most flops is taken; a Loop or a Scan is unrolled, or
becomes one body that repeats.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loadmaster.errors import BadProgram, require
from loadmaster.program.build import clean_name
from loadmaster.program.importers import malformed, refuse_unknown_loops
from loadmaster.program.importers.onnx.costs import (
    NOT_TENSORS,
    RANDOM,
    TYPED_BY_OPERAND,
    Site,
    cost,
    unknown_cost,
)
from loadmaster.program.importers.onnx.read import STANDARD, node_name, sorted_nodes, uses
from loadmaster.program.importers.onnx.values import Sizes, Value, sparse_weight, weight
from loadmaster.program.op_costs import Cost, each, move

# Steps: what an ONNX graph will be in the program, before anything is added to one.


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
    refused: list[str] = field(default_factory=list)
    """Branches that were made for other inputs."""

    def add(self, other: Notes) -> None:
        self.folded += other.folded
        self.branches += other.branches
        self.loops += other.loops
        self.refused += other.refused


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


Planned = tuple[list[Value], Items]
"""The results of a node or a graph, and the steps that make them."""
Plan = Callable[["Planner", Any, str, Sequence[Value | None], Frame], Planned]

_MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a cost rule raises where operands or attributes are not what the op takes."""
MOST_VISITS = 400_000
"""Nodes of bodies and branches planned in all: each is planned more than once, nested ones that often again."""


class Planner:
    """Plans the graphs of one model."""

    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int]], trips: Mapping[str, int]) -> None:
        self.onnx = require("onnx", "onnx")
        self.sizes = Sizes(model, shapes)
        self.trips = dict(trips)
        self.loops_seen: set[str] = set()
        self.in_file_order = True
        self.notes = Notes()
        self._visits = 0

    def program(self, graph: Any) -> tuple[list[Value], list[Value], Items]:
        """Inputs, outputs and steps of the model's own graph."""
        inputs = self.sizes.inputs(graph)
        outputs, items = self.graph(graph, ChainMap({}), inputs)
        self.sizes.check_all_met(inputs)
        refuse_unknown_loops(self.trips, sorted(self.loops_seen))
        return list(inputs.values()), outputs, items

    def graph(
        self,
        graph: Any,
        outer: ChainMap[str, Value],
        bound: Mapping[str, Value],
        *,
        prefix: str = "",
        source: int = -1,
    ) -> tuple[list[Value], Items]:
        """Values of the graph's outputs, and the steps that make them."""
        nodes, in_order = sorted_nodes(graph)
        self.in_file_order &= in_order
        read = Counter(name for node in graph.node for name in uses(node))
        read.update(output.name for output in graph.output)
        declared = {info.name: info.type for info in (*graph.value_info, *graph.output)}
        frame = Frame(outer.new_child(), declared, read, prefix, source)
        frame.values.update((tensor.name, weight(tensor)) for tensor in graph.initializer)
        frame.values.update((s.values.name, sparse_weight(s)) for s in graph.sparse_initializer)
        frame.values.update(bound)
        items: Items = []
        for position, node in nodes:
            if any(read[name] for name in node.output):
                items += self._node(node, position, frame)
        return [self.value(output.name, frame, "the graph") for output in graph.output], items

    def value(self, name: str, frame: Frame, who: str) -> Value:
        """The value of that name, or an error that says who reads it."""
        if name not in frame.values:
            raise malformed(f"{who} reads '{clean_name(name)}', which nothing makes", clean_name(name))
        return frame.values[name]

    def _node(self, node: Any, position: int, frame: Frame) -> Items:
        label = node_name(node, position)
        self._visits += frame.source >= 0
        if self._visits > MOST_VISITS:
            raise BadProgram(
                f"the loops and branches around node '{label}' stand for more than {MOST_VISITS} nodes",
                object=label,
                number=MOST_VISITS,
                remedy="give fewer trips",
            )
        who = f"node '{label}' ({clean_name(node.op_type)})"
        inputs = [self.value(name, frame, who) if name else None for name in node.input]
        standard = node.domain in STANDARD
        if standard and node.op_type in _PLANS:
            plan = _PLANS[node.op_type]
            place = replace(frame, source=position if frame.source < 0 else frame.source)
            results, items = plan(self, node, label, inputs, place)
            if len(results) < len(node.output):
                raise malformed(
                    f"{who} has {len(node.output)} results and its graph makes {len(results)}",
                    label,
                    len(results),
                )
            frame.values.update((name, v) for name, v in zip(node.output, results, strict=False) if name)
            return items
        constant = node.op_type not in RANDOM and all(v is None or v.constant for v in inputs)
        constant &= standard or bool(inputs)
        constant |= standard and node.op_type in ("Shape", "Size")
        outputs = self.sizes.results(node, inputs, frame, who, constant)
        frame.values.update((name, v) for name, v in zip(node.output, outputs, strict=True) if v is not None)
        if constant:
            self.notes.folded += frame.source < 0
            return []
        return [self._step(node, label, position, inputs, outputs, frame, who)]

    def _step(
        self,
        node: Any,
        label: str,
        position: int,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value | None],
        frame: Frame,
        who: str,
    ) -> Step:
        try:
            attributes = {a.name: self.onnx.helper.get_attribute_value(a) for a in node.attribute}
            site = Site(node.op_type, inputs, outputs, attributes)
            does = (cost(site) if node.domain in STANDARD else None) or unknown_cost(site)
        except _MISFITS as error:
            raise BadProgram(
                f"{who} does not fit its operands: {type(error).__name__} {error}",
                object=label,
                remedy="check the model with onnx.checker",
            ) from None
        skipped = NOT_TENSORS.get(node.op_type, ()) if node.domain in STANDARD else ()
        reads = [v for i, v in enumerate(inputs) if v is not None and not (v.constant and i in skipped)]
        writes = [v for v in outputs if v is not None]
        if does.view:
            # A view of one array under another shape; anything else has to move bytes.
            does = does._replace(view=len(reads) == len(writes) == 1 and reads[0].bytes == writes[0].bytes)
            writes[0].base = reads[0] if does.view else None
        described = {"onnx": clean_name(node.op_type)}
        described |= {clean_name(k): v for k, v in attributes.items() if _is_short(v)}
        scope = clean_name(frame.prefix + node.name).rpartition("/")[0].strip("/")
        name = frame.prefix + node.name if node.name else ""
        return Step(
            name, does, reads, writes, described, scope, position if frame.source < 0 else frame.source
        )


def _is_short(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return len(numbers) <= 8 and all(
        isinstance(n, int) or (isinstance(n, float) and math.isfinite(n)) for n in numbers
    )


UNROLLED = 20_000
"""Ops up to which a loop is unrolled."""
_ENDLESS = 2**31
"""Trip counts from here on are how exporters write 'until the condition says so'."""


@dataclass(frozen=True)
class _Loop:
    """A Loop or a Scan, in one form."""

    label: str
    body: Any
    counts: bool
    """A Loop: its body takes the trip's number and the condition first, and makes the condition."""
    states: list[Value]
    sliced: list[tuple[Value, int]]
    """What each trip takes a slice of, along which axis (a Scan)."""
    stacked_axes: list[int]

    def bind(self, number: Value, states: list[Value], slices: list[Value]) -> dict[str, Value]:
        # A trip is only begun where the condition holds.
        holds = Value(f"{self.label}.condition", "bool", (), constant=True, data=np.array(True))
        values = [*([number, holds] if self.counts else []), *states, *slices]
        names = [str(info.name) for info in self.body.input]
        if len(names) != len(values):
            raise malformed(
                f"loop '{self.label}' gives its body {len(values)} values and it takes {len(names)}",
                self.label,
                len(values),
            )
        return dict(zip(names, values, strict=True))

    def results(self, values: list[Value], items: Items) -> _Trip:
        taken = self.counts + len(self.states) + len(self.stacked_axes)
        if len(values) != taken:
            raise malformed(
                f"the body of loop '{self.label}' makes {len(values)} values and {taken} are taken",
                self.label,
                len(values),
            )
        goes_on = values.pop(0) if self.counts else None
        split = len(self.states)
        return _Trip(goes_on, values[:split], values[split:], items)


@dataclass(frozen=True)
class _Trip:
    """One run of a body."""

    goes_on: Value | None
    states: list[Value]
    stacks: list[Value]
    items: Items


def _subgraph(node: Any, name: str, label: str) -> Any:
    for attribute in node.attribute:
        if attribute.name == name and attribute.HasField("g"):
            return attribute.g
    raise malformed(f"node '{label}' ({node.op_type}) has no graph '{name}'", label)


def _integers(node: Any, name: str, count: int) -> list[int]:
    found = next((list(a.ints) for a in node.attribute if a.name == name), [])
    return [*found, *[0] * count][:count]


def _plan_if(
    planner: Planner, node: Any, label: str, inputs: Sequence[Value | None], frame: Frame
) -> Planned:
    names = ("then_branch", "else_branch")
    condition = inputs[0] if inputs else None
    if condition is not None and condition.data is not None:
        branch = _subgraph(node, names[0] if condition.data.any() else names[1], label)
        return planner.graph(branch, frame.values, {}, prefix=frame.prefix, source=frame.source)
    outer, choices, refused = planner.notes, [], list[BadProgram]()
    for name in names:
        planner.notes = Notes()
        graph = _subgraph(node, name, label)
        try:
            planned = planner.graph(graph, frame.values, {}, prefix=frame.prefix, source=frame.source)
        except BadProgram as error:  # made for other inputs: with these it is never taken
            refused.append(error)
            continue
        choices.append((planned, planner.notes))
    planner.notes = outer
    if not choices:
        raise refused[0]
    outer.refused += [f"a branch of '{label}' can't be taken with these inputs: {each}" for each in refused]
    planned, notes = max(choices, key=lambda choice: flops(choice[0][1]))  # the first of equals
    outer.add(notes)
    outer.branches.append(label)
    return planned


def _plan_loop(
    planner: Planner, node: Any, label: str, inputs: Sequence[Value | None], frame: Frame
) -> Planned:
    limit, condition = [*inputs, None, None][:2]
    states = _present(inputs[2:], label)
    body = _subgraph(node, "body", label)
    stacks = len(body.output) - 1 - len(states)
    loop = _Loop(label, body, True, states, [], [0] * max(0, stacks))
    first = _trip(planner, loop, states, 0, frame)
    planner.loops_seen.add(label)
    trips = planner.trips.get(label)
    if trips is not None and not 1 <= trips < _ENDLESS:
        raise BadProgram(
            f"loop '{label}' has {trips} trips",
            object=label,
            number=trips,
            remedy=f"give --trip {label}=N from 1 to 2^31",
        )
    if trips is None:
        trips = _found_trips(planner, loop, limit, condition, first.goes_on)
    if trips == 0:
        empty = [Value(v.name, v.dtype, (0, *v.shape), constant=True) for v in first.stacks]
        return [*states, *empty], []
    return _repeated(planner, loop, trips, first, frame)


def _found_trips(
    planner: Planner, loop: _Loop, limit: Value | None, condition: Value | None, goes_on: Value | None
) -> int:
    """What the model itself says of the trip count; notes say what it leaves open."""
    remedy = f"give --trip {loop.label}=N"
    number = None
    if limit is not None and limit.data is not None and limit.data.size == 1:
        # Another type than int64 breaks a rule of ONNX: its number is not known.
        number = int(limit.data.reshape(())) if limit.data.dtype.kind in "iu" else None
    if (number is not None and number <= 0) or _is_false(condition):
        return 0
    if _is_false(goes_on):
        return 1
    if number is None or number >= _ENDLESS:
        planner.notes.loops.append(f"loop '{loop.label}' has an unknown trip count, 1 is taken: {remedy}")
        return 1
    if number > 1 and goes_on is not None and not goes_on.constant:
        planner.notes.loops.append(
            f"loop '{loop.label}' may stop before its {number} trips: {remedy} if it does"
        )
    return number


def _is_false(value: Value | None) -> bool:
    return value is not None and value.data is not None and not value.data.any()


def _plan_scan(
    planner: Planner, node: Any, label: str, inputs: Sequence[Value | None], frame: Frame
) -> Planned:
    if planner.sizes.versions.get("", 1) < 9:
        raise BadProgram(
            f"node '{label}' is a Scan of operator set 8, which has a batch of its own",
            object=label,
            number=8,
            remedy="convert the model to operator set 9 or later",
        )
    values = _present(inputs, label)
    scanned = next((int(a.i) for a in node.attribute if a.name == "num_scan_inputs"), 0)
    body = _subgraph(node, "body", label)
    if not 1 <= scanned <= len(values):
        raise malformed(f"node '{label}' (Scan) has {len(values)} inputs and scans {scanned}", label, scanned)
    states, sources = values[:-scanned], values[-scanned:]
    axes = _integers(node, "scan_input_axes", scanned)
    for source, axis in zip(sources, axes, strict=True):
        if not -len(source.shape) <= axis < len(source.shape):
            raise malformed(
                f"node '{label}' scans axis {axis} of '{source.name}', which has {len(source.shape)}",
                label,
                axis,
            )
    lengths = {source.shape[axis] for source, axis in zip(sources, axes, strict=True)}
    if len(lengths) != 1:
        raise malformed(f"node '{label}' scans inputs of the lengths {sorted(lengths)}", label, max(lengths))
    trips = lengths.pop()
    planner.loops_seen.add(label)
    if trips == 0:
        raise BadProgram(
            f"node '{label}' scans inputs of length 0",
            object=label,
            number=0,
            remedy="give --shape a length from 1 up",
        )
    stacks = max(0, len(body.output) - len(states))
    loop = _Loop(
        label,
        body,
        False,
        states,
        list(zip(sources, axes, strict=True)),
        _integers(node, "scan_output_axes", stacks),
    )
    return _repeated(planner, loop, trips, _trip(planner, loop, states, 0, frame), frame)


def _present(values: Sequence[Value | None], label: str) -> list[Value]:
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        raise malformed(f"a state of loop '{label}' has no value", label)
    return found


def _repeated(planner: Planner, loop: _Loop, trips: int, first: _Trip, frame: Frame) -> Planned:
    if trips * max(1, sum(1 for _ in steps(first.items))) > UNROLLED:
        return _rolled(planner, loop, trips, frame)
    outer, trip = planner.notes, first
    items = list(first.items)
    parts = [[part] for part in first.stacks]
    for number in range(1, trips):
        if _is_false(trip.goes_on):
            trips = number
            break
        planner.notes = Notes()  # what the first trip had to say is said
        trip = _trip(planner, loop, trip.states, number, frame)
        items += trip.items
        for made, part in zip(parts, trip.stacks, strict=True):
            made.append(part)
    planner.notes = outer
    results = list(trip.states)
    for number, made in enumerate(parts):
        whole = _stack(loop, number, made[0], trips)
        whole.constant = all(part.constant for part in made)
        if not whole.constant:
            items.append(_plain(loop, f"stack{number}", "concat", made, whole, frame))
        results.append(whole)
    return results, items


def _trip(planner: Planner, loop: _Loop, states: list[Value], number: int, frame: Frame) -> _Trip:
    prefix = f"{frame.prefix}{loop.label}/t{number}/"
    slices, items = _slices(loop, prefix, frame, rolled=False)
    count = Value(f"{prefix}trip", "i64", (), constant=True, data=np.array(number))
    bound = loop.bind(count, states, slices)
    results, body = planner.graph(loop.body, frame.values, bound, prefix=prefix, source=frame.source)
    return loop.results(results, items + body)


def _slices(loop: _Loop, prefix: str, frame: Frame, *, rolled: bool) -> tuple[list[Value], Items]:
    slices: list[Value] = []
    items: Items = []
    for number, (source, axis) in enumerate(loop.sliced):
        shape = list(source.shape)
        del shape[axis]
        # A part of a weight is a weight, but not in a body that stands for all trips.
        part = Value(
            f"{prefix}slice{number}", source.dtype, tuple(shape), constant=source.constant and not rolled
        )
        if not part.constant:
            items.append(_plain(loop, f"slice{number}", "slice", [source], part, frame, prefix))
        slices.append(part)
    return slices, items


def _plain(
    loop: _Loop,
    what: str,
    kind: str,
    reads: list[Value],
    result: Value,
    frame: Frame,
    prefix: str | None = None,
) -> Step:
    """An op that the loop needs and no node stands for."""
    prefix = f"{frame.prefix}{loop.label}/" if prefix is None else prefix
    does = each("copy", result.elements) if kind == "copy" else move(kind)
    return Step(prefix + what, does, reads, [result], scope=prefix.strip("/"), source=frame.source)


def _stack(loop: _Loop, number: int, part: Value, trips: int) -> Value:
    axis = loop.stacked_axes[number]
    shape = list(part.shape)
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, trips)
    return Value(f"{loop.label}.stack{number}", part.dtype, tuple(shape))


def _rolled(planner: Planner, loop: _Loop, trips: int, frame: Frame) -> Planned:
    before: Items = []
    entered: list[Value] = []
    for number, start in enumerate(loop.states):
        # Each trip overwrites what the loop entered with: that must be nobody else's.
        state = Value(f"{frame.prefix}{loop.label}/state{number}", start.dtype, start.shape)
        before.append(_plain(loop, f"enter{number}", "copy", [start], state, frame))
        entered.append(state)
    prefix = f"{frame.prefix}{loop.label}/"
    slices, items = _slices(loop, prefix, frame, rolled=True)
    number_of_trip = Value(f"{prefix}trip", "i64", ())
    items.append(_plain(loop, "trip", "iota", [], number_of_trip, frame))
    bound = loop.bind(number_of_trip, entered, slices)
    trip = loop.results(*planner.graph(loop.body, frame.values, bound, prefix=prefix, source=frame.source))
    items += trip.items
    made = {id(value) for step in steps(items) for value in step.writes}
    carried: list[tuple[Value, Value]] = []
    outputs: list[Value] = []
    taken: set[int] = set()
    for number, (state, result) in enumerate(zip(entered, trip.states, strict=True)):
        if state.shape != result.shape or state.dtype != result.dtype:
            raise BadProgram(
                f"state {number} of loop '{loop.label}' enters as {list(state.shape)} and leaves as "
                f"{list(result.shape)}, and the loop is too long to unroll",
                object=loop.label,
                number=trips,
                remedy=f"give --trip {loop.label}=N with a smaller N",
            )
        if result is not state:
            if id(result.root) not in made or id(result.root) in taken:
                own = Value(f"{prefix}next{number}", result.dtype, result.shape)
                items.append(_plain(loop, f"leave{number}", "copy", [result], own, frame))
                result = own
            taken.add(id(result.root))
            carried.append((state, result))
        outputs.append(result)
    for number, part in enumerate(trip.stacks):
        whole = _stack(loop, number, part, trips)
        step = _plain(loop, f"stack{number}", "dynamic_update_slice", [part], whole, frame)
        step.write_bytes = part.bytes
        items.append(step)
        outputs.append(whole)
    return outputs, [*before, Repeat(trips, items, carried)]


_PLANS: dict[str, Plan] = {"If": _plan_if, "Loop": _plan_loop, "Scan": _plan_scan}
