"""MiniMalloc's CSV: the format in which offset problems are exchanged.

Required columns: id (or buffer, buffer_id), lower (start, begin), upper or **end, which is
inclusive: one is added** (to gaps too), size. Optional: alignment, hint, gaps, offset (a pin on
input, the answer on output), worth. The capacity is in the file's name: `A.1048576.csv`.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.problems.buffers import NONE, BadBuffers, Buffers, Gap

_NAMES = {
    "id": "id", "buffer": "id", "buffer_id": "id", "lower": "lower", "start": "lower", "begin": "lower",
    "upper": "upper", "end": "end", "size": "size", "alignment": "alignment", "hint": "hint",
    "gaps": "gaps", "offset": "offset", "worth": "worth",
}  # fmt: skip
_GAP = re.compile(r"(-?\d+)-(-?\d+)(?:@(\d+):(\d+))?")
_MOST_BYTES = 2**31


def read_buffers(path: str | Path) -> tuple[Buffers, int | None]:
    """The buffers of a file, and the capacity that its name states."""
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadBuffers(
                f"'{path}' is larger than 2 GiB", object=str(path), remedy="check the file"
            )
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadBuffers(
            f"'{path}' can't be read: {error.strerror}", object=str(path), remedy="check the path"
        ) from None
    except UnicodeDecodeError:
        raise BadBuffers(
            f"'{path}' is not text", object=str(path), remedy="give a CSV file"
        ) from None
    stated = re.fullmatch(r".*\.(\d+)\.csv", path.name)
    return parse_buffers(text, path.name), int(stated.group(1)) if stated else None


def parse_buffers(text: str, where: str = "csv") -> Buffers:
    """Parse; every error names the file, the line and what would be right."""
    rows = list(csv.reader(io.StringIO(text)))
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()  # blank lines at the end
    if not rows:
        raise _error(where, 1, "the file is empty", "begin with id,lower,upper,size")
    columns = _columns(rows[0], where)
    values: dict[str, list[int]] = {
        name: [] for name in columns if name not in ("id", "gaps", "worth")
    }
    ids: list[str] = []
    gaps: dict[int, list[Gap]] = {}
    worth: list[float] = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise _error(
                where,
                number,
                f"{len(row)} fields, and the header has {len(rows[0])}",
                "give one value per column",
            )
        ids.append(row[columns["id"]].strip())
        for name, column in values.items():
            column.append(_whole(row[columns[name]], name, where, number))
        if "gaps" in columns and row[columns["gaps"]].strip():
            gaps[len(ids) - 1] = _gaps(
                row[columns["gaps"]], 1 if "end" in columns else 0, where, number
            )
        if "worth" in columns:
            worth.append(_real(row[columns["worth"]], where, number))
    upper = (
        np.array(values["end"], dtype=np.int64) + 1
        if "end" in values
        else np.array(values["upper"], dtype=np.int64)
    )
    try:
        return Buffers.of(
            values["lower"], upper, values["size"], ids=ids, gaps=gaps,  # type: ignore[arg-type]
            alignment=values.get("alignment", 1), hint=values.get("hint", NONE), pinned=values.get("offset", NONE),
            worth=worth or None,
        )  # fmt: skip
    except LoadmasterError as error:
        line = ids.index(error.object) + 2 if error.object in ids else 1
        raise _error(
            where, line, error.message.removesuffix(f": {error.remedy}"), error.remedy or "mend it"
        ) from None


def read_pairs(path: str | Path, buffers: Buffers) -> tuple[tuple[int, int], ...]:
    """Pairs of ids, columns a and b, as pairs of numbers."""
    path = Path(path)
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError):
        raise BadBuffers(
            f"'{path}' can't be read", object=str(path), remedy="give a CSV with columns a,b"
        ) from None
    if not rows or [cell.strip() for cell in rows[0]] != ["a", "b"]:
        raise _error(path.name, 1, "the columns are not a,b", "begin with a,b")
    number = {name: i for i, name in enumerate(buffers.ids)}
    pairs = []
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != 2 or any(cell.strip() not in number for cell in row):
            raise _error(path.name, line, f"{row} does not name two buffers", "give two ids")
        pairs.append((number[row[0].strip()], number[row[1].strip()]))
    return tuple(pairs)


def write_buffers(
    buffers: Buffers, offsets: np.ndarray | None, path: str | Path, memory: list[str] | None = None
) -> None:
    """The same columns, with the offsets of a placement; a temporary file, then a rename."""
    path = Path(path)
    with replacing(path) as temporary:
        temporary.write_text(format_buffers(buffers, offsets, memory), encoding="utf-8")


def format_buffers(
    buffers: Buffers, offsets: np.ndarray | None = None, memory: list[str] | None = None
) -> str:
    """CSV text; columns that say nothing are left out."""
    header: list[str] = ["id", "lower", "upper", "size"]
    columns: list[list[object]] = [
        list(buffers.ids),
        buffers.lower.tolist(),
        buffers.upper.tolist(),
        buffers.size.tolist(),
    ]
    if (buffers.alignment != 1).any():
        header, columns = [*header, "alignment"], [*columns, buffers.alignment.tolist()]
    if (buffers.hint != NONE).any():
        header, columns = [*header, "hint"], [*columns, buffers.hint.tolist()]
    if buffers.gaps:
        header, columns = (
            [*header, "gaps"],
            [*columns, [_gap_text(buffers.gaps.get(b, ())) for b in range(len(buffers))]],
        )
    if not np.array_equal(buffers.worth, buffers.size):
        header, columns = [*header, "worth"], [*columns, [repr(float(w)) for w in buffers.worth]]
    if offsets is not None or (buffers.pinned != NONE).any():
        header = [*header, "offset"]
        columns = [*columns, (buffers.pinned if offsets is None else offsets).tolist()]
    if memory is not None:
        header, columns = [*header, "memory"], [*columns, list(memory)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _error(where: str, line: int, what: str, remedy: str) -> BadBuffers:
    return BadBuffers(f"'{where}', line {line}: {what}", object=where, number=line, remedy=remedy)


def _columns(header: list[str], where: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    for i, cell in enumerate(header):
        name = _NAMES.get(cell.strip().lower())
        if name is None:
            raise _error(
                where,
                1,
                f"the column '{cell}' is not known",
                f"use {', '.join(sorted(set(_NAMES)))}",
            )
        if name in columns or {name, *columns} >= {"upper", "end"}:
            raise _error(where, 1, f"the column '{cell}' is there twice", "remove one")
        columns[name] = i
    for name in ("id", "lower", "size"):
        if name not in columns:
            raise _error(where, 1, f"there is no column '{name}'", "begin with id,lower,upper,size")
    if "upper" not in columns and "end" not in columns:
        raise _error(
            where, 1, "there is no column 'upper' or 'end'", "begin with id,lower,upper,size"
        )
    return columns


def _whole(cell: str, name: str, where: str, line: int) -> int:
    try:
        value = int(cell)
    except ValueError:
        raise _error(
            where, line, f"'{cell}' in column '{name}' is no whole number", "give one"
        ) from None
    if abs(value) > 2**62:
        raise _error(where, line, f"{value} in column '{name}' is beyond 2^62", "check it")
    return value


def _real(cell: str, where: str, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise _error(where, line, f"'{cell}' in column 'worth' is no number", "give one") from None


def _gaps(cell: str, inclusive: int, where: str, line: int) -> list[Gap]:
    gaps = []
    for word in cell.split():
        match = _GAP.fullmatch(word)
        if match is None:
            raise _error(
                where, line, f"'{word}' is no gap", "write START-END or START-END@LOW:HIGH"
            )
        start, end, low, high = match.groups()
        gaps.append(Gap(int(start), int(end) + inclusive, int(low or 0), int(high or 0)))
    return gaps


def _gap_text(gaps: tuple[Gap, ...]) -> str:
    return " ".join(
        f"{g.start}-{g.end}" + (f"@{g.low}:{g.high}" if g.high > g.low else "") for g in gaps
    )
