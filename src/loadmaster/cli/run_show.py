"""What `run` tells: rows, the table, whether results agree, and the results as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.cli.answer import Table
from loadmaster.cli.files import writing
from loadmaster.errors import Refused, require
from loadmaster.files import replacing
from loadmaster.units import PICOSECONDS, show_bytes, show_time

if TYPE_CHECKING:
    from loadmaster.execute.ready import Agreement
    from loadmaster.execute.results import Measured
    from loadmaster.machine import Machine
    from loadmaster.plan import Plan

HELD = {"planned": "the arena and what libraries keep"}
"""What the reserved bytes are, by placement; else PyTorch's allocator has them."""

LATE = 0.1
SLOW_HOST = "slower than predicted: if the host can't keep up with so many short ops, --cuda-graph helps"


def rows_of(
    model: str,
    machine: Machine,
    plan: Plan,
    device: str,
    measured: Measured,
    predicted: int,
    agreed: Agreement | None,
) -> list[dict[str, Any]]:
    foreseen = predicted / PICOSECONDS
    return [
        {
            "what": "total",
            "model": model,
            "machine": machine.name,
            "device": device,
            "plan": plan.hash,
            "seconds": measured.seconds,
            "runs": list(measured.runs),
            "predicted_seconds": foreseen,
            "difference": foreseen / measured.seconds - 1 if measured.seconds else 0.0,
            "compared": 0 if agreed is None else agreed.compared,
            "identical": None if agreed is None else agreed.identical,
            "largest_difference": None if agreed is None else agreed.largest,
        }
    ]


def blocks_of(
    rows: list[dict[str, Any]], agreed: Agreement | None, *, asked_one_by_one: bool = False
) -> list[str | Table]:
    """`asked_one_by_one`: the host asked a device for each op, and could be what took so long."""
    total, memory = rows[0], rows[1]
    text = {True: "the same, bit for bit", False: "close", None: "not compared"}[total["identical"]]
    if agreed is not None and not agreed.identical:
        text = f"largest difference {agreed.largest:.2g} of the largest value, in {agreed.where}"
    cells = [
        ("measured", show_time(round(total["seconds"] * PICOSECONDS))),
        (
            "predicted",
            f"{show_time(round(total['predicted_seconds'] * PICOSECONDS))} ({total['difference']:+.1%})",
        ),
        (
            f"peak of {memory['name']}",
            f"{show_bytes(memory['peak_bytes'])} of {show_bytes(memory['capacity_bytes'])}",
        ),
        (HELD.get(memory["placement"], "held by the allocator"), show_bytes(memory["reserved_bytes"])),
        ("results", text),
    ]
    table = Table(("what", "value"), cells, f"{total['model']} on {total['device']}")
    late = asked_one_by_one and total["difference"] < -LATE
    return [table, SLOW_HOST] if late else [table]


def failure_of(agreed: Agreement | None) -> Refused | None:
    if agreed is None or agreed.close:
        return None
    return Refused(
        f"{agreed.where} differs from the ordinary run by {agreed.largest:.3g} of its largest value",
        object=agreed.where,
        number=agreed.largest,
        remedy="check the plan and the inputs",
    )


def write_results(path: Path, measured: Measured) -> None:
    import numpy as np

    results = measured.last
    named = {f"output_{i}": value for i, value in enumerate(results.outputs) if value is not None}
    named |= {f"gradient_{name}": value for name, value in results.gradients.items()}
    named |= {f"update_{name}": value for name, value in results.updates.items()}
    torch = require("torch", "torch")
    arrays = {
        name: (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
        for name, value in named.items()
    }
    with writing(path), replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
