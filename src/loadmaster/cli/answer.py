"""What a command answers: rows for programs, blocks for people; and how both become text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from loadmaster import __version__
from loadmaster.errors import LoadmasterError
from loadmaster.files import check_replaceable, replacing, same_file, writing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_NUMBER = re.compile(r"(?:< )?[-−+]?[0-9][0-9.,]*( ?[A-Za-zµ%×/]+)?|[–-]|unlimited|")
_WIDE = 100_000
"""Into a file or a pipe nothing is wrapped: other programs read lines."""


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
    error_in_blocks: bool = False
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


def show(blocks: Sequence[str | Table], file: IO[str]) -> None:
    """Print blocks one after the other, an empty line between two of them.

    Texts are never read as markup: a tensor named '[red]' is shown as that.
    """
    from rich.console import Console

    terminal = file.isatty()
    console = Console(
        file=file, width=None if terminal else _WIDE, highlight=False, markup=False, emoji=False
    )
    with console.capture() as capture:
        for number, block in enumerate(blocks):
            if number and (isinstance(block, Table) or isinstance(blocks[number - 1], Table)):
                console.print()
            if isinstance(block, Table):
                _show_table(console, block)
            else:
                console.print(_text(block), soft_wrap=True)
    file.write("".join(f"{line.rstrip()}\n" for line in capture.get().split("\n")[:-1]))


def _show_table(console: Console, table: Table) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    if table.title:
        console.print(Text(printable(table.title), style="bold"), soft_wrap=True)
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, heading in enumerate(table.columns):
        numeric = all(_NUMBER.fullmatch(row[number]) for row in table.rows)
        grid.add_column(Text(printable(heading)), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    console.print(grid)


def _text(block: str) -> Text:
    from rich.text import Text

    return Text("\n".join(printable(line) for line in block.expandtabs().split("\n")))


# Files that a command writes: never over another one unless the user says so.

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


def write_text(path: Path, text: str) -> None:
    """Write to a temporary file beside `path`, then rename: never half a file."""
    with writing(path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
