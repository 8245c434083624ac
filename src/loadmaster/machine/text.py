"""A machine's TOML: the text it came from with its bases, or one made from its values.

It is written by hand, in twenty lines: the core needs NumPy alone, and Python reads TOML but writes none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadmaster.files import read_regular
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import preset_names, preset_text
from loadmaster.machine.toml import MOST_BYTES, read_toml
from loadmaster.units import UNLIMITED


def machine_text(machine: Machine) -> str:
    """TOML that makes this machine anywhere: its own text unless it leans on a file elsewhere."""
    base = _base(machine.text)
    if machine.text and (base is None or base in preset_names()):
        return machine.text
    return _written(machine)


def standalone_text(machine: Machine) -> str:
    """TOML that makes this machine without any other file: what a run folder keeps."""
    return machine.text if machine.text and _base(machine.text) is None else _written(machine)


def sources(name: str, machine: Machine) -> list[tuple[str, str]]:
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
