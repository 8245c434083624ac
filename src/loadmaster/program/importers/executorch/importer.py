"""The graph that ExecuTorch runs as a Program: lowered, with every tensor it plans memory for.

Constants are where the program file is: they can't be moved. Inputs are copied into planned
memory by the runtime, which is one op here, before all others. Results that nobody reads take
memory all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import BadProgram
from loadmaster.program.importers.executorch.lower import (
    Algorithm,
    Lowered,
    is_alloc,
    is_view,
    lower,
    planned,
    refuse_unsupported,
)
from loadmaster.program.importers.torch.costs import Call
from loadmaster.program.importers.torch.graph import (
    Graph,
    Step,
    Value,
    call_of,
    emit,
    is_getitem,
    made,
    scope_of,
    type_of,
)
from loadmaster.program.program import Program, TensorKind

INPUTS = "inputs"
"""The op that copies the inputs in."""
NO_TENSOR = -1


@dataclass
class Recorded:
    """A graph as it is right before its memory is planned. Specs are ExecuTorch's, nodes are FX's."""

    program: Program
    tensor_of: dict[Any, int]
    """Spec -> tensor of the Program, or NO_TENSOR: it has no bytes."""
    nodes: list[Any]
    """All nodes in order; an op's `op_source` is a position in this."""
    results: list[list[Any]] = field(default_factory=list)
    """The specs of the results of every op of the Program, those without bytes too."""
    own: Any = None
    """ExecuTorch's program with its memory planned."""


def import_executorch_spec(spec: str, *, strict: bool = False) -> Program:
    """The lowered graph of what 'module:function' gives."""
    from loadmaster.program.importers.executorch.lower import greedy

    return record(lower(spec), greedy, strict=strict).program


def record(lowered: Lowered, algorithm: Algorithm, *, strict: bool = False) -> Recorded:
    """Read the graph whose memory is planned, and let `algorithm` plan it."""
    found: list[Recorded] = []

    def reader(graph_module: Any, signature: Any) -> None:
        refuse_unsupported(lowered, graph_module, signature)
        found.append(recorded(graph_module, signature, lowered.name, strict=strict))

    own = planned(lowered, algorithm, reader)
    if len(found) != 1:
        raise BadProgram(
            f"'{lowered.name}' has {len(found)} methods",
            object=lowered.name,
            number=len(found),
            remedy="export a module with one method",
        )
    found[0].own = own
    return found[0]


def recorded(graph_module: Any, signature: Any, name: str, *, strict: bool = False) -> Recorded:
    """The Program of a lowered graph, and which tensors its specs are."""
    graph, values = _Reader(signature).read(graph_module)
    every = {step.name: list(step.results) for step in graph.steps}
    for step in graph.steps:  # what has no bytes has no place
        step.results = [value for value in step.results if value.bytes]
        step.operands = [value for value in step.operands if value.bytes]
    graph.outputs = [value for value in graph.outputs if value.bytes]
    idle = [step for step in graph.steps if not step.results]
    if idle:
        raise BadProgram(
            f"op '{idle[0].name}' makes nothing",
            object=idle[0].name,
            number=len(idle),
            remedy="give inputs that are not empty",
        )
    program = emit(graph, name, strict=strict, fixed=True)
    specs = {id(value): spec for spec, value in values.items()}
    results = [[specs[id(v)] for v in every[step.name] if id(v) in specs] for step in graph.steps]
    tensor_of = {spec: value.root.tensor if value.bytes else NO_TENSOR for spec, value in values.items()}
    return Recorded(program, tensor_of, list(graph_module.graph.nodes), results)


class _Reader:
    """Walks a lowered graph once."""

    def __init__(self, signature: Any) -> None:
        self._signature = signature
        self._graph = Graph()
        self._values: dict[Any, list[Value]] = {}
        self._of_spec: dict[Any, Value] = {}
        self._callers: list[Value] = []
        self._inputs: list[Value] = []

    def read(self, graph_module: Any) -> tuple[Graph, dict[Any, Value]]:
        """The steps, and the value of every spec that memory is planned for."""
        graph, values = self._graph, self._values
        for position, node in enumerate(graph_module.graph.nodes):
            if node.op == "placeholder":
                self._given(node)
            elif node.op == "output":
                outputs = [v for part in node.all_input_nodes for v in values.get(part, [])]
                graph.outputs += [value for value in outputs if value.given is None]
            elif is_getitem(node):
                values[node] = [self._of_spec[node.meta["spec"]]]
            elif node.op == "call_function" and not is_alloc(node):
                self._call(node, position)
        if self._inputs:
            types = [value.type for value in self._inputs]
            call = Call("alias", {"inputs": types}, types)
            graph.steps.insert(0, Step(INPUTS, call, self._callers, self._inputs))
        return graph, self._of_spec

    def _given(self, node: Any) -> None:
        spec, signature = node.meta.get("spec"), self._signature
        if not hasattr(spec, "lifetime"):
            return  # a number or a flag
        type = type_of(spec, node.name)
        if spec.const:
            tables = (
                signature.inputs_to_parameters,
                signature.inputs_to_buffers,
                signature.inputs_to_lifted_tensor_constants,
            )
            name = next((table[node.name] for table in tables if node.name in table), node.name)
            value = Value(type, name, type.bytes, given=TensorKind.WEIGHT, fast=False)
            self._graph.given.append(value)
        else:
            caller = Value(type, f"{node.name}.caller", type.bytes, given=TensorKind.INPUT)
            self._graph.given.append(caller)
            self._callers.append(caller)
            value = made(type, node.name)
            self._inputs.append(value)
            self._of_spec[spec] = value
        self._values[node] = [value]

    def _call(self, node: Any, position: int) -> None:
        found = node.meta.get("spec")
        parts = list(found) if isinstance(found, list | tuple) else [found]
        specs = [part for part in parts if hasattr(part, "lifetime")]
        if not specs:
            self._graph.folded += 1
            return
        if any(spec.storage_base is not None for spec in specs):
            raise BadProgram(
                f"'{node.name}' is planned inside another tensor",
                object=node.name,
                remedy="leave out passes that share storage",
            )
        results = [type_of(spec, node.name) for spec in specs]
        call, operands = call_of(node, self._values, results)
        view = is_view(node)
        base = operands[0] if view else None
        names = [node.name if i == 0 else f"{node.name}:{i}" for i in range(len(results))]
        values = [made(type, name, base) for type, name in zip(results, names, strict=True)]
        self._values[node] = values
        if not view:
            self._of_spec.update(zip(specs, values, strict=True))
        self._graph.steps.append(
            Step(node.name, call, operands, list(values), scope_of(node), position, view)
        )
