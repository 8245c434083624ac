"""The figures of a report as rows: those of `--json`, which are those on the page."""

from __future__ import annotations

from typing import Any

from loadmaster.report.places import Transitions
from loadmaster.report.subject import Subject
from loadmaster.report.view import View
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


def view_rows(view: View) -> list[Row]:
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
    for number in view.facts.devices_used:
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


def transition_rows(found: Transitions | None, names: list[str]) -> list[Row]:
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
