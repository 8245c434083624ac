"""A plan as node data for Model Explorer: numbers and colours on the nodes of a model's graph.

Plain JSON, one file for each number. A node is found by the name of a tensor that it makes.
"""

from __future__ import annotations

import json
from typing import Any

from loadmaster.export.rules import Asked, Exported
from loadmaster.export.shown import Shown
from loadmaster.files import replacing

# Hues that stay apart for colour-blind readers (after Okabe and Ito), fastest memory first.
_COLOURS = ("#009e73", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7", "#0072b2", "#f0e442", "#999999")
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#d55e00"}]


def export(asked: Asked) -> Exported:
    """The target `model-explorer`."""
    shown = Shown.of(asked)
    asked.out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, document in node_data(shown).items():
        path = asked.out / f"{name}.json"
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
        files.append(path)
    return Exported(
        "unverified",
        tuple(files),
        ("memory of results", "times", "bytes"),
        figures={"nodes": shown.program.n_ops},
        notes=("add them in Model Explorer with 'Add per-node data'",),
    )


def node_data(shown: Shown) -> dict[str, dict[str, Any]]:
    """memory (its rank, 0 the fastest, with a colour each), time_us, bytes, stall_us."""
    program, timeline = shown.program, shown.timeline
    ranks = {memory: rank for rank, memory in enumerate(shown.machine.reach[0])}
    data: dict[str, dict[str, Any]] = {name: {} for name in ("memory", "time_us", "bytes", "stall_us")}
    for op in range(program.n_ops):
        took = int(timeline.op_end[op]) - int(timeline.op_start[op])
        for tensor in program.writes(op).tolist():
            key = program.tensor_name[tensor]
            stay = shown.written_to(op, tensor)
            if stay is not None:
                rank = ranks.get(stay.memory, len(ranks) + stay.memory)
                data["memory"][key] = {"value": rank, "bgColor": _COLOURS[rank % len(_COLOURS)]}
            data["time_us"][key] = {"value": took / 10**6}
            data["bytes"][key] = {"value": int(program.tensor_bytes[tensor])}
            data["stall_us"][key] = {"value": int(timeline.op_stall[op]) / 10**6}
    return {
        name: {"name": f"loadmaster {name}", "results": results}
        | ({} if name == "memory" else {"gradient": _GRADIENT})
        for name, results in data.items()
    }
