"""Plans and runs for other people's viewers: Model Explorer, Netron, TensorBoard.

Model Explorer takes numbers and colours for the nodes of a model's graph as plain JSON, one file for each
number; a node is found by the name of a tensor that it makes. Netron's side bar shows the metadata of an
ONNX model: metadata is all that is added to it, which is checked on the file written. TensorBoard shows
what a run's log tells of itself, over its evaluations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from loadmaster.errors import require
from loadmaster.export.plan_view import PlanView
from loadmaster.export.plans import Exported, ExportRequest, NotExported, check_other_file
from loadmaster.files import replacing
from loadmaster.program.build import clean_name
from loadmaster.program.importers.onnx.read import read_model
from loadmaster.runs.log import Line

# Hues that row apart for colour-blind readers (after Okabe and Ito), fastest memory first.
_COLOURS = ("#009e73", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7", "#0072b2", "#f0e442", "#999999")
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#d55e00"}]


def export_node_data(request: ExportRequest) -> Exported:
    """The target `model-explorer`."""
    view = PlanView.of(request)
    request.out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, document in make_node_data(view).items():
        path = request.out / f"{name}.json"
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
        files.append(path)
    return Exported(
        "unverified",
        tuple(files),
        ("memory of results", "times", "bytes"),
        figures={"nodes": view.program.n_ops},
        notes=("add them in Model Explorer with 'Add per-node data'",),
    )


def make_node_data(view: PlanView) -> dict[str, dict[str, Any]]:
    """memory (its rank, 0 the fastest, with a colour each), time_us, bytes, stall_us."""
    program, timeline = view.program, view.timeline
    ranks = {memory: rank for rank, memory in enumerate(view.machine.reach[0])}
    data: dict[str, dict[str, Any]] = {name: {} for name in ("memory", "time_us", "bytes", "stall_us")}
    for op in range(program.n_ops):
        took = int(timeline.op_end[op]) - int(timeline.op_start[op])
        for tensor in program.writes(op).tolist():
            key = program.tensor_name[tensor]
            row = view.find_result(op, tensor)
            if row is not None:
                rank = ranks.get(row.memory, len(ranks) + row.memory)
                data["memory"][key] = {"value": rank, "bgColor": _COLOURS[rank % len(_COLOURS)]}
            data["time_us"][key] = {"value": took / 10**6}
            data["bytes"][key] = {"value": int(program.tensor_bytes[tensor])}
            data["stall_us"][key] = {"value": int(timeline.op_stall[op]) / 10**6}
    return {
        name: {"name": f"loadmaster {name}", "results": results}
        | ({} if name == "memory" else {"gradient": _GRADIENT})
        for name, results in data.items()
    }


PREFIX = "loadmaster."


def export_onnx_metadata(request: ExportRequest) -> Exported:
    """The target `onnx-metadata`."""
    check_other_file(request.model, request.out)
    view = PlanView.of(request)
    onnx = require("onnx", "onnx")
    read_model(request.model, slim=True)  # refuses what is damaged
    model = onnx.load(request.model, load_external_data=False)
    if model.functions:
        raise NotExported(
            f"'{request.model}' has functions of its own, whose nodes can't be told apart",
            object=request.model,
            number=len(model.functions),
            remedy="inline them first",
        )
    elsewhere = request.out.resolve().parent != Path(request.model).resolve().parent
    if elsewhere and any(tensor.external_data for tensor in model.graph.initializer):
        raise NotExported(
            f"'{request.model}' keeps weights in other files, which are looked for beside it",
            object=request.model,
            remedy=f"write into the folder '{Path(request.model).parent}'",
        )
    bare = strip_metadata(model).SerializeToString(deterministic=True)
    marked = _annotate(model, view)
    with replacing(request.out) as temporary:
        temporary.write_bytes(model.SerializeToString())
    written = onnx.load(request.out, load_external_data=False)
    if strip_metadata(written).SerializeToString(deterministic=True) != bare:
        raise NotExported(
            f"'{request.out}' differs from the model in more than metadata",
            object=str(request.out),
            remedy="report this as a bug",
        )
    return Exported(
        "verified",
        (request.out,),
        ("order", "devices", "memories", "offsets", "fusion", "times"),
        () if request.plan.copies is None else (f"{len(request.plan.copies):,} copies",),
        {"nodes": marked},
        ("Netron shows it with a node's other properties",),
    )


def strip_metadata(model: Any) -> Any:
    """A copy without any metadata of ours."""
    plain = type(model)()
    plain.CopyFrom(model)
    for holder in (plain, *plain.graph.node):
        _clear(holder)
    return plain


def _clear(holder: Any) -> None:
    kept = [(p.key, p.value) for p in holder.metadata_props if not p.key.startswith(PREFIX)]
    if len(kept) != len(holder.metadata_props):
        del holder.metadata_props[:]
        for key, value in kept:
            holder.metadata_props.add(key=key, value=value)


def _set(holder: Any, values: dict[str, object]) -> None:
    _clear(holder)
    for key, value in values.items():
        holder.metadata_props.add(key=PREFIX + key, value=str(value))


def _annotate(model: Any, view: PlanView) -> int:
    """Add what the plan says; how many nodes it says something about."""
    program, timeline, fusion = view.program, view.timeline, view.plan.fusion
    _set(
        model,
        {
            "program": program.hash,
            "machine": f"{view.machine.name} {view.machine.hash}",
            "plan": view.plan.hash,
            "time_us": timeline.total_ps / 10**6,
        },
    )
    for node in model.graph.node:
        _clear(node)
    ops: dict[int, list[int]] = {}
    for op, source in enumerate(program.op_source.tolist()):
        if 0 <= source < len(model.graph.node):
            ops.setdefault(source, []).append(op)
    for source, rows in ops.items():
        node, op = model.graph.node[source], rows[0]
        values: dict[str, object] = {
            "order": view.position[op],
            "device": view.machine.devices[view.device(op)].name,
            "start_us": int(timeline.op_start[op]) / 10**6,
            "end_us": int(timeline.op_end[rows[-1]]) / 10**6,
        }
        if fusion is not None and fusion[op] >= 0:
            values["fusion"] = int(fusion[op])
        made = {program.tensor_name[t]: (row, t) for row in rows for t in program.writes(row).tolist()}
        for i, name in enumerate(node.output):
            if clean_name(name) not in made:
                continue
            row = view.find_result(*made[clean_name(name)])
            if row is not None:
                values |= {
                    f"out{i}.memory": view.memory_names[row.memory],
                    f"out{i}.first": row.first,
                    f"out{i}.last": row.last,
                }
                if row.offset >= 0:
                    values[f"out{i}.offset"] = row.offset
        _set(node, values)
    return len(ops)


RUN = ("best", "bound", "gap", "evals_per_s")
"""Of a line of progress; everything else that it tells is in its `metrics`."""


def list_scalars(line: Line) -> Iterator[tuple[str, float]]:
    """(name, number) of all that a line of a log tells about where the run stands."""
    match line["event"]:
        case "improve":
            yield "run/best", float(line["value"])
            if line.get("gap") is not None:
                yield "run/gap", float(line["gap"])
        case "bound":
            yield "run/bound", float(line["value"])
        case "progress":
            for name in RUN:
                if line[name] is not None:
                    yield f"run/{name}", float(line[name])
            for name, value in line["metrics"].items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield f"metrics/{name}", float(value)


def export_log(lines: Sequence[Line], folder: Path, begun: str | None = None) -> int:
    """Write the lines of one log into `folder`, which TensorBoard shows as one run; how many numbers.
    Steps are evaluations. `begun`: when the run was, as UTC in ISO format; times are seconds after it."""
    require("tensorboard", "tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    start = 0.0 if begun is None else datetime.fromisoformat(begun).timestamp()
    folder.mkdir(parents=True, exist_ok=True)
    writer, count = EventFileWriter(str(folder)), 0
    try:
        for line in lines:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in list_scalars(line)]
            if values:
                writer.add_event(
                    Event(wall_time=start + line["t"], step=line["evals"], summary=Summary(value=values))
                )
            count += len(values)
    finally:
        writer.close()
    return count
