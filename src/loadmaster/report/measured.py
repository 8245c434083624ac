"""Simulated against measured time: what `loadmaster run --json` printed, beside the same plan's timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError
from loadmaster.files import read_regular
from loadmaster.json_text import read_json
from loadmaster.report.subject import Subject
from loadmaster.units import PICOSECONDS

Row = dict[str, Any]
_MOST_BYTES = 2**28


def measured_rows(path: Path, subject: Subject) -> list[Row]:
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
