"""`loadmaster solvers`: the ways to solve each kind of problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table
from loadmaster.errors import MissingPackage

if TYPE_CHECKING:
    from loadmaster.search.registry import Variants


def command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A solver, such as exact.")] = None,
) -> Answer:
    """List the solvers of every kind of problem; with a name, what it does and its options.

    Example: loadmaster solvers exact
    """
    from loadmaster.search.registry import UnknownSolver, kinds, kinds_with, make_solver, solver_names

    chosen = [(kind, each) for kind in kinds() for each in solver_names(kind) if name in (None, each)]
    if not chosen:
        for kind in kinds_with(str(name)):
            make_solver(kind, str(name))  # it says what to use in its place
        everything = [each for kind in kinds() for each in solver_names(kind)]
        from loadmaster.errors import nearest

        raise UnknownSolver(
            f"there is no solver '{name}'{nearest(str(name), everything)}",
            object=name,
            remedy="see 'loadmaster solvers'",
        )
    rows = []
    for kind, each in chosen:
        try:
            rows.append(_row(kind, each, make_solver(kind, each)))
        except MissingPackage as missing:
            rows.append(_row(kind, each, None, missing.message))
    return Answer(rows, [_table(rows)] if name is None else [_details(row) for row in rows])


def _row(kind: str, name: str, solver: Any, missing: str | None = None) -> dict[str, Any]:
    import inspect

    from loadmaster.search.registry import solver_variants

    variants = solver_variants(kind, name)
    return {
        "problem": kind,
        "name": name,
        "summary": missing if solver is None else _summary(name, solver.summary, variants),
        "available": solver is not None,
        "deterministic": None if solver is None else bool(solver.deterministic),
        "options": {} if solver is None else dict(solver.options),
        "variants": {} if variants is None else {variants.option: list(variants.makers)},
        "description": "" if solver is None else inspect.getdoc(type(solver)) or "",
        "source": None if solver is None else type(solver).__module__,
    }


def _summary(name: str, summary: str, variants: Variants | None) -> str:
    """Of a solver that is a family: its members."""
    if variants is None or variants.default == name:
        return summary
    return f"one of {', '.join(variants.makers)} (--set {variants.option}={variants.default})"


def _variant(kind: str, label: str) -> str:
    """What a variant does, and its options."""
    from loadmaster.search.registry import make_labelled

    try:
        solver = make_labelled(kind, label)
    except MissingPackage as missing:
        return missing.message
    options = ", ".join(f"{name} = {value}" for name, value in solver.options.items())
    return f"{solver.summary} ({options})" if options else solver.summary


def _table(rows: list[dict[str, Any]]) -> Table:
    cells = [(row["problem"], row["name"], row["summary"]) for row in rows]
    return Table(("problem", "solver", "what it does"), cells)


def _details(row: dict[str, Any]) -> Table:
    cells = [
        ("solves", row["problem"]),
        ("what it does", row["summary"]),
        ("same seed, same answer", {True: "yes", False: "no"}.get(row["deterministic"], "–")),
        ("options", ", ".join(f"{k} = {v}" for k, v in row["options"].items()) or "none"),
        *(
            (
                f"--set {option}={label}",
                _variant(row["problem"], label) if number else "the default, as above",
            )
            for option, labels in row["variants"].items()
            for number, label in enumerate(labels)
        ),
        ("where", row["source"] or "–"),
    ]
    if row["description"]:
        cells.append(("more", " ".join(row["description"].split())))
    return Table(("solver", row["name"]), cells)
