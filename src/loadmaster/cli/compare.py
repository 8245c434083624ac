"""`loadmaster compare`: two runs or plans side by side, and what changed in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.progress import gap_text, value_text
from loadmaster.units import show_bytes

if TYPE_CHECKING:
    from loadmaster.runs.compare import Difference, Side

_NAMED = 10
_ROW = {"moved": "tensors moved", "offset": "offsets changed", "lifetime": "lifetimes changed"}


def command(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run's folder or a plan's file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other one.")],
    force: Annotated[
        bool, typer.Option("--force", help="Compare also what was made for different things.")
    ] = False,
) -> Answer:
    """Values and gaps, what it took to reach the other's best, and the plan's changes from A to B.

    Results are comparable if program, machine, cost model and problem are equal; else exit code 2
    says which differs.

    Example: loadmaster compare runs/A runs/B
    """
    from loadmaster.runs.compare import compare_keys, compare_plans, read_side, score_alone

    sides = (read_side(a), read_side(b))
    different = compare_keys(*sides)
    warnings = [f"they differ in {', '.join(different)}"] if different else []
    if different and not force:
        raise Usage(
            f"'{a}' and '{b}' can't be compared: they differ in {', '.join(different)}",
            object=str(b),
            number=len(different),
            remedy="--force shows both",
        )
    score_alone(*sides)
    rows = [_side(sides[0], sides[1]), _side(sides[1], sides[0])]
    blocks: list[str | Table] = [_side_table(rows, _unit(sides))]
    if all(row["value"] is None for row in rows):
        warnings.append("no values: neither side is a run, or lies in one")
    documents = [side.document for side in sides]
    if documents[0] is None or documents[1] is None:
        warnings.append("one of them has no plan yet")
    elif different and any(key in ("program", "machine") for key in different):
        warnings.append("plans of different programs or machines have no differences to show")
    else:
        problem = next((side.problem for side in sides if side.problem is not None), None)
        sizes = None if problem is None else problem.program.storage_bytes.tolist()
        changed, more = _changes(compare_plans(documents[0], documents[1]), sizes)
        rows += changed
        blocks += more
    return Answer(rows, blocks, tuple(warnings))


def _unit(sides: tuple[Side, Side]) -> str:
    return next((side.problem.unit for side in sides if side.problem is not None), "")


def _side(side: Side, other: Side) -> dict[str, Any]:
    from loadmaster.runs.compare import find_when_reached

    evaluations, seconds = find_when_reached(side, other)
    history = side.history
    return {
        "what": "side",
        "name": side.name,
        "run": history is not None,
        "value": side.value,
        "origin": side.origin,
        "bound": side.bound,
        "gap": side.gap,
        "evaluations": None if history is None else history.evaluations,
        "seconds": None if history is None else history.seconds,
        "evaluations_to_others_best": evaluations,
        "seconds_to_others_best": seconds,
    }


def _side_table(rows: list[dict[str, Any]], unit: str) -> Table:
    cells = [
        (
            row["name"],
            value_text(row["value"], unit),
            row["origin"] or "–",
            value_text(row["bound"], unit),
            gap_text(row["gap"]),
            _number(row["evaluations"], ",d"),
            _number(row["seconds"], ".2f"),
            _number(row["evaluations_to_others_best"], ",d"),
            _number(row["seconds_to_others_best"], ".2f"),
        )
        for row in rows
    ]
    columns = (
        "",
        "best",
        "by",
        "bound",
        "gap",
        "evaluations",
        "seconds",
        "evaluations to other's best",
        "seconds to other's best",
    )
    return Table(columns, cells)


def _changes(found: Difference, sizes: list[int] | None) -> tuple[list[dict[str, Any]], list[str | Table]]:
    def size(tensor: int) -> int | None:
        return sizes[tensor] if sizes is not None and tensor < len(sizes) else None

    def total(tensors: list[int]) -> int | None:
        return None if sizes is None else sum(size(tensor) or 0 for tensor in tensors)

    rows: list[dict[str, Any]] = []
    for kind, label in _ROW.items():
        tensors = [change.tensor for change in found.of(kind)]
        rows.append({"what": "change", "name": label, "count": len(tensors), "bytes": total(tensors)})
    for label, copies in (("copies added", found.copies_added), ("copies gone", found.copies_gone)):
        count = total([copy["tensor"] for copy in copies if isinstance(copy["tensor"], int)])
        rows.append({"what": "change", "name": label, "count": len(copies), "bytes": count})
    rows += [
        {"what": "change", "name": f"ops with another {column}", "count": count, "bytes": None}
        for column, count in found.ops.items()
    ]
    rows += [{"what": "change", "name": key, "count": 1, "bytes": None} for key in found.others]
    if found.is_empty:
        return rows, ["the plans are equal"]
    cells = [
        (row["name"], f"{row['count']:,}", "–" if row["bytes"] is None else show_bytes(row["bytes"]))
        for row in rows
        if row["count"]
    ]
    blocks: list[str | Table] = [Table(("change from A to B", "count", "bytes"), cells)]
    largest = sorted(found.tensors, key=lambda c: (c.kind != "moved", -(size(c.tensor) or 0), c.tensor))
    named: list[dict[str, Any]] = [
        {
            "what": "tensor",
            "name": c.name,
            "tensor": c.tensor,
            "change": c.kind,
            "from": c.before,
            "to": c.after,
            "bytes": size(c.tensor),
        }
        for c in largest[:_NAMED]
    ]
    if named:
        named_cells = [
            (
                row["name"],
                row["change"],
                row["from"],
                row["to"],
                "–" if row["bytes"] is None else show_bytes(row["bytes"]),
            )
            for row in named
        ]
        title = f"the {len(named)} largest of {len(found.tensors):,} tensors"
        blocks.append(Table(("tensor", "change", "from", "to", "bytes"), named_cells, title))
    return rows + named, blocks


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
