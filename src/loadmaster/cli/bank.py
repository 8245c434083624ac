"""`loadmaster bank`: what a bank of plans holds; and the options by which other commands use one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.progress import gap_text, value_text

if TYPE_CHECKING:
    from loadmaster.runs.bank import Bank
    from loadmaster.search.solver import Recalled

KEPT = "What is kept"
"""A panel of `plan --help`."""
BankOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="LOADMASTER_BANK",
        help="A folder of answers, made where there is none: the same question is answered from there at once, "
        "a like one begins with its plan, and the answer is kept.",
        rich_help_panel=KEPT,
    ),
]
BankStartsOption = Annotated[
    bool,
    typer.Option(
        "--bank-starts",
        help="Begin with the bank's plans, and take no other word of it: search and prove anew.",
        rich_help_panel=KEPT,
    ),
]


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What --bank named.", envvar="LOADMASTER_BANK")
    ],
) -> Answer:
    """List the answers of a bank of plans, the latest used first: value, bound, who found it and in what time.

    It is what the entries say of themselves; a plan is checked when it is used.

    Example: loadmaster bank plans
    """
    from loadmaster.runs.bank import MARK, Bank
    from loadmaster.runs.history import compute_gap

    if not (folder / MARK).is_file():
        raise Usage(
            f"'{folder}' is no bank of plans", object=str(folder), remedy="give the folder that --bank named"
        )
    bank = Bank(folder, read_only=True)
    rows = [entry.row() for entry in bank.entries()]
    if not rows:
        return Answer(rows, [f"bank '{folder}' is empty"], tuple(bank.warnings))
    cells = [
        (
            row["program"],
            row["machine"],
            row["problem"],
            value_text(row["value"], row["unit"]),
            gap_text(compute_gap(row["value"], row["bound"])),
            row["solver"],
            f"{row['seconds']:.1f}",
            row["date"],
        )
        for row in rows
    ]
    columns = ("program", "machine", "problem", "value", "gap", "found by", "seconds", "date")
    return Answer(rows, [Table(columns, cells)], tuple(bank.warnings))


def known_answers(folder: Path | None, starts_only: bool) -> Bank | None:
    """The bank that was named, if one was."""
    from loadmaster.runs.bank import Bank

    if folder is None and starts_only:
        raise Usage(
            "--bank-starts says how a bank is used, and there is none",
            object="--bank-starts",
            remedy="give --bank DIR",
        )
    return None if folder is None else Bank(folder, starts_only=starts_only)


def recalled_text(recalled: Recalled, unit: str) -> str:
    """What came from a bank, in a sentence."""
    about = recalled.about
    effort = f"{about['solver']} in {about['seconds']:.1f} s ({about['evaluations']:,} evaluations, {about['date']})"
    value = value_text(recalled.value, unit)
    if not recalled.same:
        like = f"{about['program']} on {about['machine']}"
        return f"began with a plan from the bank: that of {like}, found by {effort}, is {value} here"
    if not recalled.settled:
        return f"began with a plan from the bank: {value}, found by {effort}, checked again"
    text = f"from the bank: found by {effort}, checked and evaluated again"
    if recalled.bound is not None and recalled.value <= recalled.bound.value:
        return f"{text}; that nothing is better is the bank's word ({recalled.bound.method}): --bank-starts proves it anew"
    if recalled.proven:
        return text
    return f"{text}; this search was made before: another --seed, or more of --budget or --time-limit, goes on from it"
