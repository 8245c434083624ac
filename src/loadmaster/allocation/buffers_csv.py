"""MiniMalloc's CSV: the format in which offset problems are exchanged.

Required columns: id (or buffer, buffer_id), lower (start, begin), upper or **end, which is
inclusive: one is added** (to gaps too), size. Optional: alignment, hint, gaps, offset (a pin on
input, the answer on output), worth. The capacity is in the file's name: `A.1048576.csv`.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from loadmaster.allocation.buffers import NONE, BadBuffers, Buffers, Gap
from loadmaster.errors import LoadmasterError
from loadmaster.files import read_regular, replacing
from loadmaster.units import UNLIMITED, shorten

_NAMES = {
    "id": "id",
    "buffer": "id",
    "buffer_id": "id",
    "lower": "lower",
    "start": "lower",
    "begin": "lower",
    "upper": "upper",
    "end": "end",
    "size": "size",
    "alignment": "alignment",
    "hint": "hint",
    "gaps": "gaps",
    "offset": "offset",
    "worth": "worth",
}
_GAP = re.compile(r"(-?[0-9]{1,19})-(-?[0-9]{1,19})(?:@([0-9]{1,19}):([0-9]{1,19}))?")
_CAPACITY = re.compile(r".*\.([0-9]+)\.csv", re.DOTALL)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_WHOLES = re.compile(r"[+-]?[0-9]{1,18}(?:,[+-]?[0-9]{1,18})*+")
_LONGEST = 20
"""Characters of a number: 2^62 has 19 digits."""
_MOST_BYTES = 2**28
_MOST_LINE = 2**20
"""Characters of a line, and so of the cells that are made of it at once."""
_MOST_BUFFERS = 2**21
_MOST_GAPS = 2**21


def read_buffers(path: str | Path) -> tuple[Buffers, int | None]:
    """Read buffers from a CSV file, MiniMalloc's or one with more columns.

    Args:
      path: a file with a header; `id`, `lower`, `upper` and `size` are needed (docs/allocation.md has the others).

    Returns:
      the buffers, one array `[n]` per column, and the capacity that the file's name states ('A.1048576.csv'),
      or None.
    """
    path = Path(path)
    stated = _CAPACITY.fullmatch(path.name)
    digits = stated.group(1).lstrip("0") or "0" if stated else None
    if digits is not None and (len(digits) > 19 or int(digits) > UNLIMITED):
        raise BadBuffers(
            f"the name of '{path}' states a capacity of {digits[:40]} bytes, above 2^62",
            object=str(path),
            number=digits[:40],
            remedy="rename the file",
        )
    buffers = parse_buffers(_text_of(path), path.name)
    return buffers, None if digits is None else int(digits)


def _text_of(path: Path) -> str:
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise BadBuffers(
            f"'{path}' can't be read: {error.strerror}", object=str(path), remedy="check the path"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _error(path.name, line, "it is not text", "give a CSV file in UTF-8") from None


def _rows(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not blank; a blank one may stand only at the end."""
    reader = csv.reader(_lines(text, where), strict=True)
    blank = None
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise _error(where, reader.line_num, f"{error}", "give plain CSV") from None
        if row is None:
            return
        if not any(cell.strip() for cell in row):
            blank = blank or (reader.line_num, row)
            continue
        if blank is not None:
            yield blank
            blank = None
        yield reader.line_num, row


def _lines(text: str, where: str) -> Iterator[str]:
    for number, line in enumerate(io.StringIO(text), start=1):
        if len(line) > _MOST_LINE:
            raise _error(where, number, f"it has {len(line):,} characters", f"give at most {_MOST_LINE:,}")
        if "\0" in line:
            raise _error(where, number, "it has a null character", "give plain CSV")
        yield line


def parse_buffers(text: str, where: str = "csv") -> Buffers:
    """Parse; every error names the file, the line and what would be right."""
    buffers = _parse_plain(text)
    return _parse_any(text, where) if buffers is None else buffers


def _parse_plain(text: str) -> Buffers | None:
    """A file of whole numbers without quotes or spaces, column by column; None: it is not one, or wrong."""
    if any(sign in text for sign in '"\r\0'):
        return None
    text = text.rstrip("\n") + "\n"
    names = [_NAMES.get(cell, "") for cell in text[: text.index("\n")].split(",")]
    width, known = len(names), set(names)
    if known - {"id", "lower", "upper", "end", "size", "alignment", "hint", "offset"} or len(known) < width:
        return None
    if not {"id", "lower", "size"} <= known or ("end" in known) == ("upper" in known):
        return None
    content = np.frombuffer(text.encode(), dtype=np.uint8)
    separators = content[(content == ord(",")) | (content == ord("\n"))]
    rows = len(separators) // width
    if not np.array_equal(separators, np.frombuffer(rows * (b"," * (width - 1) + b"\n"), dtype=np.uint8)):
        return None
    longest = np.diff(np.flatnonzero(content == ord("\n")), prepend=-1).max()
    if not 2 <= rows <= _MOST_BUFFERS or longest > csv.field_size_limit():
        return None
    cells = text.replace("\n", ",").split(",")
    values: dict[str, np.ndarray] = {}
    for place, name in enumerate(names):
        if name != "id":
            column = ",".join(cells[width + place : width * rows : width])
            if _WHOLES.fullmatch(column) is None:
                return None
            values[name] = np.fromstring(column, dtype=np.int64, sep=",")
    place = names.index("id")
    ids = list(map(str.strip, cells[width + place : width * rows : width]))
    try:
        return Buffers.of(
            values["lower"],
            values["end"] + 1 if "end" in values else values["upper"],
            values["size"],
            ids=ids,
            alignment=values.get("alignment", 1),
            hint=values.get("hint", NONE),
            pinned=values.get("offset", NONE),
        )
    except LoadmasterError:
        return None


