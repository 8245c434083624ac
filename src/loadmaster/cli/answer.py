"""What a command answers: rows for programs, blocks for people; and how both become text."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from loadmaster import __version__
from loadmaster.errors import LoadmasterError


class Usage(LoadmasterError):
    """The command line itself is wrong."""


@dataclass(frozen=True)
class Table:
    """A table for people. Cells are shown as they are; columns of numbers are set to the right."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Answer:
    """A command's result. `rows` go into the JSON object, `blocks` onto the screen."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[str | Table] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    error: LoadmasterError | None = None
    """Set if the answer is no; its message ends the output."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further keys of the JSON object."""
    told: bool = False
    """The blocks say what the error says: it is not printed again."""

    @property
    def exit(self) -> int:
        return 0 if self.error is None else self.error.exit_code


def json_text(command: str, answer: Answer, code: int) -> str:
    """The one object that `--json` prints. Bytes are integers, times are seconds, no NaN."""
    error = answer.error
    document = {
        "loadmaster": __version__,
        "command": command,
        "ok": code == 0,
        "exit": code,
        **answer.more,
        "rows": answer.rows,
        "warnings": list(answer.warnings),
        "error": None
        if error is None
        else {
            "object": error.object,
            "number": error.number,
            "remedy": error.remedy,
            "message": error.message,
        },
    }
    # ASCII alone, and the one control character that JSON lets through is escaped too.
    return json.dumps(_plain(document), allow_nan=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, numbers that JSON lacks as null."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def printable(text: str) -> str:
    """Control characters and text direction marks as escapes: names come from other people."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """The same, with line ends as spaces."""
    return printable(" ".join(text.split()))


def put(text: str, stream: IO[str]) -> None:
    """Print lines: with `show`, the one way to a terminal. Names, paths and messages come from other
    people, so that nothing in the text but its line ends reaches the terminal as a command."""
    stream.write("".join(f"{printable(line)}\n" for line in text.split("\n")))
    stream.flush()
