"""A plan's order as an ONNX model: the same nodes, written in the order in which they are to run.

ONNX Runtime runs them in exactly that order with optimisations off and priority-based execution; with
its default settings it finds an order of its own, which is a peer of ours, measured by the runtime's own
count of bytes under the same settings.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, Refused, require
from loadmaster.export.plans import (
    Exported,
    ExportRequest,
    Figure,
    NotExported,
    check_other_file,
    check_sound,
    list_left_out,
)
from loadmaster.files import replacing
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.build import clean_name
from loadmaster.program.importers.onnx.read import read_model
from loadmaster.program.program import Program, TensorKind


@dataclass(frozen=True)
class Ran:
    """One run of a model."""

    nodes: list[str]
    """Names of the nodes, in the order in which they ran."""
    peak_bytes: int
    """Most bytes in use during a node, without the model's inputs and weights."""
    outputs: list[npt.NDArray[Any]]


Shapes = Mapping[str, tuple[int, ...]]
"""Of inputs, by their names."""


def run_model(
    path: str | Path, *, file_order: bool = True, seed: int = 0, shapes: Shapes | None = None
) -> Ran:
    """Run a model once on random inputs, so that every tensor has memory of its own while it is
    needed and the counters see it: no fusion, no planned reuse, one thread. `shapes`: as for `draw_inputs`."""
    ort = require("onnxruntime", "onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    orders = ort.ExecutionOrder
    options.execution_order = orders.PRIORITY_BASED if file_order else orders.DEFAULT
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = options.enable_mem_reuse = False
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised too
    for entry in ("session.disable_prepacking", "session.use_device_allocator_for_initializers"):
        options.add_session_config_entry(entry, "1")
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, draw_inputs(session, seed, shapes))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    ran.sort(key=lambda event: event["ts"])
    used = [int(event["args"].get("mem_bytes_requested_in_use", 0)) for event in ran]
    names = [event["name"].removesuffix("_kernel_time") for event in ran]
    return Ran(names, max(used, default=0), outputs)


def draw_inputs(session: Any, seed: int, shapes: Shapes | None = None) -> dict[str, npt.NDArray[Any]]:
    """Numbers of each input's type, in the shape that is given; else a dimension that is open is 1."""
    rng = np.random.default_rng(seed)
    kinds = {"float": np.float32, "double": np.float64, "float16": np.float16}
    inputs: dict[str, npt.NDArray[Any]] = {}
    for each in session.get_inputs():
        stated = tuple(size if isinstance(size, int) and size > 0 else 1 for size in each.shape)
        shape = (shapes or {}).get(clean_name(each.name), stated)
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        if kind in kinds:
            inputs[each.name] = rng.standard_normal(shape).astype(kinds[kind])
        else:
            inputs[each.name] = rng.integers(0, 2, shape).astype("bool" if kind == "bool" else kind)
    return inputs


SETTINGS = """\
# Runs {name} in the order of its nodes: without these settings the order is lost.
import onnxruntime as ort

options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
session = ort.InferenceSession({name!r}, options, providers=["CPUExecutionProvider"])
"""


def export(request: ExportRequest) -> Exported:
    """The target `ort`."""
    moved = export_onnx_order(request.model, request.program, request.machine, request.plan, request.out)
    settings = request.out.with_suffix(".py")
    figures: dict[str, Figure] = {"moved": moved, "ops": request.program.n_ops}
    done = Exported(
        "unverified",
        (request.out, settings),
        ("order",),
        list_left_out(request.plan, memory=False, offset=False, order=True),
        figures,
        (f"{moved:,} nodes moved; run it with the settings in {settings}",),
    )
    if not request.verify or "random" in request.program.op_kind.values:
        return done
    try:
        before, after = _verified(request)
    except LoadmasterError:
        _remove(done.files)
        raise
    figures |= {"runtime_peak_bytes": before, "measured_peak_bytes": after}
    said = f"peak by the runtime's own count: {before:,} bytes in its default order, {after:,} in the plan's"
    if before == after and not request.force:
        _remove(done.files)
        return replace(done, verdict="already as good", files=(), notes=(said,))
    return replace(done, verdict="verified", notes=(said, *done.notes))


