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
from loadmaster.export.plan_view import PlanView, make_file_name
from loadmaster.export.plans import Exported, ExportRequest, NotExported
from loadmaster.files import replacing
from loadmaster.plan.plan import BEFORE, Residency
from loadmaster.program.build import clean_name
from loadmaster.program.program import TensorKind
from loadmaster.units import UNLIMITED


def export(request: ExportRequest) -> Exported:
    """The target `csv`."""
    view = PlanView.of(request)
    request.out.mkdir(parents=True, exist_ok=True)
    files = [
        _table(request.out / "ops.csv", _OPS, _op_rows(view)),
        _table(request.out / "tensors.csv", _TENSORS, _tensor_rows(view)),
        _table(request.out / "copies.csv", _COPIES, _copy_rows(view)),
    ]
    for number, memory in enumerate(view.machine.memories):
        placed = list_placement(view, number)
        if placed is None:
            continue
        buffers, offsets = placed
        capacity = memory.capacity if memory.capacity < UNLIMITED else int((offsets + buffers.size).max())
        path = (
            request.out / f"{make_file_name(view.program.name)}.{make_file_name(memory.name)}.{capacity}.csv"
        )
        write_buffers(buffers, offsets, path)
        _read_back(path)
        files.append(path)
    return Exported(
        "verified",
        tuple(files),
        ("order", "devices", "memories", "offsets", "copies", "times"),
        figures={"ops": view.program.n_ops, "stays": len(view.residencies)},
        notes=("a placement is read by 'loadmaster allocate' and by MiniMalloc",),
    )


_OPS = ("op", "name", "kind", "scope", "device", "position", "fusion", "start_ps", "end_ps", "stall_ps")
_TENSORS = ("tensor", "name", "kind", "dtype", "shape", "bytes", "memory", "offset", "first", "last")
_COPIES = ("tensor", "name", "from", "to", "issued_after", "needed_by", "low", "high", "start_ps", "end_ps")


def _op_rows(view: PlanView) -> Iterable[Sequence[Any]]:
    program, timeline, fusion = view.program, view.timeline, view.plan.fusion
    for op in range(program.n_ops):
        yield (
            op,
            program.op_name[op],
            program.op_kind[op],
            program.op_scope[op],
            view.machine.devices[view.device(op)].name,
            view.position[op],
            -1 if fusion is None else int(fusion[op]),
            int(timeline.op_start[op]),
            int(timeline.op_end[op]),
            int(timeline.op_stall[op]),
        )


def _tensor_rows(view: PlanView) -> Iterable[Sequence[Any]]:
    program = view.program
    for row in view.residencies:
        tensor = row.tensor
        yield (
            tensor,
            program.tensor_name[tensor],
            TensorKind(program.tensor_kind[tensor]).name.lower(),
            program.tensor_dtype[tensor],
            "x".join(map(str, program.shape(tensor))),
            int(program.storage_bytes[tensor]),
            view.memory_names[row.memory],
            "" if row.offset < 0 else row.offset,
            row.first,
            row.last,
        )


def _copy_rows(view: PlanView) -> Iterable[Sequence[Any]]:
    for row, copy in enumerate(view.plan.copy_rows):
        low, high = copy.low, copy.high
        if low < 0:
            low, high = 0, int(view.program.storage_bytes[copy.tensor])
        yield (
            copy.tensor,
            view.program.tensor_name[copy.tensor],
            view.memory_names[copy.source],
            view.memory_names[copy.target],
            copy.issued_after,
            copy.needed_by,
            low,
            high,
            int(view.timeline.copy_start[row]),
            int(view.timeline.copy_end[row]),
        )


def list_placement(view: PlanView, memory: int) -> tuple[Buffers, np.ndarray] | None:
    """The buffers of one memory over the positions of ops, and their offsets; None if it has none."""
    size, place = view.occupancy.align(view.program.storage_bytes, memory).tolist(), view.occupancy.place
    rows = []
    for each in view.residencies:
        if each.memory == memory and each.offset >= 0:
            name = clean_name(view.program.tensor_name[each.tensor])
            where = (int(place[each.tensor]), each.offset)
            rows.append((*where, *_window(view, each), size[each.tensor], name))
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


def _window(view: PlanView, row: Residency) -> tuple[int, int]:
    if row.first == BEFORE:
        return 0, view.program.n_ops
    return view.position[row.first], view.position[row.last] + 1


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
