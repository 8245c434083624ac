"""Machines by name: the presets in this folder, their variants, TOML files and `arena:SIZE`.

`nnp-i:sram=2MiB` is a preset with another capacity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from loadmaster.errors import BadMachine, nearest
from loadmaster.files import read_regular
from loadmaster.machine.machine import Link, Machine
from loadmaster.machine.toml import MOST_BYTES, parse_machine, read_toml
from loadmaster.units import UNLIMITED, parse_bytes

VARIANTS = {
    "free": "transfers never wait for each other",
    "duplex": "one engine per memory for both directions",
    "bus": "one engine for the whole machine",
}
"""Suffixes of any machine with links, to see how much a result owes to the channel rule."""


def preset_names() -> list[str]:
    """The presets, sorted."""
    return list(_preset_names())


@cache
def _preset_names() -> tuple[str, ...]:
    folder = resources.files("loadmaster.machine") / "presets"
    files = (file.name for file in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def preset_text(name: str) -> str:
    """The TOML of a preset."""
    if name not in preset_names():
        raise BadMachine(
            f"there is no machine '{name}'{nearest(name, preset_names())}",
            object=name,
            remedy="see 'loadmaster machines', or give a TOML file or arena:SIZE",
        )
    return (resources.files("loadmaster.machine") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def load_machine(name: str) -> Machine:
    """Load a machine by its name or from a file, which is read anew each time: it may have changed.

    Args:
      name: a preset, a variant of one ('p100x4-bus'), one with another capacity ('h200:hbm=2GiB'), a TOML file,
        a JSON file of dnn-partitioning, or 'arena:256KiB'.

    Returns:
      the machine; memories and devices are numbered in the file's order.
    """
    if name.startswith("arena:"):
        return _arena(name)
    preset, colon, sizes = name.partition(":")
    if colon and preset in preset_names():
        return with_capacities(load_machine(preset), sizes.split(","))
    stem, _, suffix = name.rpartition("-")
    if name in preset_names() or (suffix in VARIANTS and stem in preset_names()):
        return _preset(name)
    if name.lower().endswith(".json"):
        from loadmaster.machine.dnn_partitioning import read_dnn_machine

        return read_dnn_machine(name)
    if name.endswith(".toml") or "/" in name or _is_there(name):
        return read_machine(Path(name))
    preset_text(name)  # raises with the nearest name
    raise AssertionError("unreachable")


@cache
def _preset(name: str) -> Machine:
    """A preset, or a variant of one: the package's own, which does not change."""
    if name in preset_names():
        return parse_machine(preset_text(name), name, preset_text)
    stem, _, suffix = name.rpartition("-")
    return _variant(_preset(stem), suffix)


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long, or nothing that a file can be called
        return False


