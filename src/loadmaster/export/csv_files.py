"""A plan as tables: ops, tensors and copies, and the placement in each memory in MiniMalloc's form."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.buffers_csv import read_buffers, write_buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.export.rules import Asked, Exported, NotExported
from loadmaster.export.shown import Shown, Stay, file_name
from loadmaster.files import replacing
from loadmaster.plan.plan import BEFORE
from loadmaster.program.build import clean_name
from loadmaster.program.program import TensorKind
from loadmaster.units import UNLIMITED


def export(asked: Asked) -> Exported:
    """The target `csv`."""
    shown = Shown.of(asked)
    asked.out.mkdir(parents=True, exist_ok=True)
    files = [
        _table(asked.out / "ops.csv", _OPS, _op_rows(shown)),
        _table(asked.out / "tensors.csv", _TENSORS, _tensor_rows(shown)),
        _table(asked.out / "copies.csv", _COPIES, _copy_rows(shown)),
    ]
    for number, memory in enumerate(shown.machine.memories):
        placed = placement(shown, number)
        if placed is None:
            continue
        buffers, offsets = placed
        capacity = memory.capacity if memory.capacity < UNLIMITED else int((offsets + buffers.size).max())
        path = asked.out / f"{file_name(shown.program.name)}.{file_name(memory.name)}.{capacity}.csv"
        write_buffers(buffers, offsets, path)
        _read_back(path)
        files.append(path)
    return Exported(
        "verified",
        tuple(files),
        ("order", "devices", "memories", "offsets", "copies", "times"),
        figures={"ops": shown.program.n_ops, "stays": len(shown.stays)},
        notes=("a placement is read by 'loadmaster allocate' and by MiniMalloc",),
    )


_OPS = ("op", "name", "kind", "scope", "device", "position", "fusion", "start_ps", "end_ps", "stall_ps")
_TENSORS = ("tensor", "name", "kind", "dtype", "shape", "bytes", "memory", "offset", "first", "last")
_COPIES = ("tensor", "name", "from", "to", "issued_after", "needed_by", "low", "high", "start_ps", "end_ps")


def _op_rows(shown: Shown) -> Iterable[Sequence[Any]]:
    program, timeline, fusion = shown.program, shown.timeline, shown.plan.fusion
    for op in range(program.n_ops):
        yield (
            op,
            program.op_name[op],
            program.op_kind[op],
            program.op_scope[op],
            shown.machine.devices[shown.device(op)].name,
            shown.position[op],
            -1 if fusion is None else int(fusion[op]),
            int(timeline.op_start[op]),
            int(timeline.op_end[op]),
            int(timeline.op_stall[op]),
        )


def _tensor_rows(shown: Shown) -> Iterable[Sequence[Any]]:
    program = shown.program
    for stay in shown.stays:
        tensor = stay.tensor
        yield (
            tensor,
            program.tensor_name[tensor],
            TensorKind(program.tensor_kind[tensor]).name.lower(),
            program.tensor_dtype[tensor],
            "x".join(map(str, program.shape(tensor))),
            int(program.storage_bytes[tensor]),
            shown.memory_names[stay.memory],
            "" if stay.offset < 0 else stay.offset,
            stay.first,
            stay.last,
        )


def _copy_rows(shown: Shown) -> Iterable[Sequence[Any]]:
    for row, copy in enumerate(shown.plan.copy_rows):
        low, high = copy.low, copy.high
        if low < 0:
            low, high = 0, int(shown.program.storage_bytes[copy.tensor])
        yield (
            copy.tensor,
            shown.program.tensor_name[copy.tensor],
            shown.memory_names[copy.source],
            shown.memory_names[copy.target],
            copy.issued_after,
            copy.needed_by,
            low,
            high,
            int(shown.timeline.copy_start[row]),
            int(shown.timeline.copy_end[row]),
        )


def placement(shown: Shown, memory: int) -> tuple[Buffers, np.ndarray] | None:
    """The buffers of one memory over the positions of ops, and their offsets; None if it has none."""
    facts, rows = shown.facts, []
    for stay in shown.stays:
        if stay.memory == memory and stay.offset >= 0:
            size = facts.aligned(facts.size[stay.tensor], memory)
            name = clean_name(shown.program.tensor_name[stay.tensor])
            rows.append((facts.place[stay.tensor], stay.offset, *_window(shown, stay), size, name))
    if not rows:
        return None
    merged: list[tuple[int, int, int, int, int, str]] = []
    for row in sorted(rows):
        last = merged[-1] if merged else None
        if last is not None and last[:2] == row[:2] and row[2] <= last[3]:
            # Tensors that share a place share bytes: one buffer from the first to the last of them.
            merged[-1] = (*last[:3], max(last[3], row[3]), max(last[4], row[4]), last[5])
        else:
            merged.append(row)
    _, offset, lower, upper, size_of, names = zip(*merged, strict=True)
    often = Counter(names)
    ids = [name if often[name] == 1 else f"{name}@{low}" for name, low in zip(names, lower, strict=True)]
    return Buffers.of(lower, upper, size_of, ids=ids), np.array(offset, dtype=np.int64)


def _window(shown: Shown, stay: Stay) -> tuple[int, int]:
    if stay.first == BEFORE:
        return 0, shown.program.n_ops
    return shown.position[stay.first], shown.position[stay.last] + 1


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)
    return path


def _cell(value: Any) -> Any:
    # Names may hold anything, and spreadsheets and our own reader take printable text alone.
    return clean_name(value) if isinstance(value, str) else value


def _read_back(path: Path) -> None:
    buffers, capacity = read_buffers(path)
    if Allocation(buffers, capacity).evaluate(buffers.pinned) is None:
        raise NotExported(
            f"placement '{path}' does not read back", object=str(path), remedy="report this as a bug"
        )
