"""`loadmaster simulate`: how long a model takes on a machine, and what it fills; `loadmaster check`: is a plan sound?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.model import CapacityOption, MachineOption, Model, read_planned, takes_model
from loadmaster.errors import BadPlan, Refused
from loadmaster.units import UNLIMITED, show_bytes, show_time

if TYPE_CHECKING:
    from loadmaster.machine import Machine
    from loadmaster.simulate import Timeline


@takes_model
def command(
    model: Model,
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN", help="A plan file; without one nothing is decided. Of a run, by default its own."
        ),
    ] = None,
    machine: MachineOption = None,
    capacity: CapacityOption = None,
) -> Answer:
    """Time, stalls, bytes over each link, busy devices, and the peak of each memory.

    Without a plan every tensor lives in the slowest memory and ops run in program order. The
    plan is checked; a plan that is not sound, or that does not fit, ends with exit code 1.

    Example: loadmaster simulate resnet50 plan.json --machine nnp-i

    Example: loadmaster simulate runs/A
    """
    if model.spec.is_buffers:
        raise Usage(
            f"'{model.source}' has buffers and no ops: there is nothing to time",
            object=model.source,
            remedy="use 'loadmaster plan' or 'loadmaster allocate'",
        )
    from loadmaster.plan.check import check
    from loadmaster.runs.folder import is_run
    from loadmaster.simulate import simulate

    program, chosen, decided = read_planned(model, machine, capacity, plan)
    timeline = simulate(program, chosen, decided)
    violations = check(program, chosen, decided, timeline)
    rows = [
        {
            "what": "total",
            "model": program.name,
            "machine": chosen.name,
            "plan": None if plan is None else str(plan),
            "seconds": timeline.seconds,
            "picoseconds": timeline.total_ps,
            "stall_seconds": timeline.stall_ps / 10**12,
            "fits": timeline.fits,
            "violations": len(violations),
        },
        *_devices(chosen, timeline),
        *_memories(chosen, timeline),
        *_links(chosen, timeline),
    ]
    own = Path(model.source).name if is_run(model.source) else "nothing decided"
    what = own if plan is None else plan.name
    head = f"{program.name} on {chosen.name}, {what}: time {show_time(timeline.total_ps)}"
    blocks: list[str | Table] = [f"{head}, stalls {show_time(timeline.stall_ps)}", *_tables(rows)]
    error = _misfit(chosen, timeline)
    # What is over the capacity is said in the summary; the checker's other findings are not.
    others = [v for v in violations if error is None or v.rule != "capacity"]
    blocks += [f"violation of {violation}" for violation in others[:20]]
    if error is None and violations:
        error = Refused(
            f"the plan is not sound: {len(violations)} violations",
            object=str(plan),
            number=len(violations),
            remedy="see 'loadmaster check'",
        )
    elif error is None:
        blocks.append("checked: ok")
    return Answer(rows, blocks, program.warnings, error)


def _devices(machine: Machine, timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "what": "device",
            "name": device.name,
            "busy_seconds": int(busy) / 10**12,
            "busy_share": int(busy) / timeline.total_ps if timeline.total_ps else 0.0,
        }
        for device, busy in zip(machine.devices, timeline.device_busy, strict=True)
    ]


def _memories(machine: Machine, timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "what": "memory",
            "name": memory.name,
            "peak_bytes": int(timeline.memory_peak[i]),
            "top_bytes": int(timeline.memory_top[i]),
            "over_bytes": int(timeline.memory_over[i]),
            "capacity_bytes": None if memory.capacity >= UNLIMITED else memory.capacity,
        }
        for i, memory in enumerate(machine.memories)
    ]


def _links(machine: Machine, timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {"what": "link", "source": link.source, "target": link.target, "bytes": int(count)}
        for link, count in zip(machine.links, timeline.link_bytes, strict=True)
    ]


def _tables(rows: list[dict[str, Any]]) -> list[Table]:
    devices = [
        (row["name"], show_time(round(row["busy_seconds"] * 10**12)), f"{row['busy_share']:.1%}")
        for row in rows
        if row["what"] == "device"
    ]
    memories = [
        (
            row["name"],
            show_bytes(max(row["peak_bytes"], row["top_bytes"])),
            "unlimited" if row["capacity_bytes"] is None else show_bytes(row["capacity_bytes"]),
            f"{row['over_bytes']:,}" if row["over_bytes"] else "–",
        )
        for row in rows
        if row["what"] == "memory"
    ]
    links = [
        (f"{row['source']} to {row['target']}", show_bytes(row["bytes"]))
        for row in rows
        if row["what"] == "link" and row["bytes"]
    ]
    tables = [
        Table(("device", "busy", "share"), devices),
        Table(("memory", "peak", "capacity", "too many bytes"), memories),
    ]
    return [*tables, Table(("link", "bytes"), links)] if links else tables


def _misfit(machine: Machine, timeline: Timeline) -> Refused | None:
    over = [i for i, count in enumerate(timeline.memory_over) if count]
    if not over:
        return None
    texts = []
    for i in over:
        memory = machine.memories[i]
        needed = max(int(timeline.memory_peak[i]), int(timeline.memory_top[i]))
        texts.append(
            f"'{memory.name}' needs {needed:,}, has {memory.capacity:,}, "
            f"too many by {int(timeline.memory_over[i]):,}"
        )
    return Refused(
        f"does not fit: {'; '.join(texts)}",
        object=machine.memories[over[0]].name,
        number=int(timeline.memory_over[over[0]]),
    )


@takes_model
def judge(
    model: Model,
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A plan file. Of a run, by default its own.")
    ] = None,
    machine: MachineOption = None,
    capacity: CapacityOption = None,
    most: Annotated[int, typer.Option("--max", min=1, help="How many violations to show.")] = 20,
) -> Answer:
    """Check a plan and its timeline; 'ok', or every violation with its tensor, op and number.

    Example: loadmaster check resnet50 plan.json --machine nnp-i

    Example: loadmaster check runs/A
    """
    from loadmaster.plan.check import check
    from loadmaster.runs.folder import is_run
    from loadmaster.simulate import simulate

    if plan is None and not is_run(model.source):
        raise Usage("there is no plan to check", object="PLAN", remedy="give its file, or a run")
    program, chosen, decided = read_planned(model, machine, capacity, plan)
    timeline: Timeline | None
    try:
        timeline = simulate(program, chosen, decided)
    except BadPlan:
        timeline = None  # it can't even run; the checker says why
    violations = check(program, chosen, decided, timeline)
    rows: list[dict[str, Any]] = [
        {
            "rule": v.rule,
            "message": v.message,
            "tensor": v.tensor,
            "tensor_name": None if v.tensor is None else program.tensor_name[v.tensor],
            "op": v.op,
            "op_name": None if v.op is None else program.op_name[v.op],
            "number": v.number,
        }
        for v in violations[:most]
    ]
    if not violations:
        return Answer(rows, ["ok"], program.warnings)
    cells = [
        (row["rule"], *(_text(row[key]) for key in ("tensor_name", "op_name", "number", "message")))
        for row in rows
    ]
    error = Refused(
        f"the plan is not sound: {len(violations):,} violations", object=str(plan), number=len(violations)
    )
    blocks: list[str | Table] = [Table(("rule", "tensor", "op", "number", "what is wrong"), cells)]
    if len(violations) > most:
        blocks.append(f"and {len(violations) - most:,} more: see --max")
    return Answer(rows, blocks, program.warnings, error)


def _text(value: object) -> str:
    return "–" if value is None else str(value)