def read_machine(path: Path) -> Machine:
    """A machine from a TOML file; its `base` may be a preset or a file beside it."""

    def find_base(name: str) -> str:
        try:
            return _text_of(path.parent / name)
        except (FileNotFoundError, IsADirectoryError):
            return preset_text(name)

    try:
        text = _text_of(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise _unreadable(path, str(error.strerror)) from None
    return parse_machine(text, str(path), find_base)


def _text_of(path: Path) -> str:
    """A file's text. That it is not there is for the caller to judge."""
    try:
        return read_regular(path, MOST_BYTES).decode("utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise _unreadable(path, "it is not text") from None


def _unreadable(path: Path, reason: str) -> BadMachine:
    return BadMachine(f"machine '{path}' can't be read: {reason}", object=str(path), remedy="check the path")


def with_capacities(machine: Machine, sizes: Sequence[str]) -> Machine:
    """The machine with other capacities, each written 'sram=2MiB'; its name tells them."""
    for text in sizes:
        memory, _, size = text.partition("=")
        try:
            capacity = parse_bytes(size, f"the capacity of '{memory}'")
        except ValueError as error:
            raise BadMachine(f"{error}", object=memory, number=size, remedy="write sram=2MiB") from None
        machine = machine.with_capacity(memory, capacity)
    return replace(machine, name=f"{machine.name}:{','.join(sizes)}") if sizes else machine


def _variant(machine: Machine, suffix: str) -> Machine:
    def engines(link: Link) -> tuple[str, ...]:
        if suffix == "free":
            return ()
        return ("bus",) if suffix == "bus" else (f"port.{link.source}", f"port.{link.target}")

    links = tuple(replace(link, engines=engines(link)) for link in machine.links)
    return replace(machine, name=f"{machine.name}-{suffix}", links=links, text="")


def _arena(name: str) -> Machine:
    # One memory of the given size for all but the weights, which lie in a memory without limit.
    size = name.removeprefix("arena:")
    try:
        capacity = parse_bytes(size, "capacity")
    except ValueError as error:
        raise BadMachine(f"machine '{name}': {error}", object=name, remedy="write arena:256KiB") from None
    if not re.fullmatch(r"[0-9A-Za-z._]+", size) or capacity < 1:
        raise BadMachine(f"machine '{name}' has no size", object=name, remedy="write arena:256KiB")
    text = f"""
name = "arena"
description = "one arena for all but the weights; times mean nothing on it"
[[memory]]
name = "arena"
capacity = {capacity}
bandwidth = "1GB/s"
[[memory]]
name = "flash"
capacity = "unlimited"
bandwidth = "1GB/s"
[[device]]
name = "core"
memories = ["flash", "arena"] # what is not decided lives in the arena
matrix = "1Gflop/s"
vector = "1Gflop/s"
"""
    return parse_machine(text, name, preset_text)


# A machine's TOML: the text it came from with its bases, or one made from its values.
#
# It is written by hand, in twenty lines: the core needs NumPy alone, and Python reads TOML but writes none.


def machine_text(machine: Machine) -> str:
    """TOML that makes this machine anywhere: its own text unless it leans on a file elsewhere."""
    base = _base(machine.text)
    if machine.text and (base is None or base in preset_names()):
        return machine.text
    return _written(machine)


def standalone_text(machine: Machine) -> str:
    """TOML that makes this machine without any other file: what a run folder keeps."""
    return machine.text if machine.text and _base(machine.text) is None else _written(machine)


def list_sources(name: str, machine: Machine) -> list[tuple[str, str]]:
    """(name, TOML) of a machine and of the presets it builds on; the comments name the sources."""
    texts = [(name, machine.text)] if machine.text else []
    base = _base(machine.text) if machine.text else name.rpartition("-")[0]
    while base is not None and len(texts) < 10:
        beside = Path(name).parent / base
        if beside.is_file():
            text = read_regular(beside, MOST_BYTES).decode("utf-8")
        elif base in preset_names():
            text = preset_text(base)
        else:
            break
        texts.append((base, text))
        base = _base(text)
    return texts


def _base(text: str) -> str | None:
    base = read_toml(text).get("base")
    return None if base is None else str(base)


def _written(machine: Machine) -> str:
    rules = machine.rules
    lines = [f"name = {_text(machine.name)}"]
    if machine.description:
        lines.append(f"description = {_text(machine.description)}")
    lines += [
        "",
        "[rules]",
        f"ports = {_text(rules.ports)}",
        f"copies = {_text(rules.copies)}",
        f"overlap = {rules.overlap / 10**6}",
    ]
    if rules.reach != "all":
        lines.append(f"reach = {_text(rules.reach)}")
    for m in machine.memories:
        lines += _table(
            "memory",
            {
                "name": m.name,
                "capacity": "unlimited" if m.capacity >= UNLIMITED else m.capacity,
                "read": m.read,
                "write": m.write,
                "latency": f"{m.latency}ps",
                "alignment": m.alignment,
            },
        )
    for d in machine.devices:
        rates = {kind: dict(by_type) for kind, by_type in d.rates.items()}
        lines += _table(
            "device",
            {
                "name": d.name,
                "memories": list(d.memories),
                **rates,
                "launch": f"{d.launch}ps",
                "units": [list(u) for u in d.units],
            },
        )
    for k in machine.links:
        lines += _table(
            "link",
            {
                "source": k.source,
                "target": k.target,
                "bandwidth": k.bandwidth,
                "latency": f"{k.latency}ps",
                "engines": list(k.engines),
            },
        )
    return "\n".join(lines) + "\n"


def _table(name: str, values: dict[str, Any]) -> list[str]:
    return ["", f"[[{name}]]", *(f"{key} = {_value(value)}" for key, value in values.items())]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_text(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(entry) for entry in value) + "]"
    return _text(value) if isinstance(value, str) else str(value)


def _text(text: str) -> str:
    # JSON's escapes are TOML's too, but for characters that JSON leaves as they are.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
