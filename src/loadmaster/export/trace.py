"""A plan's times as a trace for Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing).

Processes: devices (a thread for each), links (a thread for each engine), stalls, and the bytes held in
each memory as counters. An arrow goes from a copy to the op that waits for it. Times are microseconds.
"""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadmaster.export.plan_view import PlanView
from loadmaster.export.plans import Exported, ExportRequest, NotExported
from loadmaster.files import replacing

DEVICES, LINKS, STALLS, MEMORIES = 1, 2, 3, 4
_PS_PER_US = 10**6
Event = dict[str, Any]


def export(request: ExportRequest) -> Exported:
    """The target `trace`."""
    view = PlanView.of(request)
    events = trace_events(view)
    text = json.dumps(
        {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": {
                "program": request.program.name,
                "machine": request.machine.name,
                "plan": request.plan.hash,
            },
        },
        allow_nan=False,
    )
    data = text.encode()
    if request.out.suffix == ".gz":
        data = gzip.compress(data, 6, mtime=0)
    with replacing(request.out) as temporary:
        temporary.write_bytes(data)
    check_trace(request.out, view.timeline.total_ps)
    slices = sum(event["ph"] == "X" for event in events)
    return Exported(
        "verified",
        (request.out,),
        ("devices", "order", "times", "copies", "bytes in each memory"),
        figures={"events": len(events), "slices": slices, "file_bytes": len(data)},
        notes=(f"{slices:,} slices; open it at ui.perfetto.dev or in chrome://tracing",),
    )


def trace_events(view: PlanView) -> list[Event]:
    """Names first, then everything else by time."""
    links = [", ".join(link.engines) or f"{link.source} to {link.target}" for link in view.machine.links]
    lanes = list(dict.fromkeys(links))
    names = _names(DEVICES, "devices", [device.name for device in view.machine.devices])
    names += _names(LINKS, "links", lanes) if lanes else []
    names += _names(STALLS, "stalls", [device.name for device in view.machine.devices])
    names += _names(MEMORIES, "memories", [])
    thread = [lanes.index(lane) for lane in links]
    events = [*_ops(view), *_copies(view, thread), *_transfers(view, thread), *_counters(view)]
    # At one moment slices come before what refers to them.
    return names + sorted(events, key=lambda event: (event["ts"], "XCsf".index(event["ph"])))


def _names(process: int, name: str, threads: list[str]) -> list[Event]:
    found = [
        {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}},
    ]
    for number, thread in enumerate(threads):
        found += [
            {"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": thread}},
            {
                "ph": "M",
                "pid": process,
                "tid": number,
                "name": "thread_sort_index",
                "args": {"sort_index": number},
            },
        ]
    return found


def _slice(process: int, thread: int, name: str, begin: int, end: int, **args: Any) -> Event:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "ts": begin / _PS_PER_US,
        "dur": (end - begin) / _PS_PER_US,
        "args": args,
    }


def _ops(view: PlanView) -> list[Event]:
    """One slice for each step; the ops of a fused group are one."""
    program, timeline, events = view.program, view.timeline, []
    members: dict[int, list[str]] = {}
    for op, rank in enumerate(view.occupancy.steps.of_op.tolist()):
        members.setdefault(rank, []).append(program.op_name[op])
    for rank, op in enumerate(view.occupancy.steps.op.tolist()):
        begin, end = int(timeline.op_start[op]), int(timeline.op_end[op])
        more = {"fused": members[rank]} if len(members[rank]) > 1 else {}
        device = view.device(op)
        events.append(
            _slice(
                DEVICES,
                device,
                program.op_name[op],
                begin,
                end,
                op=op,
                kind=program.op_kind[op],
                scope=program.op_scope[op],
                **more,
            )
        )
        stall = int(timeline.op_stall[op])
        if stall:
            events.append(
                _slice(STALLS, device, f"wait for {program.op_name[op]}", begin - stall, begin, op=op)
            )
    return events


def _copies(view: PlanView, thread: list[int]) -> list[Event]:
    program, timeline, events = view.program, view.timeline, []
    for row, copy in enumerate(view.plan.copy_rows):
        begin, end = int(timeline.copy_start[row]), int(timeline.copy_end[row])
        lane = thread[view.machine.link_between[copy.source, copy.target]]
        whole = int(program.storage_bytes[copy.tensor])
        count = whole if copy.low < 0 else copy.high - copy.low
        name = f"copy {program.tensor_name[copy.tensor]}"
        events.append(
            _slice(
                LINKS,
                lane,
                name,
                begin,
                end,
                bytes=count,
                source=view.memory_names[copy.source],
                target=view.memory_names[copy.target],
            )
        )
        if copy.needed_by < program.n_ops:
            waits = int(timeline.op_start[copy.needed_by])
            common = {"cat": "copy", "name": "copy", "id": row}
            events += [
                {**common, "ph": "s", "pid": LINKS, "tid": lane, "ts": begin / _PS_PER_US},
                {
                    **common,
                    "ph": "f",
                    "bp": "e",
                    "pid": DEVICES,
                    "tid": view.device(copy.needed_by),
                    "ts": waits / _PS_PER_US,
                },
            ]
    return events


def _transfers(view: PlanView, thread: list[int]) -> list[Event]:
    machine, events = view.machine, []
    for tensor, device, begin, end in view.timeline.transfers.tolist():
        source = machine.home[view.occupancy.home_device[tensor]]
        link = machine.link_between.get((source, machine.home[device]))
        name = f"transfer {view.program.tensor_name[tensor]}"
        events.append(
            _slice(
                LINKS,
                thread[link] if link is not None else 0,
                name,
                begin,
                end,
                bytes=int(view.program.storage_bytes[tensor]),
                target=machine.devices[device].name,
            )
        )
    return events


def _counters(view: PlanView) -> list[Event]:
    found: list[Event] = []
    for memory, name in enumerate(view.memory_names):
        when, held = view.occupancy.profile(memory)
        for moment, count in zip(when.tolist(), held.tolist(), strict=True):
            at = {"ph": "C", "pid": MEMORIES, "tid": 0, "name": name, "ts": moment / _PS_PER_US}
            found.append({**at, "args": {"bytes": count}})
    return found


def check_trace(path: Path, total_ps: int) -> None:
    """Read a trace back: JSON, ascending, and as long as the plan takes."""
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    ends = [event["ts"] + event.get("dur", 0) for event in timed]
    ascending = all(a["ts"] <= b["ts"] for a, b in pairwise(timed))
    if not ascending or max(ends, default=0.0) > total_ps / _PS_PER_US * (1 + 1e-9):
        raise NotExported(
            f"trace '{path}' does not read back", object=str(path), remedy="report this as a bug"
        )
