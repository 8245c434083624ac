"""Machines as TOML files: reading with clear errors, `base` files, and writing.

    name = "mcu"
    [[memory]]
    name = "sram"
    capacity = "512KiB"
    bandwidth = "1.6GB/s"        # or read = …, write = …; efficiency = 0.8 multiplies
    [[device]]
    name = "core"
    matrix = "2Gflop/s"          # or { i8 = "4Gflop/s", f32 = "1Gflop/s" }
    vector = "1Gflop/s"

`count = 4` makes four of a kind (`gpu0` … `gpu3`), `{i}` in a device's memories is its
number, and a link with `between = "hbm"` joins every ordered pair of `hbm0`, `hbm1`, ….

A file may come from anybody: whatever it holds, it becomes a machine or one `BadMachine`, in a time
that its size limits. Every value is looked at for its type before it is used.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

from loadmaster.errors import BadMachine
from loadmaster.json_text import check_encodable
from loadmaster.machine.machine import (
    MOST_DEVICES,
    MOST_MEMORIES,
    Device,
    Link,
    Machine,
    Memory,
    Rules,
    check_counts,
)
from loadmaster.program.kinds import BITS
from loadmaster.program.program import FLOP_CLASSES
from loadmaster.units import parse_bytes, parse_rate, parse_time, shorten

MOST_BYTES = 4 * 2**20
"""Of a file: a few seconds, whatever it holds."""
MOST_DEPTH = 8
MOST_DIGITS = 30
MOST_DOTS = 200
"""Of a line, and hence parts of a key."""


def read_toml(text: str) -> dict[str, Any]:
    """The tables that `text` holds: texts, numbers, lists and tables alone.

    `tomllib.loads` alone gives RecursionError for deep nesting, integers that can't even be printed, dates
    that nothing here takes, and needs the square of the length of a key of many parts.

    Raises:
      ValueError: how the sentence "the file …" goes on. The caller adds the file and the remedy.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"has {len(text):,} characters, above the limit {MOST_BYTES:,}")
    if any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"has a line with more than {MOST_DOTS} dots")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {MOST_DEPTH} levels") from None
    except ValueError:  # the one left: Python reads no integer of more than 4,300 digits
        raise ValueError(f"has an integer of more than {MOST_DIGITS} digits") from None
    _check(values)
    return values


