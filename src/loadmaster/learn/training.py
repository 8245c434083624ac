"""What the trainings of all agents have in common: how work is shared out, programs of one's own, what made a policy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.arrays import Array, Message
from loadmaster.errors import LoadmasterError, require
from loadmaster.host import command_line, versions
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine, standalone_text
from loadmaster.program.program import Program
from loadmaster.program.storage import load, save

Calls = Callable[[Sequence[Message]], list[Message]]
Workers = Callable[[str, Mapping[str, Any], Mapping[str, Any]], AbstractContextManager[tuple[Calls, int]]]
"""(name of the function, about, arrays) -> calls, and how many workers: `runs.workers.distribute_function`."""
Own = Sequence[tuple[Program, Machine]]
"""A user's programs, each with the machine that it is for."""
Report = Callable[[str], None]
"""Takes a line about how it goes."""


class Unfinished(LoadmasterError):
    """Training was ended before it had made a policy."""


def ignore(line: str) -> None:
    """A `Report` that says nothing."""


def check_seconds(seconds: float | None) -> None:
    """Raise where there is no time to learn anything."""
    if seconds is not None and not seconds > 0:
        raise LoadmasterError(
            f"nothing is learned in {seconds:g} s",
            object="seconds",
            number=seconds,
            remedy="give more time, or no limit",
        )


def require_agents(*packages: str) -> None:
    """Raise `MissingPackage` where what training needs is not installed."""
    for package in packages:
        require(package, "agents")


def pack_own(own: Own) -> dict[str, Array]:
    """Programs and machines as arrays, for workers."""
    arrays: dict[str, Array] = {}
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        for number, (program, machine) in enumerate(own):
            path = Path(folder) / "program.npz"
            save(program, path)
            arrays[f"program.{number}"] = np.frombuffer(path.read_bytes(), np.uint8)
            text = standalone_text(machine).encode()
            arrays[f"machine.{number}"] = np.frombuffer(text, np.uint8)
    return arrays


def unpack_own(arrays: Mapping[str, Array]) -> Own:
    """What `pack_own` packed."""
    own: list[tuple[Program, Machine]] = []
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        program, machine = Path(folder) / "program.npz", Path(folder) / "machine.toml"
        while f"program.{len(own)}" in arrays:
            program.write_bytes(arrays[f"program.{len(own)}"].tobytes())
            machine.write_bytes(arrays[f"machine.{len(own)}"].tobytes())
            own.append((load(program), read_machine(machine)))
    return own


def policy_header(agent: str, seed: int, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What made a policy, for its file."""
    return {
        "agent": agent,
        "command": command_line(),
        "seed": seed,
        "settings": dict(options),
        "versions": versions(),
        **more,
    }
