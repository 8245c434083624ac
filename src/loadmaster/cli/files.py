"""Files that a command writes: never over another one unless the user says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.answer import Usage
from loadmaster.files import check_replaceable, replacing, same_file

OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")]


def check_free(path: Path, overwrite: bool, *read: str | Path) -> None:
    """Refuse to overwrite, and what the command has `read` always; called before any work is done."""
    if any(same_file(path, each) for each in read):
        raise Usage(f"'{path}' is what is read", object=str(path), remedy="give another name")
    check_replaceable(path)
    if path.exists() and not overwrite:
        raise Usage(
            f"file '{path}' is there already", object=str(path), remedy="give another name, or --overwrite"
        )
    if not path.parent.is_dir():
        raise Usage(f"there is no folder '{path.parent}'", object=str(path), remedy="make the folder first")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full or closed to us is the user's to mend, not a bug."""
    try:
        yield
    except OSError as error:
        raise Usage(
            f"'{path}' can't be written: {error.strerror or error}",
            object=str(path),
            remedy="check the folder and the space on the disk",
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write to a temporary file beside `path`, then rename: never half a file."""
    with writing(path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
