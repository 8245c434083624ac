"""What was measured of a model's ops, as a cost table that planning reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.execute.op_times import OpTimes
from loadmaster.files import replacing
from loadmaster.program.measured_costs import FORMAT, MeasuredCosts, apply_costs, costless_hash
from loadmaster.program.program import Program


def cost_document(
    program: Program, times: OpTimes, device: str, slowdown: Mapping[str, float]
) -> dict[str, Any]:
    """What a cost file holds."""
    return {
        "loadmaster_costs": FORMAT,
        "program": costless_hash(program),
        "device": device,
        "picoseconds": times.picoseconds.tolist(),
        "workspace_bytes": times.workspace_bytes,
        "kept_bytes": times.kept_bytes,
        "op_workspace": times.op_workspace.tolist(),
        "marked_seconds": times.marked_seconds,
        "eager_seconds": times.eager_seconds,
        "graph_seconds": times.graph_seconds,
        "peak_bytes": times.peak_bytes,
        "copy_slowdown": dict(slowdown),
        "notes": list(times.notes),
    }


def with_times(program: Program, times: OpTimes) -> Program:
    """The program with its measured times."""
    found = MeasuredCosts(
        costless_hash(program), "", tuple(times.picoseconds.tolist()), times.workspace_bytes
    )
    return apply_costs(program, found)


def write_cost_file(document: Mapping[str, Any], path: Path) -> None:
    """Write to a temporary file, then rename."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
