"""ONNX Runtime as a peer: the order in which it runs a model by default, by our count and by its own."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.suites import Row
from benchmarks.suites.mapping_cells import onnx_file
from benchmarks.suites.problems import make_as
from loadmaster.errors import LoadmasterError, MissingPackage, require
from loadmaster.export.onnx_order import Ran, export_onnx_order, run_model
from loadmaster.order.problem import PeakOrder
from loadmaster.plan import Plan
from loadmaster.planner import solve_checked
from loadmaster.program import Program
from loadmaster.program.importers.onnx import import_onnx
from loadmaster.program.importers.onnx.read import read_model
from loadmaster.search.solver import Budget

RUNTIME = "onnxruntime"


class OtherNodes(LoadmasterError):
    """The runtime ran other nodes than the model's file has."""


def run_runtime(case: str, model: str, problem: PeakOrder, seconds: float) -> Row:
    """A row of the default order's peak. `extra.counted`: the most bytes that the runtime itself had
    in use in its order, in the file's and in ours, weights left out."""
    started = time.perf_counter()
    path = onnx_file(model)
    try:
        default = run_model(path, file_order=False)
    except MissingPackage as error:
        return Row(case, 0.0, "bytes", "skipped", solver=RUNTIME, extra={"reason": error.message})
    plan = make_runtime_plan(path, problem.program, default)
    took = time.perf_counter() - started
    decision = problem.decision(plan)
    value = None if problem.violations(problem.plan(decision)) else problem.evaluate(decision)
    with tempfile.TemporaryDirectory() as folder:
        stored = store_weights(path, Path(folder) / "stored.onnx")
        counted, peak = _counted(stored, seconds)
    return Row(
        case,
        float(-1 if value is None else value),
        "bytes",
        "feasible" if value is not None else "refused by the checker",
        solver=RUNTIME,
        evaluations=1,
        seconds=took,
        baseline=float(problem.reference),
        bound=float(problem.bound().value),
        gap=None if value is None else value / problem.bound().value - 1,
        extra={
            "model": model,
            "ops": problem.nodes,
            "resident": problem.resident,
            "bound_by": problem.bound().method,
            "counted": counted,
            "modelled": peak,
        },
    )


def make_runtime_plan(path: str | Path, program: Program, ran: Ran) -> Plan:
    """The order of a run as a plan of the program that was imported from the same file."""
    nodes = read_model(Path(path))[0].graph.node
    # The runtime names what has no name after its type and its place in the file.
    named = {node.name or f"{node.op_type}_{place}": place for place, node in enumerate(nodes)}
    turn = {named[name]: turn for turn, name in enumerate(ran.nodes) if name in named}
    if len(named) < len(nodes) or any(int(node) not in turn for node in program.op_source):
        raise OtherNodes(
            f"'{path}' did not run node by node: {len(turn)} of its {len(nodes)} nodes were seen",
            object=str(path),
            number=len(turn),
            remedy="give every node a name of its own",
        )
    turns = np.array([turn[int(node)] for node in program.op_source], dtype=np.int64)
    return Plan(order=np.argsort(turns, kind="stable").astype(np.int32))


def store_weights(path: Path, out: Path) -> Path:
    """A copy in which weights lie in the file. The models of the onnx package fill them in while they
    run, to be small, and the runtime would count each as a result."""
    onnx = require("onnx", "onnx")
    model = onnx.load(path)
    known = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    others = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in known:
            others.append(node)
            continue
        fill = onnx.numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, np.float32)
        filled = np.full(known[node.input[0]].tolist(), fill[0], fill.dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(filled, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(others)
    model.ir_version = max(model.ir_version, 4)  # before, every weight had to be an input too
    onnx.save(model, out)
    return out


def _counted(path: Path, seconds: float) -> tuple[dict[str, int], int]:
    """The runtime's peak in its order, in that of the file and in the best that we find, and what we say
    that this one has: relu in place, as the runtime does it."""
    problem = make_as(PeakOrder, import_onnx(path, inplace=("relu",)))
    found = solve_checked(problem, "auto", Budget(seconds=seconds))
    assert found.plan is not None and found.solution.value is not None
    out = path.with_name("ordered.onnx")
    export_onnx_order(path, problem.program, problem.machine, found.plan, out)
    runs = {"default": run_model(path, file_order=False), "file": run_model(path), "ours": run_model(out)}
    return {name: ran.peak_bytes for name, ran in runs.items()}, int(found.solution.value)
