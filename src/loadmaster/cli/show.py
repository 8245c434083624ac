"""Tables and lines on a terminal, with Rich; plain text where there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from loadmaster.cli.answer import Table, printable

_NUMBER = re.compile(r"[-−+]?[0-9][0-9.,]*( ?[A-Za-zµ%×/]+)?|[–-]|unlimited|")
_WIDE = 100_000
"""Into a file or a pipe nothing is wrapped: other programs read lines."""


def show(blocks: Sequence[str | Table], file: IO[str]) -> None:
    """Print blocks one after the other, an empty line between two of them.

    Texts are never read as markup: a tensor named '[red]' is shown as that.
    """
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
    return Text("\n".join(printable(line) for line in block.expandtabs().split("\n")))
