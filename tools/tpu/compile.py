"""Ahead-of-time compilation for TPU v4i in a process of its own, and what the compiler dumped.

The compiler (libtpu, the extra `[tpu]`) ends the whole process on a bad flag, so it never runs in
ours. No TPU is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loadmaster
from loadmaster.errors import BadProgram

WORKER = "tools.tpu.worker"
FACTS = "facts.json"
ALL_SLOW = {"xla_msa_enable": "DISABLED"}
"""The flags of the same program with everything in HBM."""


def with_capacity(capacity: int) -> dict[str, str]:
    """The flags that let the compiler use so many bytes of CMEM; the flag counts KiB."""
    return {"xla_tpu_max_cmem_used_by_memory_space_assignment": str(capacity // 1024)}


@dataclass(frozen=True)
class Compiled:
    """One compilation: texts as the compiler writes them, and facts as the worker does."""

    before: str
    """Scheduled HLO before memory space assignment."""
    after: str
    """And after it."""
    assignment: str
    live_ranges: str
    facts: dict[str, Any]


def compile_for_tpu(
    source: str,
    flags: Mapping[str, str],
    *,
    python: str = sys.executable,
    seconds: float = 900,
    keep: Path | None = None,
) -> Compiled:
    """Compile a program of the suite, or what 'module:function' returns.

    `python` is an interpreter that has JAX and libtpu. `keep` is a folder for the dumps, which are
    read again if they are there. Raises `BadProgram` with the program and the flags if the compiler
    fails or takes longer than `seconds`.
    """
    if keep is not None:
        if not (keep / FACTS).exists():
            keep.mkdir(parents=True, exist_ok=True)
            _run(source, flags, keep, python, seconds)
        return _read(keep, source)
    with tempfile.TemporaryDirectory() as folder:
        _run(source, flags, Path(folder), python, seconds)
        return _read(Path(folder), source)


def _run(source: str, flags: Mapping[str, str], folder: Path, python: str, seconds: float) -> None:
    shown = ", ".join(f"{name}={value}" for name, value in flags.items()) or "no flags"
    here = [str(Path(__file__).parents[2]), str(Path(loadmaster.__file__).parents[1])]
    paths = [*here, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [python, "-m", WORKER, source, str(folder), json.dumps(dict(flags))]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadProgram(
            f"compiling '{source}' with {shown} took more than {seconds:g} s",
            object=source,
            number=seconds,
            remedy="give it more time, or a smaller program",
        ) from None
    except OSError as error:
        raise BadProgram(
            f"'{python}' can't be run: {error.strerror}",
            object=python,
            remedy="give an interpreter that has JAX and libtpu",
        ) from None
    if done.returncode != 0:
        raise BadProgram(
            f"compiling '{source}' with {shown} failed: {_reason(done.stderr)}",
            object=source,
            number=done.returncode,
            remedy="check the flags, and that the interpreter has 'loadmaster[tpu]'",
        )


def _reason(errors: str) -> str:
    """The compiler's fatal line, or the last one."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("F") or "Error" in line]
    return (fatal or lines or ["no message"])[-1][:300].rstrip(": .")


def _read(folder: Path, source: str) -> Compiled:
    endings = (
        "after_optimizations_before_buffer_assignment.txt",
        "after_optimizations.txt",
        "after_optimizations-buffer-assignment.txt",
        "after_optimizations-live-range.txt",
    )
    texts = []
    for ending in endings:
        found = sorted(folder.glob(f"*.{ending}"), key=lambda path: path.stat().st_size)
        if not found:
            raise BadProgram(
                f"the compiler wrote no '{ending}' for '{source}'",
                object=source,
                remedy="use the versions named in docs/tpu.md",
            )
        texts.append(found[-1].read_text(encoding="utf-8", errors="replace"))
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return Compiled(texts[0], texts[1], texts[2], texts[3], facts)
