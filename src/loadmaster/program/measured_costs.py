"""Measured op times as a file, and put into a program.

    {"loadmaster_costs": 1, "program": HASH, "device": "gpu", "picoseconds": [12000, null, …],
     "workspace_bytes": 4194304, "kept_bytes": 0, "op_workspace": [0, 4194304, …]}

One entry per op of the program; null: not measured, so its time is computed. `workspace_bytes` is what
kernels need beside the tensors of the program: planning leaves room for it. Of that, libraries keep
`kept_bytes` for good, and an op takes its `op_workspace` while it runs; both may be left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadmaster.errors import BadProgram
from loadmaster.files import read_regular
from loadmaster.json_text import read_json
from loadmaster.program.program import COMPUTED, Program

FORMAT = 1
_MOST_BYTES = 2**28


@dataclass(frozen=True)
class MeasuredCosts:
    """What was measured of one program on one device."""

    program: str
    """The hash of the program without a cost table."""
    device: str
    picoseconds: tuple[int | None, ...]
    workspace_bytes: int = 0
    kept_bytes: int = 0
    op_workspace: tuple[int, ...] = ()


def costless_hash(program: Program) -> str:
    """The hash of a program without its cost table, which measuring does not change."""
    return replace(program, costs=None).hash


def read_costs(path: str | Path) -> MeasuredCosts:
    """Read a file of `loadmaster calibrate`; every error names the file and what is wrong."""
    try:
        document = read_json(read_regular(path, _MOST_BYTES))
    except OSError as error:
        raise _bad(path, f"can't be read: {error.strerror}", "check the path") from None
    except ValueError as error:
        raise _bad(path, f"is not JSON: {error}", "make it with 'loadmaster calibrate'") from None
    if not isinstance(document, dict) or document.get("loadmaster_costs") != FORMAT:
        raise _bad(path, f"is no cost table of format {FORMAT}", "make it with 'loadmaster calibrate'")
    times, room = document.get("picoseconds"), document.get("workspace_bytes", 0)
    if not isinstance(times, list) or any(each is not None and not _is_amount(each) for each in times):
        raise _bad(path, "has no list 'picoseconds'", "give a whole number from 0 up, or null, per op")
    kept, own = document.get("kept_bytes", 0), document.get("op_workspace", [])
    for name, value in (("workspace_bytes", room), ("kept_bytes", kept)):
        if not _is_amount(value):
            raise _bad(path, f"has {name} {repr(value)[:80]}", "give a whole number from 0 up")
    if not isinstance(own, list) or not all(map(_is_amount, own)) or len(own) not in (0, len(times)):
        raise _bad(
            path, "has an 'op_workspace' that is no list of bytes", "give a whole number from 0 up per op"
        )
    return MeasuredCosts(
        str(document.get("program")), str(document.get("device")), tuple(times), room, kept, tuple(own)
    )


def apply_costs(program: Program, costs: MeasuredCosts, device: str | None = None) -> Program:
    """The program with measured times in place of computed ones, for a machine with one device."""
    if costs.program != costless_hash(program):
        raise _bad(
            costs.program[:12], f"is measured on another program than '{program.name}'", "calibrate this one"
        )
    if len(costs.picoseconds) != program.n_ops:
        raise _bad(
            costs.program[:12],
            f"has {len(costs.picoseconds):,} times and '{program.name}' has {program.n_ops:,} ops",
            "calibrate it again",
        )
    if device is not None and costs.device != device:
        raise _bad(
            costs.device,
            f"was measured on '{costs.device}' and the machine has '{device}'",
            "give the machine that was calibrated",
        )
    column = [COMPUTED if each is None else each for each in costs.picoseconds]
    return replace(program, costs=np.array(column, dtype=np.int64).reshape(-1, 1))


def _is_amount(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _bad(what: str | Path, message: str, remedy: str) -> BadProgram:
    return BadProgram(f"cost table '{what}' {message}", object=str(what), remedy=remedy)
