"""From an ONNX graph to steps: sizes, constants, views and costs, node by node.

Nothing is added to a program here, so that both branches of an If can be weighed and
what nobody needs can be dropped first.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadmaster.errors import BadProgram, nearest, require
from loadmaster.program.build import clean_name
from loadmaster.program.importers.onnx import control
from loadmaster.program.importers.onnx.costs import NOT_TENSORS, RANDOM, Site, cost, unknown_cost
from loadmaster.program.importers.onnx.read import STANDARD, node_name, sorted_nodes, uses
from loadmaster.program.importers.onnx.sizes import Sizes
from loadmaster.program.importers.onnx.steps import Frame, Items, Notes, Step
from loadmaster.program.importers.onnx.values import Value, sparse_weight, weight

_MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a cost rule raises where operands or attributes are not what the op takes."""
MOST_VISITS = 400_000
"""Nodes of bodies and branches planned in all: each is planned more than once, nested ones that often again."""


class Planner:
    """Plans the graphs of one model."""

    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int]], trips: Mapping[str, int]) -> None:
        self.onnx = require("onnx", "onnx")
        self.sizes = Sizes(model, shapes)
        self.trips = dict(trips)
        self.loops_seen: set[str] = set()
        self.in_file_order = True
        self.notes = Notes()
        self._visits = 0

    def program(self, graph: Any) -> tuple[list[Value], list[Value], Items]:
        """Inputs, outputs and steps of the model's own graph."""
        inputs = self.sizes.inputs(graph)
        outputs, items = self.graph(graph, ChainMap({}), inputs)
        self.sizes.check_all_met(inputs)
        for name in self.trips:
            if name not in self.loops_seen:
                options = sorted(self.loops_seen)
                raise BadProgram(
                    f"the model has no loop '{clean_name(name)}'{nearest(name, options)}",
                    object=name,
                    remedy=f"name one of {', '.join(options[:8]) or 'none'}",
                )
        return list(inputs.values()), outputs, items

    def graph(
        self,
        graph: Any,
        outer: ChainMap[str, Value],
        bound: Mapping[str, Value],
        *,
        prefix: str = "",
        source: int = -1,
    ) -> tuple[list[Value], Items]:
        """Values of the graph's outputs, and the steps that make them."""
        nodes, in_order = sorted_nodes(graph)
        self.in_file_order &= in_order
        wanted = Counter(name for node in graph.node for name in uses(node))
        wanted.update(output.name for output in graph.output)
        declared = {info.name: info.type for info in (*graph.value_info, *graph.output)}
        frame = Frame(outer.new_child(), declared, wanted, prefix, source)
        frame.values.update((tensor.name, weight(tensor)) for tensor in graph.initializer)
        frame.values.update((s.values.name, sparse_weight(s)) for s in graph.sparse_initializer)
        frame.values.update(bound)
        items: Items = []
        for position, node in nodes:
            if any(wanted[name] for name in node.output):
                items += self._node(node, position, frame)
        return [self.value(output.name, frame, "the graph") for output in graph.output], items

    def value(self, name: str, frame: Frame, who: str) -> Value:
        """The value of that name, or an error that says who wants it."""
        if name not in frame.values:
            raise BadProgram(
                f"{who} reads '{clean_name(name)}', which nothing makes",
                object=clean_name(name),
                remedy="export the model again",
            )
        return frame.values[name]

    def _node(self, node: Any, position: int, frame: Frame) -> Items:
        label = node_name(node, position)
        self._visits += frame.source >= 0
        if self._visits > MOST_VISITS:
            raise BadProgram(
                f"the loops and branches around node '{label}' stand for more than {MOST_VISITS} nodes",
                object=label,
                number=MOST_VISITS,
                remedy="give fewer trips",
            )
        who = f"node '{label}' ({clean_name(node.op_type)})"
        inputs = [self.value(name, frame, who) if name else None for name in node.input]
        standard = node.domain in STANDARD
        if standard and node.op_type in control.PLANS:
            plan = control.PLANS[node.op_type]
            place = replace(frame, source=position if frame.source < 0 else frame.source)
            results, items = plan(self, node, label, inputs, place)
            if len(results) < len(node.output):
                raise BadProgram(
                    f"{who} has {len(node.output)} results and its graph makes {len(results)}",
                    object=label,
                    number=len(results),
                    remedy="export the model again",
                )
            frame.values.update((name, v) for name, v in zip(node.output, results, strict=False) if name)
            return items
        constant = node.op_type not in RANDOM and all(v is None or v.constant for v in inputs)
        constant &= standard or bool(inputs)
        constant |= standard and node.op_type in ("Shape", "Size")
        outputs = self.sizes.results(node, inputs, frame, who, constant)
        frame.values.update((name, v) for name, v in zip(node.output, outputs, strict=True) if v is not None)
        if constant:
            self.notes.folded += frame.source < 0
            return []
        return [self._step(node, label, position, inputs, outputs, frame, who)]

    def _step(
        self,
        node: Any,
        label: str,
        position: int,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value | None],
        frame: Frame,
        who: str,
    ) -> Step:
        try:
            attributes = {a.name: self.onnx.helper.get_attribute_value(a) for a in node.attribute}
            site = Site(node.op_type, inputs, outputs, attributes)
            does = (cost(site) if node.domain in STANDARD else None) or unknown_cost(site)
        except _MISFITS as error:
            raise BadProgram(
                f"{who} does not fit its operands: {type(error).__name__} {error}",
                object=label,
                remedy="check the model with onnx.checker",
            ) from None
        skipped = NOT_TENSORS.get(node.op_type, ()) if node.domain in STANDARD else ()
        reads = [v for i, v in enumerate(inputs) if v is not None and not (v.constant and i in skipped)]
        writes = [v for v in outputs if v is not None]
        if does.view:
            # A view of one array under another shape; anything else has to move bytes.
            does = does._replace(view=len(reads) == len(writes) == 1 and reads[0].bytes == writes[0].bytes)
            writes[0].base = reads[0] if does.view else None
        shown = {"onnx": clean_name(node.op_type)}
        shown |= {clean_name(k): v for k, v in attributes.items() if _is_short(v)}
        scope = clean_name(frame.prefix + node.name).rpartition("/")[0].strip("/")
        name = frame.prefix + node.name if node.name else ""
        return Step(name, does, reads, writes, shown, scope, position if frame.source < 0 else frame.source)


def _is_short(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return len(numbers) <= 8 and all(
        isinstance(n, int) or (isinstance(n, float) and math.isfinite(n)) for n in numbers
    )
