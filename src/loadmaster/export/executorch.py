"""A plan as an ExecuTorch program: the memory and the offset of every tensor, and the order.

    loadmaster plan net:build --format executorch --machine imxrt1170 --out plan.json
    loadmaster export executorch net:build plan.json --machine imxrt1170 --out net.pte

ExecuTorch checks nothing of a memory plan, so the plan is checked before, read back from what was
written and checked again, and the program is run against the module and against ExecuTorch's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.errors import Refused
from loadmaster.export.executorch_plans import (
    EAGER_TOLERANCE,
    Placed,
    arena_bytes,
    measure_difference,
    number_arenas,
    order_of,
    place_banked,
    place_greedy,
    read_back,
    reduce_plan,
    run,
    run_eager,
    sample_inputs,
)
from loadmaster.export.plans import Exported, ExportRequest, Figure, NotExported, check_sound
from loadmaster.files import replacing
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.executorch.importer import (
    NO_TENSOR,
    Lowered,
    Recorded,
    lower,
    planned,
    recorded,
    result_of,
)
from loadmaster.program.importers.torch.graph import is_getitem
from loadmaster.simulate.simulator import simulate


@dataclass(frozen=True)
class Written:
    """An ExecuTorch program that follows a plan."""

    own: Any
    """ExecuTorch's object; `bytes(own.buffer)` is the file."""
    recorded: Recorded
    plan: Plan
    """What it expresses of the plan that was given, in program order."""
    order: list[int]
    arenas: list[int]
    """Bytes of every arena."""


def write_plan(lowered: Lowered, machine: Machine, plan: Plan, arenas: Mapping[int, int]) -> Written:
    """Lower again with the plan's placement and order. Raises `Refused` for a plan with violations."""
    found: list[Recorded] = []
    places: dict[int, tuple[int, int]] = {}
    expressed: list[Plan] = []

    def reader(graph_module: Any, signature: Any) -> None:
        seen = recorded(graph_module, signature, lowered.name)
        check_sound(seen.program, machine, plan)
        kept = reduce_plan(seen.program, machine, plan)
        check_sound(seen.program, machine, kept)
        places.update({row.tensor: (arenas[row.memory], row.offset) for row in kept.residency_rows})
        move_nodes(graph_module, seen, order_of(seen.program, plan))
        found.append(seen)
        expressed.append(kept)

    def algorithm(alignment: int, specs: Any, graph_module: Any, signature: Any, padding: int) -> Any:
        (seen,), (kept,) = found, expressed
        empty = (arenas[machine.home[0]], 0)  # what has no bytes overlaps nothing
        where = {spec: seen.tensor_of[spec] for spec in specs}
        chosen = {s: empty if tensor == NO_TENSOR else places[tensor] for s, tensor in where.items()}
        for spec in chosen:
            spec.realign(alignment)
        return result_of(chosen, arena_bytes(seen.program, kept, arenas))

    own = planned(lowered, algorithm, reader)
    (seen,), (kept,) = found, expressed
    order = order_of(seen.program, plan)
    sizes = arena_bytes(seen.program, kept, arenas)
    back = read_back(own, seen, order, arenas)
    if back.hash != kept.hash:
        raise NotExported(
            f"'{lowered.name}' was written with another placement than asked for",
            object=lowered.name,
            remedy="report the model: nothing was kept",
        )
    check_sound(seen.program, machine, back)
    return Written(own, seen, kept, order, sizes)


def move_nodes(graph_module: Any, seen: Recorded, order: list[int]) -> None:
    """Put the nodes into the plan's order, each with the memory nodes that belong to it."""
    source = seen.program.op_source
    if order == sorted(order):
        return
    graph = graph_module.graph
    last = next(node for node in reversed(seen.nodes) if node.op == "placeholder")
    at: dict[Any, list[Any]] = {}
    for node in seen.nodes:  # results are taken apart right behind the op that makes them
        if is_getitem(node):
            at.setdefault(node.args[0], []).append(node)
    for op in order:
        if source[op] < 0:
            continue
        node = seen.nodes[int(source[op])]
        memory = [part for part in node.kwargs.values() if hasattr(part, "op")]
        parts = [part for each in (*memory, node) for part in at.get(each, [])]
        for each in (*memory, node, *parts):
            last.append(each)
            last = each
    graph.lint()
    graph_module.recompile()


