"""What ONNX Runtime does with a model: the order in which it runs the nodes, and its own count of
bytes. Its default order is a peer of ours, measured under the same settings."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, require
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.onnx.read import read_model
from loadmaster.program.program import Program


class OtherNodes(LoadmasterError):
    """The runtime ran other nodes than the model's file has."""


@dataclass(frozen=True)
class Ran:
    """One run of a model."""

    nodes: list[str]
    """Names of the nodes, in the order in which they ran."""
    peak_bytes: int
    """Most bytes in use during a node, without the model's inputs and weights."""
    outputs: list[npt.NDArray[Any]]


def run_model(path: str | Path, *, file_order: bool = True, seed: int = 0) -> Ran:
    """Run a model once on random inputs, so that every tensor has memory of its own while it is
    needed and the counters see it: no fusion, no planned reuse, one thread."""
    ort = require("onnxruntime", "onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    orders = ort.ExecutionOrder
    options.execution_order = orders.PRIORITY_BASED if file_order else orders.DEFAULT
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = options.enable_mem_reuse = False
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for entry in ("session.disable_prepacking", "session.use_device_allocator_for_initializers"):
        options.add_session_config_entry(entry, "1")
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, random_inputs(session, seed))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    ran.sort(key=lambda event: event["ts"])
    used = [int(event["args"].get("mem_bytes_requested_in_use", 0)) for event in ran]
    names = [event["name"].removesuffix("_kernel_time") for event in ran]
    return Ran(names, max(used, default=0), outputs)


def runtime_plan(path: str | Path, program: Program, ran: Ran) -> Plan:
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


def random_inputs(session: Any, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Numbers of each input's type; a dimension that is open is 1."""
    rng = np.random.default_rng(seed)
    kinds = {"float": np.float32, "double": np.float64, "float16": np.float16}
    inputs: dict[str, npt.NDArray[Any]] = {}
    for each in session.get_inputs():
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in each.shape]
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        if kind in kinds:
            inputs[each.name] = rng.standard_normal(shape).astype(kinds[kind])
        else:
            inputs[each.name] = rng.integers(0, 2, shape).astype("bool" if kind == "bool" else kind)
    return inputs
