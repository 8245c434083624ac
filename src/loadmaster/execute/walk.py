"""The run itself: a walk through a script's actions. Every line here is paid once per op and run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import BadProgram
from loadmaster.execute.devices import Backend
from loadmaster.execute.pinned import Layout, layout_of
from loadmaster.execute.placement import Placement
from loadmaster.execute.script import ALONE, Call, Move, Script, Slot

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
    _loose: set[int] = field(default_factory=set)
    """Tensors that kernels leave inside a larger storage."""

    def __post_init__(self) -> None:
        self._watched = set(self.script.moved)

    def run(self, kept: list[Any], spans: list[Span]) -> list[Any]:
        """Values by slot: at the end those of residents and of what the plan keeps to the end."""
        backend, script, timed = self.backend, self.script, self.timed
        at, put = self.placement.at, self.placement.put
        watched, values = self._watched, list(kept)
        backend.begin(script.copies)
        if script.fetches:
            backend.mark(inward=True, outward=False)
            for move in script.fetches:
                self._fetch(values, move)
        for rank, step in enumerate(script.steps):
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
                if slot in watched:
                    results[place] = self._owned(slot, results[place])
            results = put(step.residencies, results)
            for (_, slot), result in zip(step.call.results, results, strict=True):
                values[slot] = result
            results.clear()
            made = result = view_of = None  # nothing but the slots may hold memory
            if step.sends or step.fetches:
                backend.mark(inward=bool(step.fetches), outward=bool(step.sends))
            for move in step.sends:
                self._send(values, move)
            for slot in step.drops:
                values[slot] = None
            for move in step.fetches:
                self._fetch(values, move)
        at(-1)
        for row in script.waits:
            backend.wait(row)
        return values

    def _fetch(self, values: list[Any], move: Move) -> None:
        layout = self.layouts[move.slot]
        if move.opens:
            values[move.slot] = self.placement.room(move.residency, layout)
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


def called(call: Call, values: Any) -> Any:
    """Run a call with the values of its slots."""
    args = filled(call.args, values)
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
