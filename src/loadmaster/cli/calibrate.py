"""`loadmaster calibrate`: measure a machine, and every op of a model on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, check_free
from loadmaster.cli.model import Model, check_function, size_of
from loadmaster.cli.progress import say
from loadmaster.units import show_bytes, show_count, show_time

if TYPE_CHECKING:
    from loadmaster.execute.op_times import OpTimes
    from loadmaster.execute.speeds import Speeds
    from loadmaster.program import Program


def command(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A PyTorch module:function whose ops are timed.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cuda:1 or cpu.")] = "cuda",
    out: Annotated[Path | None, typer.Option(metavar="TOML", help="Write the machine as measured.")] = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="MACHINE", help="Gives names and what is not measured, such as h200."),
    ] = None,
    costs: Annotated[Path | None, typer.Option(metavar="JSON", help="Write the model's cost table.")] = None,
    program: Annotated[
        Path | None, typer.Option(metavar="NPZ", help="Write the model as captured: what the costs are of.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="A training step.")] = False,
    split: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Weights above it are cut into slices.")
    ] = None,
    weights: Annotated[str, typer.Option(help="The module's own, or random.")] = "random",
    passes: Annotated[int, typer.Option(min=1, help="Passes of which the median counts.")] = 7,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Links, memory, matrix rates and launches of a device; times of a model's ops, all resident.

    Without --out and --costs nothing is written. The machine's TOML and the cost table are what
    'loadmaster plan' takes as --machine and --costs.

    Example: loadmaster calibrate --out mine.toml --base h200

    Example: loadmaster calibrate net:build --costs net.json --program net.npz
    """
    for path in (out, costs, program):
        if path is not None:
            check_free(path, overwrite)
    if model is not None:
        from loadmaster.program.importers import as_module

        model = as_module(model)
        check_function(Model(model, train=train, split=split, device=device), "give module:function")
    from loadmaster.execute.speeds import calibrate

    found = calibrate(
        model,
        device,
        out=out,
        base=base,
        costs=costs,
        program=program,
        training=train,
        split_over=size_of(split, "--split"),
        weights=weights,
        passes=passes,
        say=say,
    )
    rows: list[dict[str, Any]] = []
    blocks: list[str | Table] = []
    if found.speeds is not None:
        rows.append(_machine_row(found.speeds, out))
        blocks.append(_machine_table(found.speeds))
        blocks += [] if out is None else [f"wrote {out}"]
    if model is not None and found.program is not None and found.times is not None:
        rows.append(_model_row(model, found.program, found.times, costs, program))
        blocks += _model_blocks(found.program, found.times)
        blocks += [f"wrote {path}" for path in (costs, program) if path is not None]
    return Answer(rows, blocks)


def _machine_row(speeds: Speeds, out: Path | None) -> dict[str, Any]:
    return {
        "what": "machine",
        "device": speeds.device,
        "total_bytes": speeds.total,
        "free_bytes": speeds.free,
        "to_device": speeds.to_device.bandwidth,
        "to_device_latency_seconds": speeds.to_device.latency,
        "to_device_together": speeds.to_device.together,
        "to_host": speeds.to_host.bandwidth,
        "to_host_latency_seconds": speeds.to_host.latency,
        "to_host_together": speeds.to_host.together,
        "memory": speeds.memory,
        "matrix": speeds.matrix,
        "launch_seconds": speeds.launch,
        "slowdown": speeds.slowdown,
        "file": None if out is None else str(out),
    }


def _machine_table(speeds: Speeds) -> Table:
    cells = [("memory", f"{show_bytes(speeds.total)}, {show_bytes(speeds.free)} free")]
    for name, link in (("host to device", speeds.to_device), ("device to host", speeds.to_host)):
        alone, both = show_bytes(round(link.bandwidth)), show_bytes(round(link.together))
        cells.append((name, f"{alone}/s after {_time(link.latency)}; both ways at once {both}/s"))
    cells.append(("inside the device", f"{show_bytes(round(speeds.memory))}/s"))
    cells += [(f"products in {kind}", f"{show_count(rate)}flop/s") for kind, rate in speeds.matrix.items()]
    cells.append(("launch", show_time(round(speeds.launch * 1e12))))
    cells += [
        (f"{kind} work beside copies", f"{factor:.3f} times as long")
        for kind, factor in speeds.slowdown.items()
    ]
    return Table((speeds.device, "measured"), cells)


def _model_row(
    model: str, program: Program, times: OpTimes, costs: Path | None, out: Path | None
) -> dict[str, Any]:
    return {
        "what": "model",
        "model": model,
        "ops": program.n_ops,
        "hash": program.hash,
        "seconds": times.whole_seconds,
        "eager_seconds": times.eager_seconds,
        "graph_seconds": times.graph_seconds,
        "marked_seconds": times.marked_seconds,
        "workspace_bytes": times.workspace_bytes,
        "peak_bytes": times.peak_bytes,
        "costs": None if costs is None else str(costs),
        "program": None if out is None else str(out),
    }


def _model_blocks(program: Program, times: OpTimes) -> list[str | Table]:
    total = max(1, int(times.picoseconds.sum()))
    by_kind: dict[str, tuple[int, int]] = {}
    for op, took in enumerate(times.picoseconds.tolist()):
        count, sum_ps = by_kind.get(program.op_kind[op], (0, 0))
        by_kind[program.op_kind[op]] = (count + 1, sum_ps + took)
    ranked = sorted(by_kind.items(), key=lambda item: -item[1][1])[:8]
    cells = [(kind, str(count), show_time(took), f"{took / total:.1%}") for kind, (count, took) in ranked]
    graph = "" if times.graph_seconds is None else f", as a CUDA graph {_time(times.graph_seconds)}"
    head = (
        f"{program.name}: a pass takes {_time(times.eager_seconds)}{graph}; with marks {_time(times.marked_seconds)}; "
        f"workspace {show_bytes(times.workspace_bytes)}"
    )
    return [head, Table(("kind of op", "ops", "time", "share"), cells), *times.notes]


def _time(seconds: float) -> str:
    return show_time(round(seconds * 1e12))
