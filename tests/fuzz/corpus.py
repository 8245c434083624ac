"""Inputs that once crashed, hung, filled the memory or ended in a traceback, built in code and by name.

Every one is answered by exit code 2 and one line. What is found by fuzzing and mended gets its entry here."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.learn.policies import save_policy
from loadmaster.machine import load_machine
from loadmaster.plan import Plan, plan_to_json
from loadmaster.program import save

from .npz_files import npy
from .use import small_program

Entries = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """`write` puts the input into a folder, with a small program as 'small.npz'; `command` is what a user types
    there."""

    command: tuple[str, ...]
    write: Callable[[Path], None]


def _entries(path: Path) -> Entries:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zip(entries: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def _npy_with_header(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _encrypted(data: bytes) -> bytes:
    """The flag of the first entry, in both places where a zip has it."""
    found = bytearray(data)
    found[data.index(b"PK\x03\x04") + 6] |= 1
    found[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(found)


# --- programs and policies ---------------------------------------------------------------------


def _program(*changes: Callable[[Entries], None], last: Callable[[bytes], bytes] = bytes) -> Case:
    def write(folder: Path) -> None:
        entries = _entries(folder / "small.npz")
        for change in changes:
            change(entries)
        (folder / "bad.npz").write_bytes(last(_zip(entries)))

    return Case(("inspect", "bad.npz"), write)


def _policy(*changes: Callable[[Entries], None], last: Callable[[bytes], bytes] = bytes) -> Case:
    def write(folder: Path) -> None:
        save_policy(folder / "good.npz", {"a": np.zeros(3, np.float32)}, {"schema": 1, "model": "m"})
        entries = _entries(folder / "good.npz")
        for change in changes:
            change(entries)
        (folder / "bad.npz").write_bytes(last(_zip(entries)))

    plan = ("plan", "small.npz", "--machine", "toy2", "--problem", "graph", "--solver", "go", "--budget", "2")
    return Case((*plan, "--init", "bad.npz"), write)


def _column(name: str, values: Any, dtype: Any = np.int64) -> Callable[[Entries], None]:
    return lambda entries: entries.update({f"{name}.npy": npy(np.array(values, dtype=dtype))})


def _entry(name: str, content: bytes) -> Callable[[Entries], None]:
    return lambda entries: entries.update({name: content})


def _wrapping(name: str) -> Callable[[Entries], None]:
    """Starts of rows whose differences wrap round to small numbers."""

    def change(entries: Entries) -> None:
        array = np.lib.format.read_array(io.BytesIO(entries[f"{name}.npy"]))
        array[1], array[2] = 2**63 - 1, -(2**63) + 4
        entries[f"{name}.npy"] = npy(array)

    return change


def _many_loops(entries: Entries) -> None:
    _column("loop_parent", np.arange(-1, 19_999), np.int32)(entries)
    _column("loop_trips", np.ones(20_000))(entries)


def _huge_group(entries: Entries) -> None:
    groups = np.full(5, -1)
    groups[0] = 2**31 - 2
    _column("op_group", groups, np.int32)(entries)


def _bomb(data: bytes) -> bytes:
    """With an entry more, of 4 MB that unpack to nearly 4 GiB: one packed block of zeros, again and again."""
    header = _npy_with_header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({255 * 2**24},), }}")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)
    size = len(header) + 255 * 2**24
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("policy.big.npy", first + block * 255 + packer.flush())
        local, central = archive.getinfo("policy.big.npy").header_offset, archive.start_dir
    found = bytearray(file.getvalue())
    entry = found.rindex(b"PK\x01\x02", central)  # the last one is ours
    for at, field in ((local, 8), (entry, 10)):
        struct.pack_into("<H", found, at + field, zipfile.ZIP_DEFLATED)
        struct.pack_into("<I", found, at + field + 14, size)
    return bytes(found)


_HUGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904, 2), }"
_DEEP = npy(np.frombuffer(b"[" * 100_000, np.uint8))
_TEXT = npy(np.array(["x", "yy"]))
_BAD_ARRAYS = {
    "an entry that is no array": b"no array at all",
    "a broken header": _npy_with_header("{'descr': "),
    "a huge shape": _npy_with_header(_HUGE, bytes(64)),
    "pickled objects": _npy_with_header(
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"\x80\x04."
    ),
    "a type of texts": _TEXT,
}

CASES: dict[str, Case] = {
    "npz: write_start wraps round": _program(_wrapping("write_start")),
    "npz: read_start wraps round": _program(_wrapping("read_start")),
    "npz: a group of 2^31 - 2": _program(_huge_group),
    "npz: 20,000 loops inside one another": _program(_many_loops),
    "npz: bytes a little above 2^62": _program(_column("tensor_bytes", [2**62 + 2] + [0] * 6)),
    "npz: a carried tie without a loop": _program(
        _column("tie_kind", [1], np.int8),
        *(_column(f"tie_{name}", [at], np.int32) for name, at in (("source", 4), ("target", 5), ("at", -1))),
    ),
    "npz: encrypted": _program(last=_encrypted),
    "npz: deep JSON": _program(_entry("header.npy", _DEEP)),
    "policy: 4 GiB unpacked": _policy(last=_bomb),
    "policy: encrypted": _policy(last=_encrypted),
    "policy: deep JSON": _policy(_entry("about.npy", _DEEP)),
}
for _what, _content in _BAD_ARRAYS.items():
    CASES[f"npz: {_what}"] = _program(_entry("tensor_bytes.npy", _content))
    CASES[f"policy: {_what}"] = _policy(_entry("about.npy", _content))


# --- machines ----------------------------------------------------------------------------------


def _machine(text: str) -> Case:
    def write(folder: Path) -> None:
        (folder / "bad.toml").write_text(text, encoding="utf-8")

    return Case(("machines", "bad.toml"), write)


def _toml(memory: str = "capacity = 1024", device: str = 'matrix = "1Gflop/s"', more: str = "") -> str:
    return (
        f'name = "m"\n[[memory]]\nname = "sram"\nbandwidth = "1GB/s"\n{memory}\n'
        f'[[device]]\nname = "d"\nvector = "1Gflop/s"\n{device}\n{more}'
    )


CASES |= {
    "toml: an integer of 5,000 digits": _machine(_toml("capacity = " + "9" * 5000)),
    "toml: a capacity of 400 digits": _machine(_toml('capacity = "' + "9" * 400 + 'GiB"')),
    "toml: 3,000 brackets": _machine(_toml("capacity = " + "[" * 3000)),
    "toml: a derived memory whose name is a list": _machine(
        'base = "nnp-i"\nname = "x"\n[[memory]]\nname = ["x"]\n'
    ),
    "toml: a name that clears the screen": _machine(_toml().replace('"m"', r'"\u001b[2J"', 1)),
    "toml: units = 3": _machine(_toml(device='matrix = "1Gflop/s"\nunits = 3')),
    "toml: matrix = {}": _machine(_toml(device="matrix = {}")),
    "toml: a base that is no text": _machine("base = 7\n"),
    "toml: a base of 5,000 characters": _machine('base = "' + "x" * 5000 + '"\n'),
    "toml: 4,096 memories, all linked": _machine(
        _toml("capacity = 1024\ncount = 4096", more='[[link]]\nbetween = "sram"\nbandwidth = "1GB/s"\n')
    ),
}


# --- buffers, plans ----------------------------------------------------------------------------


def _buffers(name: str, text: str) -> Case:
    def write(folder: Path) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    return Case(("allocate", name), write)


def _plan(change: Callable[[dict[str, Any]], None], old: str = "", new: str = "") -> Case:
    def write(folder: Path) -> None:
        program, machine = small_program(), load_machine("nnp-i")
        priority = Plan(queue="priority", priority=np.arange(program.n_ops, dtype=np.float64))
        document = json.loads(plan_to_json(priority, program, machine))
        change(document)
        (folder / "bad.json").write_text(
            json.dumps(document).replace(old, new) if old else json.dumps(document)
        )

    return Case(("check", "small.npz", "bad.json", "--machine", "nnp-i"), write)


def _set_priority(document: dict[str, Any]) -> None:
    document["priority"][0] = 4711


_ROWS = "id,lower,upper,size\na,0,1,1\n"
CASES |= {
    "csv: a cell of 140,000 characters": _buffers("A.64.csv", _ROWS + "b" * 140_000 + ",0,1,1\n"),
    "csv: a capacity of 23 digits in the name": _buffers("A.99999999999999999999999.csv", _ROWS),
    "plan: 1e400 as a priority": _plan(_set_priority, "4711", "1e400"),
    "plan: an integer of 400 digits as a priority": _plan(_set_priority, "4711", "9" * 400),
}


def prepared(name: str, folder: Path) -> tuple[str, ...]:
    """Write a case's files; returns the command to give there."""
    save(small_program(), folder / "small.npz")
    CASES[name].write(folder)
    return CASES[name].command