def _remove(files: tuple[Path, ...]) -> None:
    for file in files:
        file.unlink()


def _verified(request: ExportRequest) -> tuple[int, int]:
    """Run the model in the runtime's own order and in the plan's: (peak before, peak after)."""
    require("onnxruntime", "onnx")
    try:
        program = request.program
        inputs = np.flatnonzero(program.tensor_kind == TensorKind.INPUT).tolist()
        shapes = {program.tensor_name[tensor]: program.shape(tensor) for tensor in inputs}
        theirs = run_model(request.model, file_order=False, shapes=shapes)
        ours = run_model(request.out, shapes=shapes)
    except LoadmasterError:
        raise
    except Exception as error:  # the runtime has many kinds of its own
        raise NotExported(
            f"ONNX Runtime can't run '{request.model}': {' '.join(str(error).split())[:160]}",
            object=request.model,
            remedy="give --no-verify if another build of it can",
        ) from None
    pairs = zip(theirs.outputs, ours.outputs, strict=True)
    if any(a.dtype != b.dtype or a.tobytes() != b.tobytes() for a, b in pairs):
        raise Refused(
            "the exported model computes other numbers than the model",
            object=request.model,
            remedy="report this as a bug",
        )
    if ours.peak_bytes > theirs.peak_bytes and not request.force:
        raise Refused(
            f"the runtime's own order has a peak of {theirs.peak_bytes:,} bytes and the plan's "
            f"{ours.peak_bytes:,}",
            object=request.model,
            number=ours.peak_bytes,
            remedy="keep the model as it is, or give --force",
        )
    return theirs.peak_bytes, ours.peak_bytes


def export_onnx_order(
    model: str | Path, program: Program, machine: Machine, plan: Plan, out: str | Path
) -> int:
    """Write the model's nodes in the plan's order to another file, and beside it the settings that
    keep the order (`.py`). Returns how many nodes have another place than before."""
    model, out = Path(model), Path(out)
    check_other_file(model, out)
    check_sound(program, machine, plan)
    proto, _ = read_model(model)
    if out.resolve().parent != model.resolve().parent and any(
        tensor.external_data for tensor in proto.graph.initializer
    ):
        raise NotExported(
            f"'{model}' keeps weights in other files, which are looked for beside it",
            object=str(model),
            remedy=f"write into the folder '{model.parent}'",
        )
    nodes = list(proto.graph.node)
    order = order_nodes(nodes, program, plan)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[number] for number in order)
    with replacing(out) as temporary:
        temporary.write_bytes(proto.SerializeToString())
    with replacing(out.with_suffix(".py")) as temporary:
        temporary.write_text(SETTINGS.format(name=out.name), encoding="utf-8")
    return sum(number != place for place, number in enumerate(order))


def order_nodes(nodes: list[Any], program: Program, plan: Plan) -> list[int]:
    """The nodes in the plan's order. Nodes that are no ops of the program (constants, arithmetic on
    shapes) come directly before the first that needs them, and those that nobody needs at the end."""
    maker = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    ops = range(program.n_ops) if plan.order is None else plan.order.tolist()
    sources = [int(program.op_source[op]) for op in ops]
    if any(source >= len(nodes) for source in sources):
        raise NotExported(
            f"program '{program.name}' has ops that the model has not",
            object=program.name,
            number=max(sources),
            remedy="give the model that was planned",
        )
    order: list[int] = []
    placed = [False] * len(nodes)
    for first in [*(source for source in sources if source >= 0), *range(len(nodes))]:
        stack = [first]
        while stack:
            number = stack[-1]
            needs = (
                []
                if placed[number]
                else [
                    maker[name]
                    for name in _names_read(nodes[number])
                    if name in maker and not placed[maker[name]]
                ]
            )
            needs = [need for need in needs if need != number]
            if needs:
                stack += reversed(needs)
                continue
            stack.pop()
            if not placed[number]:
                placed[number] = True
                order.append(number)
    return order


def _names_read(node: Any) -> Iterator[str]:
    """What a node reads, in the graphs inside it too (names of their own do no harm)."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _names_read(inner)
            yield from (output.name for output in graph.output)
