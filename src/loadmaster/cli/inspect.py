"""`loadmaster inspect`: what a model needs before anything is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.model import MachineOption, Model, takes_model
from loadmaster.units import show_bytes, show_count, show_time

if TYPE_CHECKING:
    from loadmaster.machine import Machine
    from loadmaster.program import Program
    from loadmaster.simulate.needs import Needs

Block = tuple[list[dict[str, Any]], str | Table]
"""Rows for programs, and the same for people."""


@takes_model
def command(
    model: Model,
    machine: MachineOption = None,
    top: Annotated[int, typer.Option(min=0, help="How many tensors to name.")] = 10,
) -> Answer:
    """Totals, the peak of live bytes and where it is, the largest tensors, and the least time.

    Without a machine, only what does not depend on one.

    Example: loadmaster inspect resnet50 --machine nnp-i --top 5
    """
    from loadmaster.program.models import is_workload
    from loadmaster.runs.folder import is_run
    from loadmaster.simulate.needs import needs

    program = model.load(None if machine is None else model.machine(machine))
    total = needs(program)
    parts = [_totals(program, total), _peak(program, total, top), _largest(program, top)]
    if machine is not None or is_workload(model.source) or is_run(model.source):
        chosen = model.machine(machine)
        parts += [_balance(program, chosen, total), _bounds(program, chosen)]
    rows = [row for found, _ in parts for row in found]
    return Answer(rows, [block for _, block in parts], program.warnings)


def _totals(program: Program, total: Needs) -> Block:
    row = {
        "what": "totals",
        "name": program.name,
        "hash": program.hash,
        "ops": total.ops,
        "views": total.views,
        "tensors": total.tensors,
        "bytes": total.bytes_of,
        "flops": total.flops_of,
        "traffic_bytes": total.traffic,
        "intensity": total.intensity,
    }
    cells = [("ops", f"{total.ops:,}"), ("tensors", f"{total.tensors:,}")]
    cells += [(kind, show_bytes(size)) for kind, size in total.bytes_of.items() if size]
    cells += [(f"{name} flops", show_count(n)) for name, n in total.flops_of.items() if n]
    cells += [("read and written", show_bytes(total.traffic)), ("flops per byte", f"{total.intensity:.2f}")]
    return [row], Table((program.name, "total"), cells)


def _peak(program: Program, total: Needs, top: int) -> Block:
    peak = total.peak
    name = program.op_name[peak.op] if peak.op >= 0 else None
    row = {
        "what": "peak",
        "bytes": peak.bytes,
        "op": peak.op,
        "op_name": name,
        "with_persistent_bytes": peak.bytes + total.persistent,
        "tensors": [
            {"name": program.tensor_name[t], "bytes": int(program.storage_bytes[t])} for t in peak.tensors
        ],
    }
    where = f" at op {peak.op} '{name}' ({program.op_kind[peak.op]})" if peak.op >= 0 else ""
    title = (
        f"peak of live bytes in program order: {peak.bytes:,}{where}; "
        f"with weights and state {peak.bytes + total.persistent:,}"
    )
    return [row], Table(("alive there", "kind", "bytes"), _tensors(program, peak.tensors[:top]), title)


def _largest(program: Program, top: int) -> Block:
    from loadmaster.program import TensorKind
    from loadmaster.simulate.needs import find_largest

    found = find_largest(program, top)
    rows: list[dict[str, Any]] = [
        {
            "what": "tensor",
            "name": program.tensor_name[t],
            "bytes": int(program.storage_bytes[t]),
            "kind": TensorKind(program.tensor_kind[t]).name.lower(),
            "shape": program.shape(t),
            "dtype": program.tensor_dtype[t],
        }
        for t in found
    ]
    return rows, Table(("largest", "kind", "bytes"), _tensors(program, found))


def _tensors(program: Program, tensors: Any) -> list[tuple[str, ...]]:
    from loadmaster.program import TensorKind

    return [
        (
            program.tensor_name[t],
            TensorKind(program.tensor_kind[t]).name.lower(),
            f"{program.storage_bytes[t]:,}",
        )
        for t in tensors
    ]


def _balance(program: Program, machine: Machine, total: Needs) -> Block:
    from loadmaster.simulate.needs import compute_balance

    rows: list[dict[str, Any]] = [
        {
            "what": "balance",
            "device": device,
            "memory": memory,
            "flops_per_byte": ratio,
            "limited_by": "compute" if total.intensity >= ratio else "bandwidth",
        }
        for device, memory, ratio in compute_balance(program, machine)
    ]
    cells = [
        (row["device"], row["memory"], f"{row['flops_per_byte']:.2f}", row["limited_by"]) for row in rows
    ]
    title = f"on {machine.name}: this model has {total.intensity:.2f} flops per byte"
    return rows, Table(("device", "memory", "balance", "limited by"), cells, title)


def _bounds(program: Program, machine: Machine) -> Block:
    from loadmaster.simulate.bounds import time_bounds

    bounds = time_bounds(program, machine)
    parts = {
        "compute": bounds.compute,
        "traffic": bounds.traffic,
        "launch": bounds.launch,
        "together": bounds.together,
    }
    rows: list[dict[str, Any]] = [
        {"what": "bound", "name": name, "seconds": time / 10**12} for name, time in parts.items()
    ]
    fastest = machine.devices[0].memories[0]
    means = {
        "compute": "all flops",
        "traffic": f"all bytes in the fastest memory ('{fastest}')",
        "launch": "starting every op",
        "together": "op by op the larger of compute and traffic, and its launch",
    }
    cells = [(name, show_time(time), means[name]) for name, time in parts.items()]
    title = "no plan without fusion is faster than"
    return rows, Table(("bound", "time", "what it counts"), cells, title)
