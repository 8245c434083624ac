"""`loadmaster models`: the workloads that come with Loadmaster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table
from loadmaster.units import show_bytes, show_count


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A workload, such as resnet50 or gnmt-8:steps=5.")
    ] = None,
) -> Answer:
    """List the workloads; with a name, make it and tell its size.

    Some are traced with JAX the first time, which takes up to half a minute.

    Example: loadmaster models resnet50
    """
    return _list() if name is None else _details(name)


def _list() -> Answer:
    from loadmaster.program.zoo import MODELS

    rows: list[dict[str, Any]] = [
        {"name": m.name, "task": m.task, "machine": m.machine, "summary": m.summary} for m in MODELS.values()
    ]
    cells = [(m.name, m.task, m.machine, m.summary) for m in MODELS.values()]
    return Answer(rows, [Table(("model", "task", "machine", "what it is"), cells)])


def _details(name: str) -> Answer:
    from loadmaster.cli.model import Model
    from loadmaster.program.zoo import MODELS, load_workload
    from loadmaster.simulate.needs import needs

    if name.partition(":")[0] not in MODELS:
        load_workload(name)  # raises with the nearest name
    program = Model(name).load()
    model, total = MODELS[name.partition(":")[0]], needs(program)
    row: dict[str, Any] = {
        "name": name,
        "task": model.task,
        "machine": model.machine,
        "summary": model.summary,
        "source": model.source,
        "ops": total.ops,
        "tensors": total.tensors,
        "weights_bytes": total.bytes_of["weight"],
        "state_bytes": total.bytes_of["state"],
        "flops": total.flops,
        "hash": program.hash,
    }
    cells = [
        ("what it is", model.summary),
        ("task", model.task),
        ("machine", model.machine),
        ("source", model.source),
        ("ops", f"{total.ops:,}"),
        ("tensors", f"{total.tensors:,}"),
        ("weights", show_bytes(total.bytes_of["weight"])),
        ("state", show_bytes(total.bytes_of["state"])),
        ("flops", show_count(total.flops)),
        ("hash", program.hash),
    ]
    return Answer([row], [Table(("model", name), cells)], program.warnings)
