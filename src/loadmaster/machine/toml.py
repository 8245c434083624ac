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
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from typing import Any

from loadmaster.errors import BadMachine
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.program.program import FLOP_CLASSES
from loadmaster.program.types import BITS
from loadmaster.units import parse_bytes, parse_rate, parse_time

_KEYS = {
    "": {"name", "description", "base", "rules", "memory", "device", "link", "export"},
    "rules": {"ports", "overlap", "copies", "reach"},
    "memory": {"name", "count", "capacity", "bandwidth", "read", "write", "efficiency", "latency",
               "alignment"},
    "device": {"name", "count", "memories", "launch", "units", "efficiency", *FLOP_CLASSES},
    "link": {"source", "target", "between", "bandwidth", "latency", "engines"},
}  # fmt: skip
_MOST = 4096
"""Devices, memories or links of one entry: a typing error must not fill the memory."""


def parse_machine(text: str, where: str, find_base: Callable[[str], str]) -> Machine:
    """Read a machine; `where` names it in errors, `find_base` gives the text of a base."""
    values = _merged(text, where, find_base, depth=0)
    read = _Reader(where)
    read.keys("", values, where)
    name = read.text(values, "name", f"machine '{where}'")
    memories = tuple(m for entry in read.tables(values, "memory") for m in _memories(read, entry))
    devices = tuple(
        d for entry in read.tables(values, "device") for d in _devices(read, entry, memories)
    )
    links = tuple(k for entry in read.tables(values, "link") for k in _links(read, entry, memories))
    rules = _rules(read, values.get("rules", {}))
    machine = Machine(name, devices, memories, links, rules, str(values.get("description", "")), text,
                      values.get("export", {}))  # fmt: skip
    _whole(read, machine)
    return machine


def _merged(text: str, where: str, find_base: Callable[[str], str], depth: int) -> dict[str, Any]:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadMachine(
            f"machine '{where}' is not TOML: {error}", object=where, remedy="mend the file"
        ) from None
    base = values.pop("base", None)
    if base is None:
        return values
    if depth > 8:
        raise BadMachine(
            f"machine '{where}' has bases without end", object=where, remedy="remove 'base'"
        )
    merged = _merged(find_base(str(base)), str(base), find_base, depth + 1)
    for table, entries in values.items():
        if table in ("memory", "device", "link") and table in merged and isinstance(entries, list):
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


def _identity(entry: Any) -> tuple[Any, ...]:
    return (
        tuple(entry.get(key) for key in ("name", "source", "target", "between"))
        if isinstance(entry, dict)
        else ()
    )


