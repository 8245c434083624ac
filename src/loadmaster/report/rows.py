"""The figures of a report as rows: those of `--json`, which are those on the page."""

from __future__ import annotations

import json
from bisect import bisect_left
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.files import read_regular
from loadmaster.json_text import read_json
from loadmaster.plan import Plan, plan_to_json
from loadmaster.report.subject import Subject
from loadmaster.report.view import Transitions, View
from loadmaster.runs.compare import Change, Difference, compare_plans
from loadmaster.simulate import simulate
from loadmaster.units import PICOSECONDS, UNLIMITED

Row = dict[str, Any]


def plan_row(subject: Subject, role: str) -> Row:
    """What a plan is worth. `role`: 'after', 'before' or 'other' (another run)."""
    history = subject.history
    row: Row = {
        "what": "plan",
        "role": role,
        "name": subject.name,
        "problem": subject.kind,
        "value": subject.value,
        "unit": subject.unit,
        "bound": subject.bound,
        "gap": subject.gap,
        "evaluations": None if history is None else history.evaluations,
        "search_seconds": None if history is None else history.seconds,
    }
    if role != "other":  # the plans of other runs are only compared by their values
        timeline = subject.timeline
        row |= {
            "seconds": timeline.seconds,
            "picoseconds": timeline.total_ps,
            "stall_seconds": timeline.stall_ps / PICOSECONDS,
            "violations": len(subject.violations),
            "fits": timeline.fits,
        }
    return row


def list_view(view: View) -> list[Row]:
    """Memories with their peaks, devices, links."""
    subject, timeline = view.subject, view.subject.timeline
    program, machine, plan = subject.program, subject.machine, view.role
    rows: list[Row] = []
    for profile in view.profiles:
        memory, op = machine.memories[profile.memory], view.peak_op(profile)
        rows.append(
            {
                "what": "memory",
                "plan": plan,
                "name": memory.name,
                "peak_bytes": profile.peak,
                "top_bytes": int(timeline.memory_top[profile.memory]),
                "capacity_bytes": None if memory.capacity >= UNLIMITED else memory.capacity,
                "over_bytes": int(timeline.memory_over[profile.memory]),
                "peak_seconds": profile.peak_at / PICOSECONDS,
                "peak_op": None if op is None else program.op_name[op],
                "tensors_at_peak": profile.alive,
                "largest_at_peak": [program.tensor_name[tensor] for tensor in profile.largest],
            }
        )
    for number in view.devices:
        busy = int(timeline.device_busy[number])
        rows.append(
            {
                "what": "device",
                "plan": plan,
                "name": machine.devices[number].name,
                "busy_seconds": busy / PICOSECONDS,
                "steps": int((view.bars.device == number).sum()),
                "busy_share": busy / timeline.total_ps if timeline.total_ps else 0.0,
            }
        )
    for number, link in enumerate(machine.links):
        count = int((view.moves.link == number).sum())
        if count:
            rows.append(
                {
                    "what": "link",
                    "plan": plan,
                    "source": link.source,
                    "target": link.target,
                    "bytes": int(timeline.link_bytes[number]),
                    "copies": count,
                }
            )
    return rows


def list_transitions(found: Transitions | None, names: list[str]) -> list[Row]:
    """Tensors by memory before and after; pairs without any are left out."""
    if found is None:
        return []
    return [
        {
            "what": "transition",
            "from": names[a],
            "to": names[b],
            "count": int(found.count[i, j]),
            "bytes": int(found.bytes[i, j]),
        }
        for i, a in enumerate(found.memories)
        for j, b in enumerate(found.memories)
        if found.count[i, j]
    ]


_NAMED = 10
_SLOW_OPS = 20_000
"""Above it the effects of single changes are left out: each takes a simulation."""
_LABELS = {"moved": "tensors moved", "offset": "offsets changed", "lifetime": "lifetimes changed"}


def list_changes(old: Subject, new: Subject) -> list[dict[str, Any]]:
    """Rows 'change' with counts, then rows 'tensor' and 'copy' of the largest."""
    found = compare_plans(_document(old), _document(new))
    sizes = new.program.storage_bytes.tolist()
    rows: list[dict[str, Any]] = []
    for kind, label in _LABELS.items():
        touched = [change.tensor for change in found.of(kind)]
        rows.append(_count(label, len(touched), sum(sizes[tensor] for tensor in touched)))
    for label, copies in (("copies added", found.copies_added), ("copies gone", found.copies_gone)):
        rows.append(_count(label, len(copies), sum(_moved(copy, sizes) for copy in copies)))
    moved = order_moves(old.plan, new.plan, new.program.n_ops)
    rows.append(_count("ops moved in the order", moved, None))
    for column, label in (("device", "ops on another device"), ("fusion", "ops fused otherwise")):
        rows.append(_count(label, _ops_changed(old.plan, new.plan, column), None))
    rows = [row for row in rows if row["count"]]
    rows += _named(found, sizes, old, new)
    return rows


def order_moves(old: Plan, new: Plan, n_ops: int) -> int:
    """The fewest ops to take out and put back elsewhere to get from one order to the other."""
    if old.order is None and new.order is None:
        return 0
    before = np.arange(n_ops) if old.order is None else old.order
    after = np.arange(n_ops) if new.order is None else new.order
    position = np.empty(n_ops, dtype=np.int64)
    position[after] = np.arange(n_ops)
    ends: list[int] = []  # of the longest rising sequences of each length: the smallest last entry
    for place in position[before].tolist():
        spot = bisect_left(ends, place)
        ends[spot : spot + 1] = [place]
    return n_ops - len(ends)


