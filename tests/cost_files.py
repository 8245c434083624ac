"""Files of measured op times, as `loadmaster calibrate` writes them."""

from __future__ import annotations

import json
from pathlib import Path

from loadmaster.program.measured_costs import FORMAT, MeasuredCosts


def write_costs(costs: MeasuredCosts, path: str | Path) -> None:
    """A cost file of what was measured."""
    document = {
        "loadmaster_costs": FORMAT,
        "program": costs.program,
        "device": costs.device,
        "picoseconds": list(costs.picoseconds),
        "workspace_bytes": costs.workspace_bytes,
        "kept_bytes": costs.kept_bytes,
        "op_workspace": list(costs.op_workspace),
    }
    Path(path).write_text(json.dumps(document) + "\n", encoding="utf-8")