class _Reader:
    """Reads fields of TOML tables; every error names the file, the object and the field."""

    def __init__(self, where: str) -> None:
        self.where = where

    def error(self, what: str, remedy: str, number: Any = None) -> BadMachine:
        return BadMachine(f"machine '{self.where}': {what}", object=what.split(" has ")[0], number=number,
                          remedy=remedy)  # fmt: skip

    def keys(self, table: str, entry: dict[str, Any], what: str) -> None:
        for key in entry:
            if key not in _KEYS[table]:
                raise self.error(
                    f"{what} has the unknown key '{key}'", f"use {', '.join(sorted(_KEYS[table]))}"
                )

    def tables(self, values: dict[str, Any], table: str) -> list[dict[str, Any]]:
        entries = values.get(table, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.error(f"'{table}' has no list of tables", f"write [[{table}]]")
        for entry in entries:
            self.keys(table, entry, f"{table} '{entry.get('name', '?')}'")
        return entries

    def text(self, entry: dict[str, Any], key: str, what: str) -> str:
        value = entry.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(f"{what} has no {key}", f'add {key} = "…"')
        return value

    def number(self, entry: dict[str, Any], key: str, what: str, parse: Callable[..., int], example: str,
               default: int | None = None) -> int:  # fmt: skip
        if key not in entry:
            if default is not None:
                return default
            raise self.error(f"{what} has no {key}", f'add {key} = "{example}"')
        try:
            return parse(entry[key], key)
        except ValueError as error:
            raise self.error(
                f"{what}: {error}", f'write {key} = "{example}"', str(entry[key])
            ) from None

    def share(self, entry: dict[str, Any], key: str, what: str) -> float:
        value = entry.get(key, 1.0)
        if not isinstance(value, int | float) or not 0 < value <= 1:
            raise self.error(
                f"{what} has {key} {value!r}", "give a number above 0 and at most 1", str(value)
            )
        return float(value)

    def count(self, entry: dict[str, Any], what: str) -> int | None:
        value = entry.get("count")
        if value is not None and (type(value) is not int or not 1 <= value <= _MOST):
            raise self.error(
                f"{what} has count {value!r}", f"give a whole number from 1 to {_MOST}"
            )
        return value

    def names(self, entry: dict[str, Any], key: str, what: str) -> list[str]:
        value = entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(f"{what} has {key} {value!r}", f'write {key} = ["…", "…"]')
        return value


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
    count = read.count(entry, what)
    names = [name] if count is None else [f"{name}{i}" for i in range(count)]
    return [Memory(each, capacity, sides[0], sides[1], latency, alignment) for each in names]


def _devices(read: _Reader, entry: dict[str, Any], memories: tuple[Memory, ...]) -> list[Device]:
    name = read.text(entry, "name", "a device")
    what = f"device '{name}'"
    efficiencies = entry.get("efficiency", {})
    if not isinstance(efficiencies, dict):
        raise read.error(
            f"{what} has efficiency {efficiencies!r}", "write efficiency = { matrix = 0.7 }"
        )
    rates: dict[str, dict[str, int]] = {}
    for kind in FLOP_CLASSES:
        given = entry.get(kind)
        if given is None:
            if kind == "transcendental":
                continue
            raise read.error(f"{what} has no {kind} rate", f'add {kind} = "1Tflop/s"')
        by_type = given if isinstance(given, dict) else {"*": given}
        share = read.share(efficiencies, kind, what)
        rates[kind] = {}
        for dtype in by_type:
            if dtype != "*" and dtype not in BITS:
                raise read.error(
                    f"{what} has a {kind} rate for the unknown type '{dtype}'",
                    "use f32, bf16, i8, …",
                )
            rate = read.number(by_type, dtype, f"{what}, {kind}", parse_rate, "1Tflop/s")
            rates[kind][dtype] = max(1, round(rate * share))
    launch = read.number(entry, "launch", what, parse_time, "1us", 0)
    units = entry.get("units", [list(FLOP_CLASSES)])
    if sorted(c for unit in units if isinstance(unit, list) for c in unit) != sorted(FLOP_CLASSES):
        raise read.error(
            f"{what} has units {units!r}", f"put each of {', '.join(FLOP_CLASSES)} into one unit"
        )
    count = read.count(entry, what)
    reach = read.names(entry, "memories", what) or [memory.name for memory in memories]
    return [
        Device(name if count is None else f"{name}{i}", tuple(m.replace("{i}", str(i)) for m in reach),
               rates, launch, tuple(tuple(unit) for unit in units))
        for i in range(count or 1)
    ]  # fmt: skip


def _links(read: _Reader, entry: dict[str, Any], memories: tuple[Memory, ...]) -> list[Link]:
    if "between" in entry:
        stem = read.text(entry, "between", "a link")
        ends = [
            m.name for m in memories if m.name.startswith(stem) and m.name[len(stem) :].isdigit()
        ]
        pairs = [(a, b) for a in ends for b in ends if a != b]
    else:
        pairs = [(read.text(entry, "source", "a link"), read.text(entry, "target", "a link"))]
    what = f"link '{entry.get('between') or ' to '.join(pairs[0])}'"
    bandwidth = read.number(entry, "bandwidth", what, parse_rate, "10GB/s")
    latency = read.number(entry, "latency", what, parse_time, "20us", 0)
    engines = (
        read.names(entry, "engines", what)
        if "engines" in entry
        else ["out.{source}", "in.{target}"]
    )
    return [
        Link(
            a,
            b,
            bandwidth,
            latency,
            tuple(e.replace("{source}", a).replace("{target}", b) for e in engines),
        )
        for a, b in pairs
    ]


def _rules(read: _Reader, entry: Any) -> Rules:
    if not isinstance(entry, dict):
        raise read.error("'rules' has no table", "write [rules]")
    read.keys("rules", entry, "'rules'")
    for key, allowed in (("ports", ("serial", "parallel")), ("copies", ("free", "idle")),
                         ("reach", ("all", "first"))):  # fmt: skip
        if entry.get(key, allowed[0]) not in allowed:
            raise read.error(
                f"rule '{key}' has the value {entry[key]!r}", f"use {' or '.join(allowed)}"
            )
    overlap = entry.get("overlap", 0)
    if not isinstance(overlap, int | float) or not 0 <= overlap <= 1:
        raise read.error(f"rule 'overlap' has the value {overlap!r}", "give a number from 0 to 1")
    return Rules(entry.get("ports", "serial"), round(overlap * 10**6), entry.get("copies", "free"),
                 entry.get("reach", "all"))  # fmt: skip


def _whole(read: _Reader, machine: Machine) -> None:
    for what, names in (
        ("memory", [m.name for m in machine.memories]),
        ("device", [d.name for d in machine.devices]),
    ):
        if not names:
            raise read.error(f"it has no {what}", f"add [[{what}]]")
        twice = (
            {name for name in names if names.count(name) > 1}
            if len(names) != len(set(names))
            else set()
        )
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
                f"link '{link.source} to {link.target}' is there twice or leads nowhere",
                "remove it",
            )
        pairs.add(pair)
    if machine.rules.copies == "idle" and len(machine.devices) != 1:
        raise read.error(f"copies = 'idle' needs one device and there are {len(machine.devices)}",
                         "use copies = 'free'", len(machine.devices))  # fmt: skip
