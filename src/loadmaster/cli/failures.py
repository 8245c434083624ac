"""Errors that are not ours to word: as one line that names the object and the remedy."""

from __future__ import annotations

import os
import sys
from typing import Any

from loadmaster import __version__
from loadmaster.cli.answer import Usage, one_line
from loadmaster.errors import LoadmasterError


def usage_failure(error: Any) -> Usage:
    """What Typer found wrong, in one line with the way to the help."""
    message = one_line(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "loadmaster"
    return Usage(message, object=where, remedy=f"see '{where} --help'")


def system_failure(error: OSError) -> LoadmasterError:
    """A closed folder, a full disk, a name that is too long: no bug of ours."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    what = f"'{name}': " if name else ""
    return LoadmasterError(f"{what}{error.strerror or error}", object=name, number=error.errno)


def bug_failure(error: Exception) -> LoadmasterError:
    """Our fault: the traceback goes to a file, and its name to the user."""
    import tempfile
    import traceback

    lines = [f"loadmaster {__version__}, Python {sys.version}\n"]
    lines += traceback.format_exception(error)
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="loadmaster-",
            suffix=".log",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            file.writelines(lines)
        remedy = f"please report it with the file {file.name}"
    except OSError:  # no room for it either
        remedy = "please report it"
    return LoadmasterError(
        f"this is a bug in loadmaster ({type(error).__name__}): {error}",
        object=type(error).__name__,
        remedy=remedy,
    )
