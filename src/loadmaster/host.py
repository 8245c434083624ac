"""Where something was made: cores, versions and the kind of computer, never whose it is."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from loadmaster import __version__, _core

_PACKAGES = ("numpy", "jax", "equinox", "optax", "ortools", "omnimalloc")
_ROOTED = re.compile(r"(/|~|\\\\|[A-Za-z]:[\\/])")


@cache
def versions() -> dict[str, str]:
    """Of everything that can change a figure; the native core by the hash of its file."""
    found = {"loadmaster": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["core"] = hashlib.sha256(Path(str(_core.__file__)).read_bytes()).hexdigest()[:16]
    return found


@cache
def host() -> dict[str, Any]:
    """The kind of computer, not its name."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"cpu": model, "cores": cores(), "system": platform.system()}


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def load() -> float | None:
    """How much else the computer has to do: times depend on it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def command_line(argv: Sequence[str] | None = None) -> list[str]:
    """The words of a command without absolute paths: of those only the last name stays.

    The default is this process's own command, or 'python' if it is not Loadmaster's.
    """
    if argv is None:
        program, *words = sys.argv or [""]
        argv = words if _is_ours(Path(program)) else ["python"]
    return [_without_folders(word) for word in argv] or ["python"]


def _is_ours(program: Path) -> bool:
    """`loadmaster`, or `python -m loadmaster`."""
    module = program.name == "__main__.py" and program.parent.name == "loadmaster"
    return module or program.name.startswith("loadmaster")


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and _ROOTED.match(value):
        return f"{option}={_without_folders(value)}"
    if not _ROOTED.match(word):
        return word
    return re.split(r"[\\/]", word.rstrip("\\/"))[-1]