def _document(subject: Subject) -> dict[str, Any]:
    return dict(json.loads(plan_to_json(subject.plan, subject.program, subject.machine)))


def _count(name: str, count: int, size: int | None) -> dict[str, Any]:
    return {"what": "change", "name": name, "count": count, "bytes": size}


def _ops_changed(old: Plan, new: Plan, column: str) -> int:
    """Numbers of groups mean nothing: groups are compared by their smallest members."""
    a, b = getattr(old, column), getattr(new, column)
    if column == "fusion" and (a is not None or b is not None):
        return int((_smallest(a, b) != _smallest(b, a)).sum())
    if a is None or b is None:  # left out: the first device
        given = b if a is None else a
        return 0 if given is None else int((given != 0).sum())
    return int((a != b).sum())


def _smallest(groups: Any, other: Any) -> Any:
    n = len(groups if groups is not None else other)
    alone = np.arange(n, dtype=np.int64)
    if groups is None:
        return alone
    first = np.full(int(groups.max(initial=-1)) + 1, n, dtype=np.int64)
    fused = groups >= 0
    np.minimum.at(first, groups[fused], alone[fused])
    return np.where(fused, first[groups], alone)


def _named(found: Difference, sizes: list[int], old: Subject, new: Subject) -> list[dict[str, Any]]:
    largest = sorted(found.tensors, key=lambda c: (c.kind != "moved", -sizes[c.tensor], c.tensor))
    rows: list[dict[str, Any]] = [
        {
            "what": "tensor",
            "name": change.name,
            "tensor": change.tensor,
            "change": change.kind,
            "from": _memories(change.before),
            "to": _memories(change.after),
            "bytes": sizes[change.tensor],
            "effect_ps": _effect(change, old, new),
        }
        for change in largest[:_NAMED]
    ]
    copies = [("added", copy) for copy in found.copies_added]
    copies += [("gone", copy) for copy in found.copies_gone]
    copies.sort(key=lambda pair: -_moved(pair[1], sizes))
    rows += [
        {
            "what": "copy",
            "name": str(copy["name"]),
            "tensor": int(copy["tensor"]),
            "change": kind,
            "from": copy["from"],
            "to": copy["to"],
            "bytes": _moved(copy, sizes),
            "issued_after": copy["issued_after"],
            "needed_by": copy["needed_by"],
        }
        for kind, copy in copies[:_NAMED]
    ]
    return rows


def _moved(copy: dict[str, Any], sizes: list[int]) -> int:
    """Bytes of a copy: of its slice, or of the whole tensor. `compare_plans` has slices as texts."""
    if copy["bytes"] == "None":
        return sizes[int(copy["tensor"])]
    low, high = json.loads(copy["bytes"])
    return int(high - low)


def _memories(text: str) -> str:
    """'hbm, cmem, cmem' as 'hbm, cmem × 2': a tensor may lie in pieces, or come back."""
    runs = [(name, len(list(group))) for name, group in groupby(text.split(", "))]
    return ", ".join(name if times == 1 else f"{name} × {times}" for name, times in runs)


def _effect(change: Change, old: Subject, new: Subject) -> int | None:
    """Picoseconds that this tensor's change alone adds to the old plan; effects do not add up."""
    if new.program.n_ops > _SLOW_OPS or old.plan.queue != "order":
        return None
    tables = {}
    for name in ("residencies", "copies"):
        kept, taken = (getattr(subject.plan, name) for subject in (old, new))
        parts = [] if kept is None else [kept[kept[:, 0] != change.tensor]]
        parts += [] if taken is None else [taken[taken[:, 0] == change.tensor]]
        joined = np.concatenate(parts) if parts else None
        tables[name] = joined if joined is not None and len(joined) else None
    try:
        alone = simulate(old.program, old.machine, old.plan.changed(**tables))
    except LoadmasterError:
        return None
    return alone.total_ps - old.timeline.total_ps


_MOST_BYTES = 2**28


def read_measured(path: Path, subject: Subject) -> list[Row]:
    """One row for the whole, and one for each op that was timed. Another plan's run is refused."""
    try:
        rows = read_json(read_regular(path, _MOST_BYTES))["rows"]
        total = next(row for row in rows if row["what"] == "total")
        seconds, plan = float(total["seconds"]), str(total["plan"])
        ops = [
            (int(row["op"]), float(row["end_seconds"]) - float(row["start_seconds"]))
            for row in rows
            if row["what"] == "op"
        ]
    except OSError as error:
        raise _bad(path, f"can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, StopIteration):
        raise _bad(path, "is not what 'loadmaster run --json' prints") from None
    if plan != subject.plan.hash:
        raise _bad(path, f"is about another plan than '{subject.name}'")
    line = subject.timeline
    found: list[Row] = [
        {
            "what": "measured",
            "name": subject.name,
            "device": str(total.get("device", "")),
            "seconds": seconds,
            "simulated_seconds": line.seconds,
            "difference": line.seconds / seconds - 1 if seconds > 0 else None,
        }
    ]
    for op, took in ops:
        if 0 <= op < subject.program.n_ops:
            simulated = int(line.op_end[op] - line.op_start[op]) / PICOSECONDS
            found.append(
                {
                    "what": "measured_op",
                    "name": subject.program.op_name[op],
                    "op": op,
                    "seconds": took,
                    "simulated_seconds": simulated,
                    "off_seconds": simulated - took,
                }
            )
    return found


def _bad(path: Path, reason: str) -> LoadmasterError:
    return LoadmasterError(
        f"'{path}' {reason}", object=str(path), remedy="give what 'loadmaster run MODEL PLAN --json' printed"
    )
