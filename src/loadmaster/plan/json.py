"""A Plan as JSON: indices decide, names are carried for reading, both must agree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.errors import BadPlan, nearest
from loadmaster.files import read_regular, replacing
from loadmaster.json_text import read_json
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, MOST_BYTE, NO_OFFSET, QUEUES, TIES, WHOLE, Plan
from loadmaster.program.measured_costs import costless_hash
from loadmaster.program.program import Program
from loadmaster.program.repeats import repeat
from loadmaster.units import shorten

FORMAT = 1
_MOST_BYTES = 2**28


def plan_to_json(plan: Plan, program: Program, machine: Machine) -> str:
    """The plan with the names and hashes of what it belongs to."""
    return json.dumps(plan_document(plan, program, machine), indent=None, separators=(", ", ": "))


def plan_document(plan: Plan, program: Program, machine: Machine) -> dict[str, Any]:
    """The same as an object of JSON."""
    memory = [m.name for m in machine.memories]
    document: dict[str, Any] = {
        "loadmaster_plan": FORMAT,
        "program": {"name": program.name, "hash": program.hash},
        "machine": {"name": machine.name, "hash": machine.hash},
        "queue": plan.queue,
        "tie": plan.tie,
    }
    if program.repeats is not None:
        document["repeats"] = {"base": program.repeats.base, "ops": list(program.repeats.ops)}
    for key in ("device", "order", "fusion", "priority"):
        column = getattr(plan, key)
        document[key] = None if column is None else column.tolist()
    document["residencies"] = [
        {
            "tensor": r.tensor,
            "name": program.tensor_name[r.tensor],
            "memory": memory[r.memory],
            "offset": r.offset,
            "first": r.first,
            "last": r.last,
        }
        for r in plan.residency_rows
    ]
    document["copies"] = [
        {
            "tensor": c.tensor,
            "name": program.tensor_name[c.tensor],
            "from": memory[c.source],
            "to": memory[c.target],
            "issued_after": c.issued_after,
            "needed_by": c.needed_by,
            "bytes": None if c.low == WHOLE else [c.low, c.high],
        }
        for c in plan.copy_rows
    ]
    document["transfers"] = None if plan.transfers is None else plan.transfers.tolist()
    return document


def nameless_document(plan: Plan, program: Program, machine: Machine) -> dict[str, Any]:
    """The plan by numbers alone, of whatever program and machine have as many of everything."""
    document = plan_document(plan, program, machine)
    rows = [*document["residencies"], *document["copies"]]
    for each in (document, *rows):
        for key in ("name", "program", "machine", "repeats"):
            each.pop(key, None)
    return document


def save_plan(plan: Plan, program: Program, machine: Machine, path: str | Path) -> None:
    """Write a plan's JSON file, whole or not at all.

    Args:
      plan: what is written; it is not checked.
      program, machine: what it is about; the file keeps their hashes and the names of tensors and memories.
      path: a file that is there is replaced.
    """
    path = Path(path)
    with replacing(path) as temporary:
        temporary.write_text(plan_to_json(plan, program, machine) + "\n", encoding="utf-8")


def load_plan(path: str | Path, program: Program, machine: Machine) -> Plan:
    """Read a plan's JSON file.

    Args:
      path: what `save_plan` wrote.
      program, machine: what it is for; the file of another program is refused.

    Returns:
      the plan, every number in range; whether it is sound, `check` tells.
    """
    return plan_from_json(_text_of(Path(path)), program, machine, str(path))


def load_planned(path: str | Path, base: Program, machine: Machine) -> tuple[Program, Plan]:
    """Read a plan's JSON file whose plan may run ops again.

    Args:
      path: what `save_plan` wrote.
      base: the program as it was imported.
      machine: what the plan is for.

    Returns:
      the program that the plan is about (the base, with the ops run again that the file names), and the plan.
    """
    text, where = _text_of(Path(path)), str(path)
    document = _document(text, where)
    program = _with_repeats(base, document, where)
    return program, _plan(document, program, machine, where)


def _text_of(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise BadPlan(
            f"plan '{path}' can't be read: {error.strerror}", object=str(path), remedy="check the path"
        ) from None


def plan_from_json(text: str | bytes, program: Program, machine: Machine, where: str = "plan") -> Plan:
    """Parse a plan; every error names the entry, the value and what would be right."""
    return _plan(_document(text, where), program, machine, where)


def plan_from_document(document: Any, program: Program, machine: Machine, where: str = "plan") -> Plan:
    """The same from what JSON was read already."""
    return _plan(_checked_format(document, where), program, machine, where)


def _document(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        document = read_json(text, most_bytes=_MOST_BYTES)
    except ValueError as error:
        raise _error(where, str(error), "give a plan's JSON file") from None
    return _checked_format(document, where)


def _checked_format(document: Any, where: str) -> dict[str, Any]:
    if not isinstance(document, dict) or document.get("loadmaster_plan") != FORMAT:
        raise _error(where, f"it is no plan of format {FORMAT}", "make it with 'loadmaster plan'")
    return document


def _with_repeats(base: Program, document: dict[str, Any], where: str) -> Program:
    """The program of a plan: made from the base where ops run again, unless it is that one already."""
    about = document.get("repeats")
    if about is None or base.repeats is not None:
        return base
    ops = about.get("ops") if isinstance(about, dict) else None
    if not isinstance(ops, list) or not all(type(op) is int for op in ops):
        raise _error(where, f"'repeats' is {shorten(about)}", "give the base's hash and op numbers")
    if about.get("base") not in (None, costless_hash(base)):
        raise _foreign(where, "program", document.get("program"), base.name, str(about["base"]))
    return repeat(base, ops).program


def _plan(document: dict[str, Any], program: Program, machine: Machine, where: str) -> Plan:
    for what, ours in (("program", program), ("machine", machine)):
        theirs = document.get(what)
        claimed = theirs.get("hash") if isinstance(theirs, dict) else None
        if isinstance(theirs, dict) and claimed is not None and claimed != ours.hash:
            if what == "machine" and claimed == _called(machine, theirs.get("name")).hash:
                continue  # of the same values: a capacity that it had was given, and told in its name
            if what == "program" and document.get("repeats") and program.repeats is None:
                raise _error(where, f"ops run again in its program ('{program.name}')", "use load_planned")
            raise _foreign(where, what, theirs, ours.name, str(claimed))
    read = _Reader(where, program, machine)
    return Plan.of(
        device=read.column(document, "device", len(machine.devices)),
        order=read.column(document, "order", program.n_ops),
        fusion=read.column(document, "fusion", program.n_ops, least=-1),
        priority=read.priority(document),
        queue=read.choice(document, "queue", QUEUES),
        tie=read.choice(document, "tie", TIES),
        residencies=[
            read.residency(entry, i) for i, entry in enumerate(read.entries(document, "residencies"))
        ],
        copies=[read.copy(entry, i) for i, entry in enumerate(read.entries(document, "copies"))],
        transfers=read.transfers(document),
    )


def _called(machine: Machine, name: Any) -> Machine:
    return replace(machine, name=name) if isinstance(name, str) else machine


def _foreign(where: str, what: str, theirs: Any, ours: str, claimed: str) -> BadPlan:
    """It belongs to something else; where that differs in options alone, the remedy names them."""
    name = str(theirs.get("name"))[:200] if isinstance(theirs, dict) else "unnamed"
    remedy = f"give the {what} it was made for"
    kind, capacity = name.partition(":")[0], name.rpartition(":")[2]
    if what == "program" and name == ours:
        remedy += ", with the options that it was planned with, such as --costs and --train"
    elif what == "machine" and kind == ours.partition(":")[0] and "=" in capacity and name != ours:
        sizes = " --capacity ".join(capacity.split(","))
        remedy = f"it was made for another capacity, so give --capacity {sizes}"
    elif what == "machine" and name == "arena":
        remedy += ", as --machine arena:SIZE, or arena:unlimited where only the order was sought"
    return _error(where, f"it belongs to another {what} ('{name}')", remedy, claimed[:12])


def _error(where: str, what: str, remedy: str, number: Any = None) -> BadPlan:
    return BadPlan(f"plan '{where}': {what}", object=where, number=number, remedy=remedy)


class _Reader:
    def __init__(self, where: str, program: Program, machine: Machine) -> None:
        self.where, self.program, self.machine = where, program, machine
        self.memories = [memory.name for memory in machine.memories]
        # Reversed: of tensors that share a name, the first is meant.
        numbered = reversed(list(enumerate(program.tensor_name)))
        self.tensors = {name: number for number, name in numbered}

    def error(self, what: str, remedy: str, number: Any = None) -> BadPlan:
        return _error(self.where, what, remedy, number)

    def choice(self, document: dict[str, Any], key: str, allowed: tuple[str, ...]) -> str:
        value = document.get(key, allowed[0])
        if value not in allowed:
            raise self.error(f"{key} is {shorten(value)}", f"use {', '.join(allowed)}")
        return str(value)

    def column(self, document: dict[str, Any], key: str, limit: int, least: int = 0) -> list[int] | None:
        values = document.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != self.program.n_ops:
            raise self.error(
                f"'{key}' must have {self.program.n_ops} entries, one per op", "write null to leave it out"
            )
        for i, value in enumerate(values):
            if type(value) is not int or not least <= value < limit:
                raise self.error(
                    f"'{key}' of op '{self.program.op_name[i]}' is {shorten(value)}",
                    f"give a whole number from {least} to {limit - 1}",
                    shorten(value),
                )
        return values

    def priority(self, document: dict[str, Any]) -> list[float] | None:
        values = document.get("priority")
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != self.program.n_ops:
            raise self.error(
                f"'priority' must have {self.program.n_ops} entries", "write null to leave it out"
            )
        for i, value in enumerate(values):
            if type(value) not in (int, float):  # the JSON reader lets finite numbers through alone
                raise self.error(
                    f"'priority' of op '{self.program.op_name[i]}' is {shorten(value)}",
                    "give a finite number",
                )
        return [float(value) for value in values]

    def entries(self, document: dict[str, Any], key: str) -> list[dict[str, Any]]:
        entries = document.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"'{key}' must be a list of objects", "see docs/plan.md")
        return entries

    def residency(self, entry: dict[str, Any], i: int) -> tuple[int, ...]:
        what = f"residency {i}"
        n = self.program.n_ops
        return (
            self.tensor(entry, what),
            self.memory(entry, "memory", what),
            self.number(entry, "offset", what, NO_OFFSET, MOST_BYTE),
            self.number(entry, "first", what, BEFORE, n - 1),
            self.number(entry, "last", what, 0, n - 1),
        )

    def copy(self, entry: dict[str, Any], i: int) -> tuple[int, ...]:
        what = f"copy {i}"
        n = self.program.n_ops
        low, high = WHOLE, WHOLE
        if entry.get("bytes") is not None:
            bounds = entry["bytes"]
            if not isinstance(bounds, list) or len(bounds) != 2:
                raise self.error(f"{what} has bytes {shorten(bounds)}", "give [low, high] or null")
            pair = {"low": bounds[0], "high": bounds[1]}
            low, high = (self.number(pair, key, what, 0, MOST_BYTE) for key in ("low", "high"))
        return (
            self.tensor(entry, what),
            self.memory(entry, "from", what),
            self.memory(entry, "to", what),
            self.number(entry, "issued_after", what, -1, n - 1),
            self.number(entry, "needed_by", what, 0, n),
            low,
            high,
        )

    def transfers(self, document: dict[str, Any]) -> list[tuple[int, int]] | None:
        rows = document.get("transfers")
        if rows is None:
            return None
        limits = (self.program.n_tensors, len(self.machine.devices))
        if not isinstance(rows, list):
            raise self.error("'transfers' must be a list", "write null to leave it out")
        for i, row in enumerate(rows):
            if (
                not isinstance(row, list)
                or len(row) != 2
                or any(
                    type(value) is not int or not 0 <= value < limit
                    for value, limit in zip(row, limits, strict=True)
                )
            ):
                raise self.error(f"transfer {i} is {shorten(row)}", "give [tensor, device]")
        return [tuple(row) for row in rows]

    def tensor(self, entry: dict[str, Any], what: str) -> int:
        names = self.program.tensor_name
        number, name = entry.get("tensor"), entry.get("name")
        if number is None and isinstance(name, str):
            if name not in self.tensors:
                raise self.error(
                    f"{what} refers to the unknown tensor {shorten(name)}{nearest(name, names)}",
                    "name a tensor of the program",
                    shorten(name),
                )
            return self.tensors[name]
        if type(number) is not int or not 0 <= number < len(names):
            raise self.error(
                f"{what} refers to the unknown tensor {shorten(number)}",
                f"give a number from 0 to {len(names) - 1}",
                shorten(number),
            )
        if name is not None and name != names[number]:
            raise self.error(
                f"{what} calls tensor {number} {shorten(name)} and it is '{names[number]}'",
                "correct the name or leave it out",
                number,
            )
        return number

    def memory(self, entry: dict[str, Any], key: str, what: str) -> int:
        name = entry.get(key)
        if name not in self.memories:
            raise self.error(
                f"{what} refers to the unknown memory {shorten(name)}", f"use {', '.join(self.memories)}"
            )
        return self.memories.index(str(name))

    def number(self, entry: dict[str, Any], key: str, what: str, least: int, most: int) -> int:
        value = entry.get(key)
        if type(value) is not int or not least <= value <= most:
            raise self.error(
                f"{what} has {key} {shorten(value)}",
                f"give a whole number from {least} to {most}",
                shorten(value),
            )
        return int(value)
