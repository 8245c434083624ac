"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` if nothing goes wrong."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two names are of one file that is there, also through links."""
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):  # one of them is no file
        return False
