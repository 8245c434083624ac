"""Graphs in the JSON format of msr-fiddle/dnn-partitioning, with measured times per node.

A node becomes an op with its own row in the cost table: the accelerators' columns first, then the
processors'. Its `size` is a weight, its colour class a hard group. What goes out of it is one
tensor per different edge cost, as large as a link of `NOMINAL` bytes per second moves in that time.
`loadmaster.machine.dnn_partitioning` makes the machine that belongs to a file, and
`benchmarks.suites.dnn_partitioning_splits` reads a split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from loadmaster import json_text
from loadmaster.errors import BadProgram
from loadmaster.files import read_regular
from loadmaster.program.build import Builder
from loadmaster.program.program import Program, TensorKind
from loadmaster.units import UNLIMITED

MOST_DEVICES = 256
_MOST_BYTES = 2**28


@dataclass(frozen=True)
class Node:
    """A layer or an operator. Times are in the file's unit; infinity: it can't run there."""

    id: int
    name: str
    on_accelerator: float
    on_processor: float
    backward: bool
    color: int | None
    size: int


@dataclass(frozen=True)
class Graph:
    """A file's content, in its own units."""

    name: str
    nodes: tuple[Node, ...]
    edges: Mapping[tuple[int, int], float]
    """(source id, destination id) -> cost"""
    accelerators: int
    processors: int
    capacity: int
    """Bytes of an accelerator."""


def read_graph(path: str | Path) -> Graph:
    """Raises `BadProgram` that names the object, the number and the remedy."""
    content = read_json(path)
    top = _Fields(content, f"'{path}'")
    accelerators, processors = top.count("maxFPGAs"), top.count("maxCPUs")
    if not 1 <= accelerators + processors <= MOST_DEVICES:
        raise BadProgram(
            f"'{path}' has {accelerators + processors} devices",
            object=str(path),
            number=accelerators + processors,
            remedy=f"give 1 to {MOST_DEVICES} as maxFPGAs + maxCPUs",
        )
    nodes: dict[int, Node] = {}
    for place, entry in enumerate(top.entries("nodes")):
        node = _node(entry, place)
        if node.id in nodes:
            raise BadProgram(
                f"two nodes have the id {node.id}",
                object=node.name,
                number=node.id,
                remedy="number them anew",
            )
        nodes[node.id] = node
    if not nodes:
        top.refuse("nodes", [], "give at least one node")
    edges: dict[tuple[int, int], float] = {}
    for place, entry in enumerate(top.entries("edges")):
        source, target, cost = _edge(entry, place, nodes)
        # The same edge twice is one tensor that is read once: the longer time counts.
        edges[source, target] = max(cost, edges.get((source, target), 0.0))
    return Graph(
        Path(path).stem, tuple(nodes.values()), edges, accelerators, processors, top.size("maxSizePerFPGA")
    )


def read_json(path: str | Path) -> dict[str, Any]:
    """The object in a JSON file; NaN and infinities are refused."""
    remedy = "give a whole JSON file in the format of dnn-partitioning"
    try:
        content = json_text.read_json(read_regular(path, _MOST_BYTES))
    except OSError as error:
        raise BadProgram(
            f"'{path}' can't be read: {error.strerror}", object=str(path), remedy="check the path"
        ) from None
    except ValueError as error:
        raise BadProgram(f"'{path}' is no JSON: {error}", object=str(path), remedy=remedy) from None
    if not isinstance(content, dict):
        raise BadProgram(f"'{path}' holds no JSON object", object=str(path), remedy=remedy)
    return content


def _node(entry: object, place: int) -> Node:
    fields = _Fields(entry, f"node number {place}")
    number = fields.count("id")
    fields.who = f"node {number}"
    name = fields.of.get("name")
    time = fields.amount("fpgaLatency")
    supported = fields.flag("supportedOnFpga")
    return Node(
        id=number,
        name=name if isinstance(name, str) and name else f"node{number}",
        on_accelerator=time if supported else math.inf,
        on_processor=fields.amount("cpuLatency"),
        backward=fields.flag("isBackwardNode"),
        color=fields.whole("colorClass") if fields.of.get("colorClass") is not None else None,
        size=fields.size("size"),
    )


def _edge(entry: object, place: int, nodes: Mapping[int, Node]) -> tuple[int, int, float]:
    fields = _Fields(entry, f"edge number {place}")
    source, target = fields.count("sourceId"), fields.count("destId")
    fields.who = f"the edge from {source} to {target}"
    for end in (source, target):
        if end not in nodes:
            raise BadProgram(
                f"{fields.who} names node {end}, which is not there",
                object=fields.who,
                number=end,
                remedy="add the node or remove the edge",
            )
    if source == target:
        raise BadProgram(
            f"node {source} reads its own result: a cycle of 1",
            object=f"node {source}",
            number=1,
            remedy="remove the edge",
        )
    return source, target, fields.amount("cost")


class _Fields:
    """The fields of one JSON object, and how it is called in messages."""

    def __init__(self, of: object, who: str) -> None:
        self.who = who
        if not isinstance(of, dict):
            raise BadProgram(f"{who} is no JSON object", object=who, remedy="give its fields")
        self.of: dict[str, Any] = of

    def refuse(self, name: str, value: object, remedy: str) -> NoReturn:
        text = repr(value)[:60]
        raise BadProgram(f"{self.who} has {name} = {text}", object=self.who, number=text, remedy=remedy)

    def value(self, name: str) -> object:
        if name not in self.of:
            raise BadProgram(
                f"{self.who} has no field '{name}'", object=self.who, number=name, remedy="add it"
            )
        return self.of[name]

    def amount(self, name: str) -> float:
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, value, "give a number")
        if not 0 <= value <= UNLIMITED:  # NaN is refused when the file is read
            self.refuse(name, value, "give a number from 0 to 2^62")
        return float(value)

    def size(self, name: str) -> int:
        return math.ceil(self.amount(name))

    def whole(self, name: str) -> int:
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, value, "give a whole number")
        if abs(value) > UNLIMITED or value != int(value):
            self.refuse(name, value, "give a whole number from -2^62 to 2^62")
        return int(value)

    def count(self, name: str) -> int:
        value = self.whole(name)
        if value < 0:
            self.refuse(name, value, "give a whole number from 0 up")
        return value

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if value not in (0, 1):
            self.refuse(name, value, "give true or false")
        return bool(value)

    def entries(self, name: str) -> list[object]:
        value = self.value(name)
        if not isinstance(value, list):
            self.refuse(name, value, "give a list")
        return value


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
