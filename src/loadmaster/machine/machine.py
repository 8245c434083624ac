"""`Machine`: devices, memories, links, and the rules by which they work. Plain data.

Rates and bandwidths are per second with efficiencies already multiplied in; times are
picoseconds; sizes are bytes. A machine comes from a TOML file (`loadmaster.machine.toml`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from loadmaster.errors import BadMachine, nearest

MOST_MEMORIES = 256
MOST_DEVICES = 256
MOST_LINKS = 2**14
"""More than every ordered pair of 128 memories."""


@dataclass(frozen=True)
class Memory:
    """A place for tensors."""

    name: str
    capacity: int
    read: int
    """Bytes per second."""
    write: int
    latency: int = 0
    """Picoseconds, paid once per access."""
    alignment: int = 1
    """Offsets are multiples of it, and sizes count rounded up to it."""


@dataclass(frozen=True)
class Device:
    """A place for ops. It reaches `memories`, fastest first; what is not decided lives in the last."""

    name: str
    memories: tuple[str, ...]
    rates: Mapping[str, Mapping[str, int]]
    """Flop class -> element type -> flops per second; the type '*' serves all others.
    Without the class 'transcendental', such an evaluation takes several vector flops."""
    launch: int = 0
    """Picoseconds per op."""
    units: tuple[tuple[str, ...], ...] = (("matrix", "vector", "transcendental"),)
    """Flop classes that share a unit: times within a unit add up, units work side by side."""


@dataclass(frozen=True)
class Link:
    """A way from one memory to another, for copies and for transfers between devices."""

    source: str
    target: str
    bandwidth: int
    latency: int = 0
    engines: tuple[str, ...] = ()
    """Each engine serves one copy at a time; a copy holds all engines of its link."""


@dataclass(frozen=True)
class Rules:
    """How the parts work together."""

    ports: str = "serial"
    """'serial': the memory times of an op add up; 'parallel': memories serve it side by side."""
    overlap: int = 0
    """Millionths of the smaller of compute and memory time that is added to the larger."""
    copies: str = "free"
    """'free': copies run on their link; 'idle': only while ops leave the slowest memory idle."""
    reach: str = "all"
    """'all': ops work in every memory of their device; 'first': in its first alone, as on a GPU, so that
    plans copy there what an op needs. It changes no time: the checker refuses plans that do not."""


@dataclass(frozen=True)
class Machine:
    """A machine. `text` is the TOML it came from; `export` holds settings for exporters."""

    name: str
    devices: tuple[Device, ...]
    memories: tuple[Memory, ...]
    links: tuple[Link, ...] = ()
    rules: Rules = Rules()
    description: str = ""
    text: str = field(default="", repr=False, compare=False)
    export: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_counts(self.name, memories=len(self.memories), devices=len(self.devices), links=len(self.links))

    def memory(self, name: str) -> int:
        """The number of a memory."""
        return self._find(self._memory_numbers, name, "memory")

    def device(self, name: str) -> int:
        """The number of a device."""
        return self._find(self._device_numbers, name, "device")

    # Reversed: where two have one name, which no file can give, the first is meant.
    @cached_property
    def _memory_numbers(self) -> dict[str, int]:
        return {m.name: i for i, m in reversed(list(enumerate(self.memories)))}

    @cached_property
    def _device_numbers(self) -> dict[str, int]:
        return {d.name: i for i, d in reversed(list(enumerate(self.devices)))}

    def _find(self, numbers: dict[str, int], name: str, what: str) -> int:
        if name not in numbers:
            names = sorted(numbers, key=numbers.__getitem__)
            raise BadMachine(
                f"machine '{self.name}' has no {what} '{name}'{nearest(name, names)}",
                object=name,
                remedy=f"use one of {', '.join(names)}",
            )
        return numbers[name]

    @cached_property
    def reach(self) -> tuple[tuple[int, ...], ...]:
        """The memories of each device by number, fastest first."""
        return tuple(tuple(map(self.memory, device.memories)) for device in self.devices)

    @cached_property
    def home(self) -> tuple[int, ...]:
        """The memory of each device where undecided tensors live: its last."""
        return tuple(memories[-1] for memories in self.reach)

    @cached_property
    def engines(self) -> tuple[str, ...]:
        """The names of all engines, in the order of the links."""
        return tuple(dict.fromkeys(engine for link in self.links for engine in link.engines))

    @cached_property
    def link_between(self) -> dict[tuple[int, int], int]:
        """(source memory, target memory) -> link."""
        return {(self.memory(link.source), self.memory(link.target)): i for i, link in enumerate(self.links)}

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the values: not of the text, the description or the exporters' settings."""
        values = {**_values(self), "text": "", "description": "", "export": {}}
        values["rules"] = _values(self.rules)
        del values["rules"]["reach"]  # it changes no time, and plan files were made without it
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=_values).encode()).hexdigest()

    @cached_property
    def first_alone(self) -> bool:
        """Whether ops work in the first of several memories alone: the others are for what waits."""
        return self.rules.reach == "first" and any(len(memories) > 1 for memories in self.reach)

    def with_reach(self, reach: str) -> Machine:
        """The same machine with another rule for the memories that ops work in."""
        return replace(self, rules=replace(self.rules, reach=reach), text="")

    def with_capacity(self, memory: str, capacity: int) -> Machine:
        """The same machine with another capacity for one memory."""
        number = self.memory(memory)
        memories = list(self.memories)
        memories[number] = replace(memories[number], capacity=capacity)
        return replace(self, memories=tuple(memories), text="")


def _values(part: Any) -> dict[str, Any]:
    """The fields of a part, as they are: `asdict` would copy each of them deeply, which takes three times as long."""
    return {each.name: getattr(part, each.name) for each in fields(part)}


def check_counts(machine: str, *, memories: int = 0, devices: int = 0, links: int = 0) -> None:
    """Refuse more than solvers and the simulator are made for; a reader asks before it makes them."""
    for what, count, most in (
        ("memories", memories, MOST_MEMORIES),
        ("devices", devices, MOST_DEVICES),
        ("links", links, MOST_LINKS),
    ):
        if count > most:
            raise BadMachine(
                f"machine '{machine}' has {count:,} {what}",
                object=machine,
                number=count,
                remedy=f"give at most {most:,}",
            )
