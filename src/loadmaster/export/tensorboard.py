"""A log as TensorBoard's event files: what a run tells of itself, over its evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from loadmaster.errors import require
from loadmaster.runs.log import Line

RUN = ("best", "bound", "gap", "evals_per_s")
"""Of a line of progress; everything else that it tells is in its `metrics`."""


def scalars(line: Line) -> Iterator[tuple[str, float]]:
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
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(line)]
            if values:
                writer.add_event(
                    Event(wall_time=start + line["t"], step=line["evals"], summary=Summary(value=values))
                )
            count += len(values)
    finally:
        writer.close()
    return count
