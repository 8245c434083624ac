"""The run itself: a walk through a script's actions. Every line here is paid once per op and run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import BadProgram
from loadmaster.execute.devices import Backend
from loadmaster.execute.pinned import Layout, layout_of
from loadmaster.execute.placement import Placement
from loadmaster.execute.script import ALONE, Call, Leaf, Move, Script, Slot

Span = tuple[int, Any, Any]
"""(op, moment of its start, moment of its end)."""


@dataclass
class Walk:
    """A script with all that it works on."""

    script: Script
    backend: Backend
    placement: Placement
    host: dict[int, Any]
    """Rows of bytes on the host, by tensor."""
    layouts: dict[int, Layout]
    """Of what is given, and of what was copied out before: results show theirs when first made."""
    sizes: list[int]
    timed: bool = False
    late: frozenset[int] = frozenset()
    """Slots of what is not given before `resume`."""
    placed: frozenset[int] = frozenset()
    """Slots of what lies in its room before `begin`: its copies are empty."""
    sinks: dict[int, list[tuple[Leaf, int]]] = field(default_factory=dict)
    """Rank -> the results that are taken on the device after it, and their numbers among `targets`."""
    targets: list[Any] = field(default_factory=list)
    """Tensors of the caller, on the device, that those are written to."""
    _loose: set[int] = field(default_factory=set)
    """Tensors that kernels leave inside a larger storage."""
    held_back: list[Move] = field(default_factory=list)
    """Copies of what is not given yet."""
    _resumed: bool = False

    def __post_init__(self) -> None:
        self._watched = set(self.script.moved)

    def watch(self, slots: Iterable[int]) -> None:
        """Note how these lie, too."""
        self._watched.update(slots)

    def run(self, kept: list[Any], spans: list[Span]) -> list[Any]:
        """Values by slot: at the end those of residents and of what the plan keeps to the end."""
        values = self.begin(kept)
        self.resume(values)
        self.advance(values, spans, 0, len(self.script.steps))
        self.end()
        return values

    def begin(self, kept: list[Any]) -> list[Any]:
        """Values by slot before the first step; copies that come before it are issued."""
        backend, script, values = self.backend, self.script, list(kept)
        backend.begin(script.copies)
        self.held_back, self._resumed = [], not self.late
        if script.fetches:
            backend.mark(inward=True, outward=False)
            for move in script.fetches:
                self._fetch(values, move)
        return values

    def resume(self, values: list[Any]) -> None:
        """All is given now: copies that could not be made before are."""
        self._resumed = True
        if self.held_back:
            self.backend.mark(inward=True, outward=False)
        for move in self.held_back:
            here, there = self._rows(values, move, self.layouts[move.slot])
            self.backend.copy(move.row, True, here, there, move.after)
            self.backend.wait(
                move.row
            )  # steps wait for the last copy of those they need, as they were issued
        self.held_back = []

    def advance(self, values: list[Any], spans: list[Span], first: int, last: int) -> None:
        """The steps from `first` to before `last`."""
        backend, timed = self.backend, self.timed
        at, put = self.placement.at, self.placement.put
        watched, sinks = self._watched, self.sinks
        for rank in range(first, last):
            step = self.script.steps[rank]
            for row in step.waits:
                backend.wait(row)
            for view in step.views:
                view_of = called(view, values)
                for part, slot in view.results:
                    values[slot] = view_of if part == ALONE else view_of[part]
            start = backend.now() if timed else None
            at(rank)
            made = called(step.call, values)
            if timed:
                spans.append((step.call.op, start, backend.now()))
            results = [made if part == ALONE else made[part] for part, _ in step.call.results]
            for place, (_, slot) in enumerate(step.call.results):
                if slot in watched and results[place] is not None:
                    results[place] = self._owned(slot, results[place])
            results = put(step.residencies, results)
            for (_, slot), result in zip(step.call.results, results, strict=True):
                values[slot] = result
            results.clear()
            made = result = view_of = None  # nothing but the slots may hold memory
            if rank in sinks:
                for leaf, number in sinks[rank]:
                    self.targets[number].copy_(shown(leaf, values[leaf.root]))
            if step.sends or step.fetches:
                backend.mark(inward=bool(step.fetches), outward=bool(step.sends))
            for move in step.sends:
                self._send(values, move)
            for slot in step.drops:
                values[slot] = None
            for move in step.fetches:
                self._fetch(values, move)

    def end(self) -> None:
        """After the last step: nothing is on its way any more when the device is done."""
        self.placement.at(-1)
        for row in self.script.waits:
            self.backend.wait(row)

    def _fetch(self, values: list[Any], move: Move) -> None:
        layout = self.layouts[move.slot]
        if move.opens:
            values[move.slot] = self.placement.room(move.residency, layout)
        if not self._resumed and move.slot in self.late:
            self.held_back.append(move)
            return
        if (
            move.slot in self.placed
        ):  # steps wait for the last copy of those they need: it stands for those before it
            nothing = self.placement.row(move.residency, values[move.slot], layout)[:0]
            self.backend.copy(move.row, True, nothing, nothing, move.after)
            return
        here, there = self._rows(values, move, layout)
        self.backend.copy(move.row, True, here, there, move.after)

    def _send(self, values: list[Any], move: Move) -> None:
        here, there = self._rows(values, move, self.layouts[move.slot])
        self.backend.copy(move.row, False, there, here, move.after)

    def _rows(self, values: list[Any], move: Move, layout: Layout) -> tuple[Any, Any]:
        """The bytes of a copy in fast memory and on the host."""
        here = self.placement.row(move.residency, values[move.slot], layout)
        there = self.host[move.slot]
        low, high = move.low, min(move.high, layout.bytes)
        if low or high < layout.bytes:
            here = here[low:high]
        return here, there if not low and high == self.sizes[move.slot] else there[low:high]

    def _owned(self, slot: int, result: Any) -> Any:
        """A result that will be copied out, alone in its storage; its layout is noted."""
        if slot not in self.layouts:
            if layout_of(result).bytes > self.sizes[slot]:
                self._loose.add(slot)
                result = result.contiguous().clone()
            layout = layout_of(result)
            if layout.bytes > self.sizes[slot]:
                raise BadProgram(
                    f"tensor {slot} has {layout.bytes:,} bytes and was captured with {self.sizes[slot]:,}",
                    object=f"tensor {slot}",
                    number=layout.bytes,
                    remedy="capture the module for this device",
                )
            self.layouts[slot] = layout
            return result
        return result.contiguous().clone() if slot in self._loose else result


def shown(leaf: Leaf, root: Any) -> Any:
    """The value of a result, by the views that lead from its root to it."""
    made = {leaf.root: root}
    for view in leaf.views:
        result = called(view, made)
        made |= {slot: result if part == ALONE else result[part] for part, slot in view.results}
    return made[leaf.slot]


def called(call: Call, values: Any) -> Any:
    """Run a call with the values of its slots."""
    args = list(call.args)
    for place, slot in call.slots:
        args[place] = values[slot]
    for place in call.nested:
        args[place] = filled(args[place], values)
    if call.kwargs:
        named = filled(list(call.kwargs.values()), values)
        return call.target(*args, **dict(zip(call.kwargs, named, strict=True)))
    return call.target(*args)


def filled(arguments: Any, values: Any) -> list[Any]:
    """Arguments with values in place of slots."""
    return [
        values[each.number] if type(each) is Slot else filled(each, values) if type(each) is list else each
        for each in arguments
    ]