def export(request: ExportRequest) -> Exported:
    """The target of `loadmaster export executorch`."""
    if Path(request.out).suffix != ".pte":
        raise NotExported(
            f"'{request.out}' is no name for an ExecuTorch program",
            object=str(request.out),
            remedy="let it end in .pte",
        )
    machine = request.machine
    check_sound(request.program, machine, request.plan)
    arenas = number_arenas(machine, request.mem_id)
    lowered = lower(request.model)
    own = {"greedy": place_greedy(lowered, machine)}
    found = own["greedy"].recorded.program
    if found.hash != request.program.hash:
        raise NotExported(
            f"'{request.model}' was lowered to another program than the plan is for",
            object=request.model,
            number=found.hash[:12],
            remedy="plan it again with --format executorch",
        )
    written = write_plan(lowered, machine, request.plan, arenas)
    if len(arenas) > 1:
        own["banked"] = place_banked(lowered, machine, arenas)
    figures = _figures(written, machine, own)
    verdict = "" if request.force else _verdict(figures, own)
    if verdict:
        return Exported(verdict, figures=figures, notes=(_note(figures),))
    differs = verify(lowered, written, own["greedy"]) if request.verify else {}
    with replacing(request.out) as temporary:
        temporary.write_bytes(bytes(written.own.buffer))
    lost = list_lost_parts(written.recorded.program, request.plan, written.plan)
    return Exported(
        "verified" if request.verify else "unverified",
        (request.out,),
        ("memories", "offsets", "order"),
        lost,
        {**figures, **differs},
        (_note(figures),),
    )


def verify(lowered: Lowered, written: Written, own: Placed) -> dict[str, Figure]:
    """Run the module, ExecuTorch's own program and ours on the same new inputs and compare."""
    inputs = sample_inputs(lowered)
    ours = run(written.own, inputs)
    to_greedy = measure_difference(ours, run(own.recorded.own, inputs))
    to_eager = measure_difference(ours, run_eager(lowered, inputs))
    if to_greedy > 0 or to_eager > EAGER_TOLERANCE:
        raise NotExported(
            f"'{lowered.name}' gives other numbers with this plan",
            object=lowered.name,
            number=max(to_greedy, to_eager),
            remedy="report the model: nothing was written",
        )
    return {"differs_from_greedy": to_greedy, "differs_from_eager": to_eager}


def list_lost_parts(program: Any, plan: Plan, kept: Plan) -> tuple[str, ...]:
    """What of a plan an ExecuTorch program can't say."""
    from loadmaster.export.plans import list_left_out

    parts = list(list_left_out(plan, memory=True, offset=True, order=True))
    rows = {row.tensor: row.memory for row in kept.residency_rows}
    moved = {r.tensor for r in plan.residency_rows if rows.get(r.tensor, r.memory) != r.memory}
    if moved:
        parts.append(f"{len(moved):,} tensors that change their memory: they stay in the slowest")
    return tuple(parts)


def _figures(written: Written, machine: Machine, own: Mapping[str, Placed]) -> dict[str, Figure]:
    program = written.recorded.program
    figures: dict[str, Figure] = {
        "seconds": simulate(program, machine, written.plan).total_ps / 1e12,
        "bytes": sum(written.arenas),
        **{f"bytes_arena_{i}": size for i, size in enumerate(written.arenas) if i and size},
    }
    for name, placed in own.items():
        figures[f"{name}_seconds"] = simulate(program, machine, placed.plan).total_ps / 1e12
        figures[f"{name}_bytes"] = placed.bytes
    return figures


def _verdict(figures: Mapping[str, Figure], own: Mapping[str, Placed]) -> str:
    """Why there is nothing to write: ExecuTorch's own placement is as good. Raises if it is better."""

    def value(prefix: str) -> tuple[float, float]:
        return float(figures[f"{prefix}seconds"] or 0), float(figures[f"{prefix}bytes"] or 0)

    name, best = min(((name, value(f"{name}_")) for name in own), key=lambda item: item[1])
    if best < value(""):
        raise Refused(
            f"ExecuTorch's own placement ('{name}') is better: {best[0]:.6g} s and {best[1]:,.0f} bytes",
            object=name,
            number=best[0],
            remedy="search on from it as docs/executorch.md shows, or give --force",
        )
    return "already as good" if best == value("") else ""


def _note(figures: Mapping[str, Figure]) -> str:
    names = [key.removesuffix("_seconds") for key in figures if key.endswith("_seconds")]
    parts = [f"ours {float(figures['seconds'] or 0) * 1e3:.4g} ms, {figures['bytes']:,} bytes"]
    parts += [
        f"{name} {float(figures[f'{name}_seconds'] or 0) * 1e3:.4g} ms, {figures[f'{name}_bytes']:,} bytes"
        for name in names
    ]
    return "simulated: " + "; ".join(parts)