def _check(values: dict[str, Any]) -> None:
    """Level by level, since what is deep must not be walked by recursion."""
    level: list[Any] = [values]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                _check_text(value)
            elif isinstance(value, int):
                if abs(value) >= 10**MOST_DIGITS:
                    raise ValueError(f"has an integer of more than {MOST_DIGITS} digits")
            elif not isinstance(value, float):
                raise ValueError(f"has the date or time {value}, where text or a number is meant")
        if not inner:
            return
        level = inner
    raise ValueError(f"is nested deeper than {MOST_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        check_encodable(text)
    except ValueError as error:
        raise ValueError(f"can't be used: {error}") from None


_KEYS = {
    "": {"name", "description", "base", "rules", "memory", "device", "link", "export"},
    "rules": {"ports", "overlap", "copies", "reach"},
    "memory": {
        "name",
        "count",
        "capacity",
        "bandwidth",
        "read",
        "write",
        "efficiency",
        "latency",
        "alignment",
    },
    "device": {"name", "count", "memories", "launch", "units", "efficiency", *FLOP_CLASSES},
    "link": {"source", "target", "between", "bandwidth", "latency", "engines"},
}
_MOST_BASES = 8
_MOST_ENGINES = 8
_LONGEST_NAME = 200
_TABLES = ("memory", "device", "link")


def parse_machine(text: str, where: str, find_base: Callable[[str], str]) -> Machine:
    """Read a machine; `where` names it in errors, `find_base` gives the text of a base."""
    values = _merged(text, where, find_base, depth=0)
    read = _Reader(where)
    read.keys("", values, where)
    name = read.text(values, "name", f"machine '{where}'")
    memories: list[Memory] = []
    for entry in read.tables(values, "memory"):
        memories += _memories(read, entry)
        check_counts(name, memories=len(memories))
    devices: list[Device] = []
    for entry in read.tables(values, "device"):
        devices += _devices(read, entry, memories)
        check_counts(name, devices=len(devices))
    links: list[Link] = []
    for entry in read.tables(values, "link"):
        links += _links(read, entry, memories)
        check_counts(name, links=len(links))
    rules = _rules(read, values.get("rules", {}))
    description = values.get("description", "")
    if not isinstance(description, str):
        raise read.error(f"it has description {shorten(description)}", "write text in quotes")
    export = values.get("export", {})
    if not isinstance(export, dict) or not all(isinstance(each, dict) for each in export.values()):
        raise read.error("'export' has no tables", "write [export.TARGET]")
    machine = Machine(name, tuple(devices), tuple(memories), tuple(links), rules, description, text, export)
    _whole(read, machine)
    return machine


def _merged(text: str, where: str, find_base: Callable[[str], str], depth: int) -> dict[str, Any]:
    try:
        values = read_toml(text)
    except ValueError as error:
        raise BadMachine(f"machine '{where}' {error}", object=where, remedy="mend the file") from None
    read = _Reader(where)
    for table in _TABLES:
        read.tables(values, table)
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or not base or len(base) > _LONGEST_NAME:
        raise read.error(f"it has base {shorten(base)}", 'write base = "nnp-i" or a file\'s name')
    if depth >= _MOST_BASES:
        raise BadMachine(f"machine '{where}' has bases without end", object=where, remedy="remove 'base'")
    merged = _merged(find_base(base), base, find_base, depth + 1)
    for table, entries in values.items():
        if table in _TABLES and table in merged:
            known = {_identity(entry): entry for entry in merged[table]}
            for entry in entries:  # an entry of the same name changes fields, a new one is added
                if _identity(entry) in known:
                    known[_identity(entry)].update(entry)
                else:
                    merged[table].append(copy.deepcopy(entry))
        elif isinstance(entries, dict) and isinstance(merged.get(table), dict):
            merged[table].update(entries)
        else:
            merged[table] = entries
    return merged


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    # As text, since a name may still be anything, and only texts of one name are one entry.
    return tuple(repr(entry.get(key)) for key in ("name", "source", "target", "between"))


class _Reader:
    """Reads fields of TOML tables; every error names the file, the object and the field."""

    def __init__(self, where: str) -> None:
        self.where = where

    def error(self, what: str, remedy: str, number: Any = None) -> BadMachine:
        return BadMachine(
            f"machine '{self.where}': {what}", object=what.split(" has ")[0], number=number, remedy=remedy
        )

    def keys(self, table: str, entry: dict[str, Any], what: str) -> None:
        for key in entry:
            if key not in _KEYS[table]:
                raise self.error(
                    f"{what} has the unknown key {shorten(key)}", f"use {', '.join(sorted(_KEYS[table]))}"
                )

    def tables(self, values: dict[str, Any], table: str) -> list[dict[str, Any]]:
        entries = values.get(table, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"'{table}' has no list of tables", f"write [[{table}]]")
        for entry in entries:
            self.keys(table, entry, f"{table} {shorten(entry.get('name', '?'))}")
        return entries

    def text(self, entry: dict[str, Any], key: str, what: str) -> str:
        value = entry.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(f"{what} has no {key}", f'add {key} = "…"')
        return self.name(value, f"{what} has the {key}")

    def name(self, value: str, what: str) -> str:
        if len(value) > _LONGEST_NAME or not value.isprintable():
            raise self.error(
                f"{what} {shorten(value)}",
                f"use at most {_LONGEST_NAME} characters, and none that can't be seen",
            )
        return value

    def number(
        self,
        entry: dict[str, Any],
        key: str,
        what: str,
        parse: Callable[..., int],
        example: str,
        default: int | None = None,
    ) -> int:
        if key not in entry:
            if default is not None:
                return default
            raise self.error(f"{what} has no {key}", f'add {key} = "{example}"')
        try:
            return parse(entry[key], key)
        except ValueError as error:
            raise self.error(f"{what}: {error}", f'write {key} = "{example}"', shorten(entry[key])) from None

    def share(self, entry: dict[str, Any], key: str, what: str) -> float:
        value = entry.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise self.error(
                f"{what} has {key} {shorten(value)}", "give a number above 0 and at most 1", shorten(value)
            )
        return float(value)

    def count(self, entry: dict[str, Any], what: str, most: int) -> int | None:
        value = entry.get("count")
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise self.error(f"{what} has count {shorten(value)}", f"give a whole number from 1 to {most}")
        return value

    def names(self, entry: dict[str, Any], key: str, what: str, most: int) -> list[str]:
        value = entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(f"{what} has {key} {shorten(value)}", f'write {key} = ["…", "…"]')
        if len(value) > most:
            raise self.error(f"{what} has {len(value):,} {key}", f"give at most {most:,}", len(value))
        return [self.name(name, f"{what} has in its {key}") for name in value]


def _memories(read: _Reader, entry: dict[str, Any]) -> list[Memory]:
    name = read.text(entry, "name", "a memory")
    what = f"memory '{name}'"
    efficiency = read.share(entry, "efficiency", what)
    both = read.number(entry, "bandwidth", what, parse_rate, "100GB/s", 0)
    sides = []
    for side in ("read", "write"):
        rate = read.number(entry, side, what, parse_rate, "100GB/s", both)
        if rate == 0:
            raise read.error(f"{what} has no bandwidth", 'add bandwidth = "100GB/s"')
        sides.append(max(1, round(rate * efficiency)))
    capacity = read.number(entry, "capacity", what, parse_bytes, "512KiB")
    alignment = read.number(entry, "alignment", what, parse_bytes, "64", 1)
    if not 1 <= alignment <= 2**30:
        raise read.error(f"{what} has alignment {alignment}", "give 1 to 2^30 bytes", alignment)
    latency = read.number(entry, "latency", what, parse_time, "100ns", 0)
    count = read.count(entry, what, MOST_MEMORIES)
    names = [name] if count is None else [f"{name}{i}" for i in range(count)]
    return [Memory(each, capacity, sides[0], sides[1], latency, alignment) for each in names]


def _devices(read: _Reader, entry: dict[str, Any], memories: Sequence[Memory]) -> list[Device]:
    name = read.text(entry, "name", "a device")
    what = f"device '{name}'"
    efficiencies = entry.get("efficiency", {})
    if not isinstance(efficiencies, dict) or not set(efficiencies) <= set(FLOP_CLASSES):
        raise read.error(
            f"{what} has efficiency {shorten(efficiencies)}",
            f"write efficiency = {{ matrix = 0.7 }}, for {', '.join(FLOP_CLASSES)}",
        )
    rates: dict[str, dict[str, int]] = {}
    for kind in FLOP_CLASSES:
        given = entry.get(kind)
        if given is None:
            if kind == "transcendental":
                continue
            raise read.error(f"{what} has no {kind} rate", f'add {kind} = "1Tflop/s"')
        by_type = given if isinstance(given, dict) else {"*": given}
        if not by_type:
            raise read.error(f"{what} has no {kind} rate in {{}}", f'write {kind} = "1Tflop/s"')
        share = read.share(efficiencies, kind, what)
        rates[kind] = {}
        for dtype in by_type:
            if dtype != "*" and dtype not in BITS:
                raise read.error(
                    f"{what} has a {kind} rate for the unknown type {shorten(dtype)}", "use f32, bf16, i8, …"
                )
            rate = read.number(by_type, dtype, f"{what}, {kind}", parse_rate, "1Tflop/s")
            rates[kind][dtype] = max(1, round(rate * share))
    launch = read.number(entry, "launch", what, parse_time, "1us", 0)
    units = entry.get("units", [list(FLOP_CLASSES)])
    if not _shares_out(units):
        raise read.error(
            f"{what} has units {shorten(units)}", f"put each of {', '.join(FLOP_CLASSES)} into one unit"
        )
    count = read.count(entry, what, MOST_DEVICES)
    reach = read.names(entry, "memories", what, MOST_MEMORIES)
    reach = reach or [memory.name for memory in memories]
    return [
        Device(
            name if count is None else f"{name}{i}",
            tuple(m.replace("{i}", str(i)) for m in reach),
            rates,
            launch,
            tuple(tuple(unit) for unit in units),
        )
        for i in range(count or 1)
    ]


def _shares_out(units: Any) -> bool:
    """Whether it is a list of lists in which every class is once."""
    if not isinstance(units, list) or not all(isinstance(unit, list) and unit for unit in units):
        return False
    classes = [each for unit in units for each in unit]
    return len(classes) == len(FLOP_CLASSES) and all(each in classes for each in FLOP_CLASSES)


def _links(read: _Reader, entry: dict[str, Any], memories: Sequence[Memory]) -> list[Link]:
    if "between" in entry:
        stem = read.text(entry, "between", "a link")
        ends = [m.name for m in memories if m.name.startswith(stem) and m.name[len(stem) :].isdigit()]
        check_counts(read.where, links=len(ends) * (len(ends) - 1))
        pairs = [(a, b) for a in ends for b in ends if a != b]
    else:
        pairs = [(read.text(entry, "source", "a link"), read.text(entry, "target", "a link"))]
    what = f"link '{entry.get('between') or ' to '.join(pairs[0])}'"
    bandwidth = read.number(entry, "bandwidth", what, parse_rate, "10GB/s")
    latency = read.number(entry, "latency", what, parse_time, "20us", 0)
    engines = (
        read.names(entry, "engines", what, _MOST_ENGINES)
        if "engines" in entry
        else ["out.{source}", "in.{target}"]
    )
    links = []
    for a, b in pairs:
        held = tuple(e.replace("{source}", a).replace("{target}", b) for e in engines)
        for engine in held:  # once more: a short pattern may become a very long name
            read.name(engine, f"{what} has in its engines")
        links.append(Link(a, b, bandwidth, latency, held))
    return links


def _rules(read: _Reader, entry: Any) -> Rules:
    if not isinstance(entry, dict):
        raise read.error("'rules' has no table", "write [rules]")
    read.keys("rules", entry, "'rules'")
    for key, allowed in (
        ("ports", ("serial", "parallel")),
        ("copies", ("free", "idle")),
        ("reach", ("all", "first")),
    ):
        if entry.get(key, allowed[0]) not in allowed:
            raise read.error(
                f"rule '{key}' has the value {shorten(entry[key])}", f"use {' or '.join(allowed)}"
            )
    overlap = entry.get("overlap", 0)
    if isinstance(overlap, bool) or not isinstance(overlap, int | float) or not 0 <= overlap <= 1:
        raise read.error(f"rule 'overlap' has the value {shorten(overlap)}", "give a number from 0 to 1")
    return Rules(
        entry.get("ports", "serial"),
        round(overlap * 10**6),
        entry.get("copies", "free"),
        entry.get("reach", "all"),
    )


def _whole(read: _Reader, machine: Machine) -> None:
    for what, names in (
        ("memory", [m.name for m in machine.memories]),
        ("device", [d.name for d in machine.devices]),
    ):
        if not names:
            raise read.error(f"it has no {what}", f"add [[{what}]]")
        twice = {name for name in names if names.count(name) > 1} if len(names) != len(set(names)) else set()
        if twice:
            raise read.error(f"two {what} entries are named '{min(twice)}'", "rename one")
    for device in machine.devices:
        if len(set(device.memories)) != len(device.memories):
            raise read.error(f"device '{device.name}' has a memory twice", "list each once")
        for name in device.memories:
            machine.memory(name)
    pairs = set()
    for link in machine.links:
        pair = (machine.memory(link.source), machine.memory(link.target))
        if pair in pairs or pair[0] == pair[1]:
            raise read.error(
                f"link '{link.source} to {link.target}' is there twice or leads nowhere", "remove it"
            )
        pairs.add(pair)
    if machine.rules.copies == "idle" and len(machine.devices) != 1:
        raise read.error(
            f"copies = 'idle' needs one device and there are {len(machine.devices)}",
            "use copies = 'free'",
            len(machine.devices),
        )
