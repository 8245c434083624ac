"""If, Loop and Scan: the branch with most flops; loops unrolled, or one body that repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.errors import BadProgram
from loadmaster.program.importers.onnx.steps import Frame, Items, Notes, Repeat, Step, flops, steps
from loadmaster.program.importers.onnx.values import Value
from loadmaster.program.op_costs import each, move

if TYPE_CHECKING:
    from loadmaster.program.importers.onnx.plan import Planner

    Planned = tuple[list[Value], Items]
    Plan = Callable[[Planner, Any, str, Sequence[Value | None], Frame], Planned]

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
            raise BadProgram(
                f"loop '{self.label}' gives its body {len(values)} values and it takes {len(names)}",
                object=self.label,
                number=len(values),
                remedy="export the model again",
            )
        return dict(zip(names, values, strict=True))

    def results(self, values: list[Value], items: Items) -> _Trip:
        wanted = self.counts + len(self.states) + len(self.stacked_axes)
        if len(values) != wanted:
            raise BadProgram(
                f"the body of loop '{self.label}' makes {len(values)} values and {wanted} are taken",
                object=self.label,
                number=len(values),
                remedy="export the model again",
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


def _attribute(node: Any, name: str, label: str) -> Any:
    for attribute in node.attribute:
        if attribute.name == name and attribute.HasField("g"):
            return attribute.g
    raise BadProgram(
        f"node '{label}' ({node.op_type}) has no graph '{name}'",
        object=label,
        remedy="export the model again",
    )


def _integers(node: Any, name: str, count: int) -> list[int]:
    found = next((list(a.ints) for a in node.attribute if a.name == name), [])
    return [*found, *[0] * count][:count]


def _plan_if(
    planner: Planner, node: Any, label: str, inputs: Sequence[Value | None], frame: Frame
) -> Planned:
    names = ("then_branch", "else_branch")
    condition = inputs[0] if inputs else None
    if condition is not None and condition.data is not None:
        branch = _attribute(node, names[0] if condition.data.any() else names[1], label)
        return planner.graph(branch, frame.values, {}, prefix=frame.prefix, source=frame.source)
    outer, choices = planner.notes, []
    for name in names:
        planner.notes = Notes()
        graph = _attribute(node, name, label)
        planned = planner.graph(graph, frame.values, {}, prefix=frame.prefix, source=frame.source)
        choices.append((planned, planner.notes))
    planner.notes = outer
    planned, notes = max(choices, key=lambda choice: flops(choice[0][1]))  # the first of equals
    outer.add(notes)
    outer.branches.append(label)
    return planned


def _plan_loop(
    planner: Planner, node: Any, label: str, inputs: Sequence[Value | None], frame: Frame
) -> Planned:
    limit, condition = [*inputs, None, None][:2]
    states = _present(inputs[2:], label)
    body = _attribute(node, "body", label)
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
    body = _attribute(node, "body", label)
    if not 1 <= scanned <= len(values):
        raise BadProgram(
            f"node '{label}' (Scan) has {len(values)} inputs and scans {scanned}",
            object=label,
            number=scanned,
            remedy="export the model again",
        )
    states, sources = values[:-scanned], values[-scanned:]
    axes = _integers(node, "scan_input_axes", scanned)
    for source, axis in zip(sources, axes, strict=True):
        if not -len(source.shape) <= axis < len(source.shape):
            raise BadProgram(
                f"node '{label}' scans axis {axis} of '{source.name}', which has {len(source.shape)}",
                object=label,
                number=axis,
                remedy="export the model again",
            )
    lengths = {source.shape[axis] for source, axis in zip(sources, axes, strict=True)}
    if len(lengths) != 1:
        raise BadProgram(
            f"node '{label}' scans inputs of the lengths {sorted(lengths)}",
            object=label,
            number=max(lengths),
            remedy="export the model again",
        )
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
        raise BadProgram(
            f"a state of loop '{label}' has no value", object=label, remedy="export the model again"
        )
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


PLANS: dict[str, Plan] = {"If": _plan_if, "Loop": _plan_loop, "Scan": _plan_scan}
