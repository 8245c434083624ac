"""Graphs in the JSON format of msr-fiddle/dnn-partitioning, with measured times per node.

A node becomes an op with its own row in the cost table: the accelerators' columns first, then the
processors'. Its `size` is a weight, its colour class a hard group. What goes out of it is one
tensor per different edge cost, as large as a link of `NOMINAL` bytes per second moves in that time.
`loadmaster.machine.dnn_partitioning` makes the machine that belongs to a file, and
`loadmaster.plan.dnn_partitioning` reads a split.
"""

from __future__ import annotations

import math
from pathlib import Path

from loadmaster.errors import BadProgram
from loadmaster.program.build import Builder
from loadmaster.program.importers.dnn_partitioning_file import Graph, read_graph
from loadmaster.program.program import Program, TensorKind
from loadmaster.units import UNLIMITED

NOMINAL = 2**26
"""Bytes per second between an accelerator and host memory. Only its products with costs matter. The
format counts a node's results in its `size`, so they must weigh little beside it; the published
files were made with 2 GiB per second, 32 times as much. A byte is 15 ns."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def import_dnn_partitioning(path: str | Path, *, edge_unit: str | None, node_unit: str = "ms") -> Program:
    """The Program of a file, with its cost table. Units are 's', 'ms', 'us' or 'ns'; that of the
    edges must be given: the published files of one model differ by 1,000 between folders."""
    edge_seconds = _seconds(edge_unit, "edges", str(path))
    node_seconds = _seconds(node_unit, "nodes", str(path))
    graph = read_graph(path)
    build = Builder(graph.name)
    results = _add_tensors(build, graph, edge_seconds)
    reads: dict[int, list[int]] = {node.id: [] for node in graph.nodes}
    for (source, target), cost in graph.edges.items():
        reads[target].append(results[source][cost])
    classes = sorted({node.color for node in graph.nodes if node.color is not None})
    group_of = {color: group for group, color in enumerate(classes)}
    for node in graph.nodes:
        group = -1 if node.color is None else group_of[node.color]
        weights = []
        if node.size:
            weights = [build.tensor(f"{node.id}.size", bytes=node.size, kind="weight", group=group)]
        build.op(
            build.free_name("op", node.name),
            "node",
            reads=[*reads[node.id], *weights],
            writes=results[node.id].values(),
            backward=node.backward,
            group=group,
            source=node.id,
        )
    rows = [
        [node.on_accelerator * node_seconds] * graph.accelerators
        + [node.on_processor * node_seconds] * graph.processors
        for node in graph.nodes
    ]
    return build.build(sort=True, costs=rows)


def _add_tensors(build: Builder, graph: Graph, seconds: float) -> dict[int, dict[float, int]]:
    """Node -> cost -> tensor. A node that nobody reads has an empty program output."""
    results: dict[int, dict[float, int]] = {node.id: {} for node in graph.nodes}
    for (source, _), cost in graph.edges.items():
        if cost not in results[source]:
            size = cost * seconds * NOMINAL
            if size >= UNLIMITED:
                raise BadProgram(
                    f"node {source} sends for {cost:g} units, which makes {size:.4g} bytes",
                    object=str(source),
                    number=cost,
                    remedy="check the unit of the edges",
                )
            name = build.free_name("tensor", f"{source}.out")
            results[source][cost] = build.tensor(name, bytes=math.ceil(size))
    for node, tensors in results.items():
        if not tensors:
            tensors[0.0] = build.tensor(f"{node}.out", bytes=0, kind=TensorKind.OUTPUT)
    return results


def _seconds(unit: str | None, what: str, source: str) -> float:
    if unit is None:
        raise BadProgram(
            f"the times of the {what} of '{source}' have no unit",
            object=source,
            remedy="give --edge-unit s, ms, us or ns; of the published files, "
            "those for latency are in ms and those for throughput in s",
        )
    if unit not in UNITS:
        raise BadProgram(
            f"the times of the {what} of '{source}' can't be in '{unit}'",
            object=source,
            number=unit,
            remedy=f"use {', '.join(UNITS)}",
        )
    return UNITS[unit]
