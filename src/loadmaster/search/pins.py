"""`Pins`: what a user has decided already. Every solver works around it.

A tensor is pinned to a memory, and there to an offset if one is given; an op to a device. Tensors
that share a place (views, in-place results) share their pin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import LoadmasterError, Refused, nearest
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import NO_OFFSET, Plan
from loadmaster.program.hazards import places
from loadmaster.program.program import Program


class BadPin(LoadmasterError):
    """A pin that names nothing, or that this problem does not decide."""


@dataclass(frozen=True)
class Pins:
    """By index."""

    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Root -> (memory, offset or NO_OFFSET)."""
    device: dict[int, int] = field(default_factory=dict)
    """Op -> device."""

    def __bool__(self) -> bool:
        return bool(self.memory or self.device)

    def as_json(self) -> dict[str, Any]:
        """For run folders; `of_json` reads it."""
        return {
            "memory": [[tensor, *where] for tensor, where in sorted(self.memory.items())],
            "device": [list(pair) for pair in sorted(self.device.items())],
        }

    @classmethod
    def of_json(cls, about: dict[str, Any] | None) -> Pins:
        """What `as_json` gave."""
        rows = about or {"memory": [], "device": []}
        return cls(
            {int(t): (int(m), int(o)) for t, m, o in rows["memory"]},
            {int(op): int(device) for op, device in rows["device"]},
        )

    def violations(self, plan: Plan) -> list[Violation]:
        """One for each pin that a plan does not keep."""
        found = []
        for tensor, (memory, offset) in self.memory.items():
            rows = [row for row in plan.residency_rows if row.tensor == tensor]
            if any(row.memory != memory or offset not in (NO_OFFSET, row.offset) for row in rows):
                found.append(Violation("pin", f"tensor {tensor} is not where it is pinned"))
        for op, device in self.device.items():
            if (0 if plan.device is None else int(plan.device[op])) != device:
                found.append(Violation("pin", f"op {op} is not where it is pinned"))
        return found


def parse_pins(
    program: Program, machine: Machine, tensors: Sequence[str] = (), ops: Sequence[str] = ()
) -> Pins:
    """Read what is decided already from texts, as the command line takes them.

    Args:
      program, machine: whose names the texts use.
      tensors: each 'TENSOR=MEMORY' or 'TENSOR=MEMORY@OFFSET'.
      ops: each 'OP=DEVICE'.

    Returns:
      pins by index; a name that there is not is refused with the nearest one.
    """
    memory: dict[int, tuple[int, int]] = {}
    known: dict[int, tuple[tuple[int, int], str]] = {}
    place = places(program)
    for text in tensors:
        name, where = _halves(text, "--pin", "TENSOR=MEMORY")
        number = _index(program.tensor_name, name, program.name, "tensor")
        root = int(program.tensor_alias[number])
        there, at, offset = where.partition("@")
        memory_number = machine.memory(there)
        pin = (memory_number, _offset(offset, text) if at else NO_OFFSET)
        align = machine.memories[memory_number].alignment
        if at and pin[1] % align:
            raise BadPin(
                f"--pin '{text}' is off the alignment of '{there}'",
                object=name,
                number=pin[1],
                remedy=f"pin it to a multiple of {align}",
            )
        before, other = known.setdefault(int(place[root]), (pin, text))
        if before != pin:
            raise Refused(
                f"--pin '{other}' and --pin '{text}' are about one place",
                object=name,
                number=text,
                remedy="keep one of them",
            )
        memory[root] = pin
    device: dict[int, int] = {}
    for text in ops:
        name, where = _halves(text, "--pin-op", "OP=DEVICE")
        op = _index(program.op_name, name, program.name, "op")
        chosen = machine.device(where)
        if device.setdefault(op, chosen) != chosen:
            first = machine.devices[device[op]].name
            raise Refused(
                f"--pin-op puts '{name}' on '{first}' and on '{where}'",
                object=name,
                number=text,
                remedy="keep one of them",
            )
    return Pins(memory, device)


def _halves(text: str, option: str, form: str) -> tuple[str, str]:
    # Names may hold '=', memories and devices do not.
    name, equals, where = text.rpartition("=")
    if not equals or not name or not where:
        raise BadPin(
            f"{option} '{text}' is not {form}", object=option, number=text, remedy=f"write {option} {form}"
        )
    return name, where


def _offset(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise BadPin(
            f"--pin '{whole}' has no offset behind the '@'",
            object="--pin",
            number=whole,
            remedy="write TENSOR=MEMORY@4096",
        )
    return int(text)


def _index(names: Sequence[str], name: str, program: str, what: str) -> int:
    if name not in names:
        # Converters join names, so that the one a user knows is often a part of the file's.
        part = next((each for each in names if name in each), None)
        close = f" (did you mean '{part}'?)" if part else ""
        if not part and len(names) <= 20_000:
            close = nearest(name, tuple(names))
        raise BadPin(
            f"program '{program}' has no {what} '{name}'{close}",
            object=name,
            remedy="see 'loadmaster inspect MODEL --top 100'",
        )
    return names.index(name)