def _parse_any(text: str, where: str) -> Buffers:
    """Row by row: slow, and knows the line of every error."""
    rows = _rows(text, where)
    line, header = next(rows, (1, None))
    if header is None:
        raise _error(where, 1, "the file is empty", "begin with id,lower,upper,size")
    columns = _columns(header, where, line)
    values = {name: array("q") for name in columns if name not in ("id", "gaps", "worth")}
    ids: list[str] = []
    gaps: dict[int, list[Gap]] = {}
    benefit = array("d")
    lines = array("q")
    room = _MOST_GAPS
    for number, row in rows:
        if len(row) != len(header):
            raise _error(
                where,
                number,
                f"{len(row)} fields, and the header has {len(header)}",
                "give one value per column",
            )
        if len(ids) == _MOST_BUFFERS:
            raise _error(where, number, f"more than {_MOST_BUFFERS:,} buffers", "give fewer")
        ids.append(row[columns["id"]].strip())
        lines.append(number)
        for name, column in values.items():
            column.append(_whole(row[columns[name]], name, where, number))
        if "gaps" in columns and row[columns["gaps"]].strip():
            gaps[len(ids) - 1] = _gaps(row[columns["gaps"]], 1 if "end" in columns else 0, where, number)
            room -= len(gaps[len(ids) - 1])
            if room < 0:
                raise _error(where, number, f"more than {_MOST_GAPS:,} gaps", "give fewer")
        if "worth" in columns:
            benefit.append(_real(row[columns["worth"]], where, number))
    upper = (
        np.array(values["end"], dtype=np.int64) + 1
        if "end" in values
        else np.array(values["upper"], dtype=np.int64)
    )
    try:
        return Buffers.of(
            values["lower"],
            upper,
            values["size"],
            ids=ids,
            gaps=gaps,  # type: ignore[arg-type]
            alignment=values.get("alignment", 1),
            hint=values.get("hint", NONE),
            pinned=values.get("offset", NONE),
            benefit=benefit or None,
        )
    except LoadmasterError as error:
        # the last of them, where two have one id
        line = dict(zip(ids, lines, strict=True)).get(str(error.object), line)
        raise _error(
            where, line, error.message.removesuffix(f": {error.remedy}"), error.remedy or "mend it"
        ) from None


def read_pairs(path: str | Path, buffers: Buffers) -> tuple[tuple[int, int], ...]:
    """Pairs of ids, columns a and b, as pairs of numbers."""
    path = Path(path)
    rows = _rows(_text_of(path), path.name)
    line, header = next(rows, (1, []))
    if [cell.strip() for cell in header] != ["a", "b"]:
        raise _error(path.name, line, "the columns are not a,b", "begin with a,b")
    number = {name: i for i, name in enumerate(buffers.ids)}
    pairs: list[tuple[int, int]] = []
    for line, row in rows:
        if len(row) != 2 or any(cell.strip() not in number for cell in row):
            raise _error(path.name, line, f"{shorten(row)} does not name two buffers", "give two ids")
        if len(pairs) == _MOST_BUFFERS:
            raise _error(path.name, line, f"more than {_MOST_BUFFERS:,} pairs", "give fewer")
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
    if not np.array_equal(buffers.benefit, buffers.size):
        header, columns = [*header, "worth"], [*columns, [repr(float(w)) for w in buffers.benefit]]
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


def _columns(header: list[str], where: str, line: int) -> dict[str, int]:
    columns: dict[str, int] = {}
    for i, cell in enumerate(header):
        name = _NAMES.get(cell.strip().lower())
        if name is None and len(header) == 1 and (sign := next((c for c in ";\t|" if c in cell), "")):
            raise _error(where, line, f"the columns are separated by {shorten(sign)}", "write commas there")
        if name is None:
            raise _error(
                where,
                line,
                f"the column {shorten(cell)} is not known",
                f"use {', '.join(sorted(set(_NAMES)))}",
            )
        if name in columns or {name, *columns} >= {"upper", "end"}:
            raise _error(where, line, f"the column {shorten(cell)} is there twice", "remove one")
        columns[name] = i
    for name in ("id", "lower", "size"):
        if name not in columns:
            raise _error(where, line, f"there is no column '{name}'", "begin with id,lower,upper,size")
    if "upper" not in columns and "end" not in columns:
        raise _error(where, line, "there is no column 'upper' or 'end'", "begin with id,lower,upper,size")
    return columns


def _whole(cell: str, name: str, where: str, line: int) -> int:
    digits = cell.strip()
    if not _WHOLE.fullmatch(digits):
        raise _error(where, line, f"{shorten(cell)} in column '{name}' is no whole number", "give one")
    if len(digits) > _LONGEST or abs(int(digits)) > UNLIMITED:
        raise _error(where, line, f"{digits[:40]} in column '{name}' is beyond 2^62", "check it")
    return int(digits)


def _real(cell: str, where: str, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise _error(where, line, f"{shorten(cell)} in column 'worth' is no number", "give one") from None


def _gaps(cell: str, inclusive: int, where: str, line: int) -> list[Gap]:
    gaps = []
    for word in cell.split():
        match = _GAP.fullmatch(word)
        if match is None:
            raise _error(where, line, f"{shorten(word)} is no gap", "write START-END or START-END@LOW:HIGH")
        start, end, low, high = match.groups()
        gaps.append(Gap(int(start), int(end) + inclusive, int(low or 0), int(high or 0)))
    return gaps


def _gap_text(gaps: tuple[Gap, ...]) -> str:
    return " ".join(f"{g.start}-{g.end}" + (f"@{g.low}:{g.high}" if g.high else "") for g in gaps)
