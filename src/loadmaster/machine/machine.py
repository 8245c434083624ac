"""`Machine`: devices, memories, links, and the rules by which they work. Plain data.

Rates and bandwidths are per second with efficiencies already multiplied in; times are
picoseconds; sizes are bytes. A machine comes from a TOML file (`loadmaster.machine.toml`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from loadmaster.errors import BadMachine, nearest


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
    plans copy there what an op needs. It says which problem suits, and changes no time."""


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

    def memory(self, name: str) -> int:
        """The number of a memory."""
        return self._find([memory.name for memory in self.memories], name, "memory")

    def device(self, name: str) -> int:
        """The number of a device."""
        return self._find([device.name for device in self.devices], name, "device")

    def _find(self, names: list[str], name: str, what: str) -> int:
        if name not in names:
            raise BadMachine(
                f"machine '{self.name}' has no {what} '{name}'{nearest(name, names)}",
                object=name,
                remedy=f"use one of {', '.join(names)}",
            )
        return names.index(name)

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
        return {
            (self.memory(link.source), self.memory(link.target)): i
            for i, link in enumerate(self.links)
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the values: not of the text, the description or the exporters' settings."""
        values = asdict(replace(self, text="", description="", export={}))
        del values["rules"]["reach"]  # no result depends on it
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def with_capacity(self, memory: str, capacity: int) -> Machine:
        """The same machine with another capacity for one memory."""
        number = self.memory(memory)
        memories = list(self.memories)
        memories[number] = replace(memories[number], capacity=capacity)
        return replace(self, memories=tuple(memories), text="")
