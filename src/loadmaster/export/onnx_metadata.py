"""A plan in an ONNX model's metadata, where Netron's side bar and other tools show it.

The model computes what it did: metadata is all that is added, which is checked on the file written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadmaster.errors import require
from loadmaster.export.rules import Asked, Exported, NotExported, check_other_file
from loadmaster.export.shown import Shown
from loadmaster.files import replacing
from loadmaster.program.build import clean_name
from loadmaster.program.importers.onnx.read import read_model

PREFIX = "loadmaster."


def export(asked: Asked) -> Exported:
    """The target `onnx-metadata`."""
    check_other_file(asked.model, asked.out)
    shown = Shown.of(asked)
    onnx = require("onnx", "onnx")
    read_model(asked.model)  # refuses what is damaged
    model = onnx.load(asked.model, load_external_data=False)
    if model.functions:
        raise NotExported(
            f"'{asked.model}' has functions of its own, whose nodes can't be told apart",
            object=asked.model,
            number=len(model.functions),
            remedy="inline them first",
        )
    elsewhere = asked.out.resolve().parent != Path(asked.model).resolve().parent
    if elsewhere and any(tensor.external_data for tensor in model.graph.initializer):
        raise NotExported(
            f"'{asked.model}' keeps weights in other files, which are looked for beside it",
            object=asked.model,
            remedy=f"write into the folder '{Path(asked.model).parent}'",
        )
    bare = stripped(model).SerializeToString(deterministic=True)
    marked = _annotate(model, shown)
    with replacing(asked.out) as temporary:
        temporary.write_bytes(model.SerializeToString())
    written = onnx.load(asked.out, load_external_data=False)
    if stripped(written).SerializeToString(deterministic=True) != bare:
        raise NotExported(
            f"'{asked.out}' differs from the model in more than metadata",
            object=str(asked.out),
            remedy="report this as a bug",
        )
    return Exported(
        "verified",
        (asked.out,),
        ("order", "devices", "memories", "offsets", "fusion", "times"),
        () if asked.plan.copies is None else (f"{len(asked.plan.copies):,} copies",),
        {"nodes": marked},
        ("Netron shows it with a node's other properties",),
    )


def stripped(model: Any) -> Any:
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


def _annotate(model: Any, shown: Shown) -> int:
    """Add what the plan says; how many nodes it says something about."""
    program, timeline, fusion = shown.program, shown.timeline, shown.plan.fusion
    _set(
        model,
        {
            "program": program.hash,
            "machine": f"{shown.machine.name} {shown.machine.hash}",
            "plan": shown.plan.hash,
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
            "order": shown.position[op],
            "device": shown.machine.devices[shown.device(op)].name,
            "start_us": int(timeline.op_start[op]) / 10**6,
            "end_us": int(timeline.op_end[rows[-1]]) / 10**6,
        }
        if fusion is not None and fusion[op] >= 0:
            values["fusion"] = int(fusion[op])
        made = {program.tensor_name[t]: (row, t) for row in rows for t in program.writes(row).tolist()}
        for i, name in enumerate(node.output):
            if clean_name(name) not in made:
                continue
            stay = shown.written_to(*made[clean_name(name)])
            if stay is not None:
                values |= {
                    f"out{i}.memory": shown.memory_names[stay.memory],
                    f"out{i}.first": stay.first,
                    f"out{i}.last": stay.last,
                }
                if stay.offset >= 0:
                    values[f"out{i}.offset"] = stay.offset
        _set(node, values)
    return len(ops)
